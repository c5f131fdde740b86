"""A log of Kafka's records in memory, and a consumer of it as `Uplink` and `Receipts` use one."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from inflight.readers import group_stream

Record = tuple[bytes, bytes | None, list[tuple[str, bytes | None]]]


class StoredRecord:
    """A record as librdkafka gives it out."""

    def __init__(self, offset: int, record: Record, *, topic: str = "inflight.uplink", error: int | None = None) -> None:
        key, value, headers = record
        self.key, self.value, self.headers = lambda: key, lambda: value, lambda: headers
        self.topic, self.partition, self.offset = lambda: topic, lambda: 0, lambda: offset
        self.timestamp = lambda: (1, 1_700_000_000_000 + offset)
        self.error: Callable[[], KafkaError | None] = lambda: None if error is None else KafkaError(error)


class KafkaLog:
    """One partition. stored: the offset that a consumer would commit. committed: the one that a group continues with.

    refusals: Errors of the next commits, the last one first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[Record] = []
        self.errors: list[int] = []
        self.refusals: list[int] = []
        self.stored = self.committed = 0
        self.is_closed = False
        self._next = 0
        monkeypatch.setattr(group_stream, "new_client", lambda kind, config: self)

    def subscribe(self, topics: list[str]) -> None:
        self._next = self.stored

    def poll(self, timeout_s: float) -> Any:
        if self.errors:
            return StoredRecord(0, (b"", None, []), error=self.errors.pop())
        if self._next == len(self.records):
            return None
        self._next += 1
        return StoredRecord(self._next - 1, self.records[self._next - 1])

    def store_offsets(self, offsets: list[TopicPartition]) -> None:
        (self.stored,) = (each.offset for each in offsets)

    def commit(self, *, asynchronous: bool) -> None:
        assert not asynchronous
        if self.refusals:
            raise KafkaException(KafkaError(self.refusals.pop()))
        self.committed = self.stored

    def close(self) -> None:
        self.is_closed = True
