"""Reads `inflight.wake-ups` for the pace of the query: something in the log should not wait (state/records/wake_ups.py)."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog
from kafka import KafkaConsumer, TopicPartition

from streaming.background import BackgroundLoop

_log: Final = structlog.get_logger(__name__)
_POLL_MS: Final = 1_000
_FETCH_WAIT_MS: Final = 5_000
"""The broker answers a fetch when a record comes, or after this."""
_RESTART_PAUSE_S: Final = 1.0
_OPTIONS: Final[dict[str, Any]] = {
    "client_id": "inflight-wake-ups",
    "group_id": None,
    "enable_auto_commit": False,
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
    "bootstrap_timeout_ms": 2_000,
    "request_timeout_ms": 2 * _FETCH_WAIT_MS,
    "fetch_max_wait_ms": _FETCH_WAIT_MS,
}


class Urgency(Protocol):
    """Knows when the engine has to hurry. Times are milliseconds of a monotonic clock."""

    @property
    def is_known(self) -> bool:
        """False: any record may be urgent."""

    @property
    def since_ms(self) -> int:
        """When something urgent was heard of last."""

    def hurry(self) -> None:
        """Says that something urgent is in the log. Any thread may call it."""

    def wait(self, after_ms: int, timeout_s: float) -> bool:
        """Returns True when something urgent is heard of after that time, or nothing is known any more; False at the time-out."""


class WakeUpReader(BackgroundLoop):
    """Urgency by the wake-ups of gateways, read on a thread from `start` to the end of a `with`.

    Args:
        client_options: For kafka-python, bootstrap servers included.
        all_send: Says that every gateway and bridge sends wake-ups. Called often, on any thread.
    """

    _join_s = 5.0

    def __init__(self, client_options: Mapping[str, Any], topic: str, all_send: Callable[[], bool]) -> None:
        super().__init__("inflight-wake-ups")
        self._options = client_options
        self._topic = topic
        self._all_send = all_send
        self._is_reading = False
        self._heard = threading.Condition()
        self._since_ms = _now_ms()

    @property
    def is_known(self) -> bool:
        return self._is_reading and self._all_send()

    @property
    def since_ms(self) -> int:
        return self._since_ms

    def hurry(self) -> None:
        with self._heard:
            self._since_ms = _now_ms()
            self._heard.notify_all()

    def wait(self, after_ms: int, timeout_s: float) -> bool:
        with self._heard:
            return self._heard.wait_for(lambda: self._since_ms > after_ms or not self._is_reading, timeout_s)

    def _hear(self, *, is_reading: bool) -> None:
        with self._heard:
            self._since_ms, self._is_reading = _now_ms(), is_reading
            self._heard.notify_all()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - whatever failed, the engine hurries meanwhile
                _log.warning("wake_ups_not_read", error=repr(error), action="micro-batches follow each other meanwhile")
            self._hear(is_reading=False)
            self._stopping.wait(_RESTART_PAUSE_S)

    def _read(self) -> None:
        """Reads until `_stopping` is set. Raises KafkaError."""
        consumer: Any = KafkaConsumer(**_OPTIONS | dict(self._options))
        try:
            partitions = [TopicPartition(self._topic, number) for number in consumer.partitions_for_topic(self._topic) or (0,)]
            consumer.assign(partitions)
            consumer.seek_to_end(*partitions)
            for partition in partitions:
                consumer.position(partition)  # now, so that nothing from here on is missed
            self._hear(is_reading=True)
            while not self._stopping.is_set():
                if consumer.poll(timeout_ms=_POLL_MS):
                    self._hear(is_reading=True)
        finally:
            consumer.close(autocommit=False, timeout_ms=1_000)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
