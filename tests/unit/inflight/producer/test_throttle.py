"""The table of throttled clients."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from inflight.producer.throttle import ThrottleFollower, ThrottleTable
from state.records.throttle import Throttle


def test_a_client_is_throttled_from_its_record_to_its_tombstone() -> None:
    table = ThrottleTable()
    table.apply(b"slow", b'{"code": 530, "reason": "queue", "since_ms": 5}')
    assert table.of("slow") == Throttle(code=530, reason="queue", since_ms=5)
    assert table.of("other") is None
    table.apply(b"slow", None)
    assert table.of("slow") is None


def test_a_star_throttles_everybody() -> None:
    table = ThrottleTable()
    table.apply(b"*", b'{"reason": "disk"}')
    assert table.of("anyone") == Throttle(reason="disk")


def test_a_tombstone_of_an_unknown_client_changes_nothing() -> None:
    table = ThrottleTable()
    table.apply(b"nobody", None)
    assert table.of("nobody") is None


def test_fields_of_a_newer_version_are_ignored_and_an_unreadable_record_still_throttles() -> None:
    table = ThrottleTable()
    table.apply(b"new", b'{"code": 530, "weight": 3}')
    table.apply(b"broken", b"{")
    assert table.of("new") == Throttle()
    broken = table.of("broken")
    assert broken is not None
    assert "unreadable" in broken.reason


def test_reading_the_topic_again_forgets_what_is_not_in_it_any_more() -> None:
    table = ThrottleTable()
    table.apply(b"old", b"{}")
    table.replace([(b"new", b"{}"), (b"gone", b"{}"), (b"gone", None)])
    assert table.of("old") is None
    assert table.of("gone") is None
    assert table.of("new") is not None


class FakeConsumer:
    """One partition, two records to a poll. more: what is written after the first read to the end."""

    def __init__(self, records: list[tuple[bytes, bytes | None]], more: list[tuple[bytes, bytes | None]]) -> None:
        self._records = records
        self._more = more
        self._end = len(records)
        self._position = 0

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return {0}

    def assign(self, _partitions: object) -> None: ...

    def seek_to_beginning(self, *_partitions: object) -> None: ...

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._end)

    def position(self, _partition: TopicPartition) -> int:
        return self._position

    def poll(self, *, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        assert timeout_ms > 0
        log = self._records + self._more
        found = log[self._position : self._position + 2]
        self._position += len(found)
        return {TopicPartition("t", 0): [SimpleNamespace(key=key, value=value) for key, value in found]}

    def close(self, **_options: object) -> None: ...


def test_the_topic_is_read_to_its_end_before_it_is_known_and_then_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(b"old", b"{}"), (b"slow", b"{}"), (b"old", None)]
    consumer = FakeConsumer(records, more=[(b"new", b"{}"), (b"slow", None)])
    monkeypatch.setattr("inflight.producer.throttle.KafkaConsumer", lambda **_config: consumer)
    table = ThrottleTable()
    table.apply(b"stale", b"{}")
    follower = ThrottleFollower(table, bootstrap_servers="nowhere:1", topic="t", min_connect_timeout_ms=1_000, options={})
    follower.start()
    assert follower.wait_known(5.0)
    assert table.of("stale") is None
    assert table.of("old") is None
    deadline = time.monotonic() + 5.0
    while table.of("new") is None or table.of("slow") is not None:
        assert time.monotonic() < deadline, "the records after the end are followed"
    follower.close()
