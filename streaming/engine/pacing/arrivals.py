"""Waits for the next record of some topics.

A kafka-python consumer has one outstanding fetch, which the broker answers when a record is appended. It belongs to no consumer
group and commits nothing. The answer is not decompressed, because a batch of some KB may hold hundreds of MB.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import structlog
from kafka import KafkaConsumer, TopicPartition

from streaming.engine.intake.record_log import RawFetches
from streaming.engine.intake.record_sizes import batches
from streaming.spark_internals.checkpoint import Offsets

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.25
"""How often a waiting thread checks for `close`."""
_WITHOUT_KAFKA_S: Final = 0.1


class Arrivals:
    """Arrivals of one Kafka. client_options: for kafka-python, bootstrap servers included. Connects at the first wait."""

    def __init__(self, client_options: Mapping[str, Any]) -> None:
        self._options: dict[str, Any] = {
            "client_id": "inflight-engine",
            "group_id": None,
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            # Records of an open transaction are no arrival for Spark's source either.
            "isolation_level": "read_committed",
            "fetch_max_wait_ms": 1_000,
            # Only the existence of a record matters.
            "fetch_max_bytes": 1,
            "max_partition_fetch_bytes": 1,
            "metrics_enabled": False,
            "bootstrap_timeout_ms": 2_000,
            **client_options,
        }
        self._closed = threading.Event()
        self._in_use = threading.Lock()
        self._consumer: Any = None
        self._fetches: Any = None
        self._sought: dict[TopicPartition, int] = {}

    def wait(self, end: Offsets, timeout_s: float) -> None:
        """Returns when a record is there at or after one of the offsets, at the latest after `timeout_s`. Never raises."""
        deadline = time.monotonic() + timeout_s
        with self._in_use:
            try:
                self._wait(end, deadline)
            except Exception as error:  # noqa: BLE001 - whatever failed, the trigger interval remains
                _log.warning("arrivals_unknown", error=repr(error), action="micro-batches follow the trigger interval meanwhile")
                self._forget_consumer()
                self._closed.wait(min(_WITHOUT_KAFKA_S, max(0.0, deadline - time.monotonic())))

    def rest(self, timeout_s: float) -> None:
        """Returns after `timeout_s`, whatever arrives."""
        self._closed.wait(timeout_s)

    def close(self) -> None:
        """Ends a `wait` or `rest` of another thread; later calls return at once."""
        self._closed.set()
        with self._in_use:
            self._forget_consumer()

    def _wait(self, end: Offsets, deadline: float) -> None:
        if self._closed.is_set():
            return
        if self._consumer is None:
            self._consumer = KafkaConsumer(**self._options)
            self._fetches = RawFetches(self._consumer)
        self._seek({TopicPartition(topic, n): offset for topic, offsets in end.items() for n, offset in offsets.items()})
        while not self._closed.is_set() and (left_s := deadline - time.monotonic()) > 0:
            for partition, data in self._fetches.wait(min(left_s, _POLL_S)):
                for batch in batches(data):
                    if batch.end <= self._sought[partition]:
                        continue  # fetched before the last micro-batch
                    if batch.has_records:
                        return
                    self._consumer.seek(partition, batch.end)

    def _seek(self, wanted: dict[TopicPartition, int]) -> None:
        if wanted.keys() != set(self._consumer.assignment()):
            self._consumer.assign(list(wanted))
            self._sought.clear()
        for partition, offset in wanted.items():
            if self._sought.get(partition) != offset:
                self._consumer.seek(partition, offset)
        self._sought = wanted

    def _forget_consumer(self) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            self._sought.clear()
            consumer.close(autocommit=False, timeout_ms=1_000)
