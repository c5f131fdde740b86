"""Waits for the next record of some topics.

A kafka-python consumer has one outstanding fetch, which the broker answers when a record is appended. The answer is not
decompressed (record_log.py), because a batch of some KB may hold hundreds of MB.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import structlog
from kafka import TopicPartition

from streaming.engine.intake.record_log import RawFetches
from streaming.engine.intake.record_sizes import batches
from streaming.spark_internals.checkpoint import Offsets

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.25
"""How often a waiting thread checks for `close`."""
_WITHOUT_KAFKA_S: Final = 0.1
_FETCH_WAIT_MS: Final = 250
"""Bounds the delay where an answer crosses a fetch, which then leaves its partition out (record_log.py)."""


class Arrivals:
    """Arrivals of one Kafka. Connects at the first wait.

    Args:
        client_options: For kafka-python, bootstrap servers included.
    """

    def __init__(self, client_options: Mapping[str, Any]) -> None:
        self._options = client_options
        self._closed = threading.Event()
        self._in_use = threading.Lock()
        self._fetches: RawFetches | None = None
        self._sought: dict[TopicPartition, int] = {}

    def wait(self, end: Offsets, timeout_s: float) -> None:
        """Returns when a record is there at or after one of the offsets, at the latest after `timeout_s`. Never raises."""
        deadline = time.monotonic() + timeout_s
        with self._in_use:
            try:
                self._wait(end, deadline)
            except Exception as error:  # noqa: BLE001 - whatever failed, the trigger interval remains
                _log.warning("arrivals_unknown", error=repr(error), action="micro-batches follow the trigger interval meanwhile")
                self._disconnect()
                self._closed.wait(min(_WITHOUT_KAFKA_S, max(0.0, deadline - time.monotonic())))

    def rest(self, timeout_s: float) -> None:
        """Returns after `timeout_s`, whatever arrives."""
        self._closed.wait(timeout_s)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Ends a `wait` or `rest` of another thread; later calls return at once."""
        self._closed.set()
        with self._in_use:
            self._disconnect()

    def _wait(self, end: Offsets, deadline: float) -> None:
        if self._closed.is_set():
            return
        if self._fetches is None:
            few = {"fetch_max_bytes": 1, "max_partition_fetch_bytes": 1}  # only the existence of a record matters
            waits = {"bootstrap_timeout_ms": 2_000, "fetch_max_wait_ms": _FETCH_WAIT_MS}
            self._fetches = RawFetches(self._options, client_id="inflight-engine", **few, **waits)
        fetches = self._fetches
        wanted = {TopicPartition(topic, n): offset for topic, offsets in end.items() for n, offset in offsets.items()}
        self._seek(fetches.consumer, wanted)
        while not self._closed.is_set() and (left_s := deadline - time.monotonic()) > 0:
            for partition, data in fetches.wait(min(left_s, _POLL_S)):
                for batch in batches(data):
                    if batch.end <= self._sought[partition]:
                        continue  # fetched before the last micro-batch
                    if batch.has_records:
                        return
                    fetches.consumer.seek(partition, batch.end)

    def _seek(self, consumer: Any, wanted: dict[TopicPartition, int]) -> None:
        if wanted.keys() != set(consumer.assignment()):
            consumer.assign(list(wanted))
            self._sought.clear()
        for partition, offset in wanted.items():
            if self._sought.get(partition) != offset:
                consumer.seek(partition, offset)
        self._sought = wanted

    def _disconnect(self) -> None:
        fetches, self._fetches = self._fetches, None
        self._sought.clear()
        if fetches is not None:
            fetches.close()
