"""The gateway's memory and processor time, and the memory that its configuration allows."""

import re
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.request import urlopen

import psutil

from sinks.mqtt.connection.left_session import LEFT_SESSION_BYTES, MAX_LEFT_BYTES, MAX_LEFT_SESSIONS
from sinks.mqtt.settings import GatewaySettings

MIB: Final = 1 << 20
CONNECTION_BYTES: Final = 32 * 1_024
"""Memory for a connected device that holds no data; a third of that was measured."""
UNCONFIRMED_COPIES: Final = 4
"""Copies of a record: the received bytes, the value for Kafka, kafka-python's batch and its request."""
BUFFERED_COPIES: Final = 2
"""Copies of held data: the buffers of Python and libuv are larger than their contents."""
READING_BYTES: Final = 64 * MIB
"""Memory for one read from Kafka, and for what Python does not give back to the system."""
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 30.0
_REST_LOOK_S: Final = 1.0


def memory_allowed(settings: GatewaySettings) -> int:
    """Returns by how many bytes a gateway may grow beyond its size without connections: security.md, Memory of a gateway."""
    limits = settings.device_limits
    connects = min(limits.max_waiting_connects + limits.max_unanswered_connects, limits.max_connections)
    return (
        limits.max_connections * CONNECTION_BYTES
        + connects * (limits.max_connect_bytes + limits.max_will_bytes)
        + limits.max_total_unconfirmed_bytes * UNCONFIRMED_COPIES
        + limits.max_total_buffered_bytes * BUFFERED_COPIES
        + MAX_LEFT_SESSIONS * LEFT_SESSION_BYTES
        + MAX_LEFT_BYTES
        + READING_BYTES
    )


@dataclass(frozen=True)
class Usage:
    """The resources used since the measurement before.

    most_bytes: resident. cores: processors used, on average. fast_publishes: messages that took the fast path.
    """

    most_bytes: int
    cores: float
    fast_publishes: int = 0


class GatewayWatch:
    """Looks at a process ten times a second. metrics: its address for Prometheus."""

    def __init__(self, pid: int, metrics: str) -> None:
        self._process = psutil.Process(pid)
        self._metrics = metrics
        self._fast_publishes = 0
        self._most_bytes = 0
        self._cpu_s, self._at_s = self._used_s(), time.monotonic()
        self._stop = threading.Event()
        self._looking = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._looking.join()

    def usage(self) -> Usage:
        """Returns the use since the last call. Raises psutil.NoSuchProcess when the gateway has died."""
        most_bytes, self._most_bytes = self._most_bytes, self._process.memory_info().rss
        cpu_s, at_s = self._cpu_s, self._at_s
        self._cpu_s, self._at_s = self._used_s(), time.monotonic()
        fast_before, self._fast_publishes = self._fast_publishes, self._fast_published()
        return Usage(
            max(most_bytes, self._most_bytes), (self._cpu_s - cpu_s) / (self._at_s - at_s), self._fast_publishes - fast_before
        )

    def rest(self, cores: float, at_most_s: float) -> None:
        """Returns when the gateway uses less than that for a second: after an attack it may have much to finish."""
        until_s = time.monotonic() + at_most_s
        while time.monotonic() < until_s and self._process.cpu_percent(_REST_LOOK_S) > 100 * cores:
            pass

    def _fast_published(self) -> int:
        with urlopen(f"http://{self._metrics}/metrics", timeout=_PATIENCE_S) as answer:
            found = re.search(rb"^inflight_gateway_fast_publishes_sent_total (\S+)", answer.read(), re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    def _used_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_S):
            try:
                self._most_bytes = max(self._most_bytes, self._process.memory_info().rss)
            except psutil.NoSuchProcess:
                return
