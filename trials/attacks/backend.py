"""Sends a steady stream to the good devices while their gateway is attacked."""

import threading
import time
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry

from inflight.producer import Producer

_TOPIC: Final = "attacked"
_PATIENCE_S: Final = 300.0


class Backend:
    """Sends to each of the good devices in turn, from `__enter__` on. sent: payloads, in their order."""

    def __init__(self, bootstrap_servers: str, client_ids: list[str], *, rate_per_s: float) -> None:
        self.sent: list[str] = []
        self._client_ids = client_ids
        self._every_s = 1 / rate_per_s
        self._stop = threading.Event()
        self._pending: list[Future[Any]] = []
        self._producer = Producer(
            bootstrap_servers, max_attempts=1_000, deadline_ms=int(_PATIENCE_S * 1_000), registry=CollectorRegistry()
        )
        self._sending = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._sending.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._sending.join()
        self._producer.close()

    def stop(self) -> None:
        """Returns when Kafka has confirmed everything. Raises SendFailed."""
        self._stop.set()
        self._sending.join()
        for future in self._pending:
            future.result(_PATIENCE_S)

    def _send(self) -> None:
        started_s, number = time.monotonic(), 0
        while not self._stop.wait(max(0.0, started_s + number * self._every_s - time.monotonic())):
            payload = f"{time.time_ns()}/{number}"
            self._pending.append(self._producer.send_async(self._client_ids[number % len(self._client_ids)], _TOPIC, payload))
            self.sent.append(payload)
            number += 1
