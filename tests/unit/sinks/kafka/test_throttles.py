import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sinks.kafka.throttles import ThrottleFollower, ThrottleTable
from state.records.throttle import PARTITION_HOLDS_S, Throttle, encode_throttle, partition_key
from tests.support.waiting import wait_until


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


@pytest.mark.parametrize(
    ("everybody", "own", "stands"),
    [(True, True, "all"), (True, False, "own"), (False, True, "all"), (False, False, "all"), (None, False, "own")],
)
def test_who_stands_still_is_refused_while_others_are_waited_for(everybody: bool | None, own: bool, stands: str) -> None:
    table = ThrottleTable()
    table.apply(b"c", encode_throttle("own", 1, is_progressing=own))
    if everybody is not None:
        table.apply(b"*", encode_throttle("all", 1, is_progressing=everybody))
    throttle = table.of("c")
    assert throttle is not None
    assert throttle.reason == stands


def test_an_unknown_field_is_ignored_and_an_unreadable_record_throttles() -> None:
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


WAITS = partition_key("uplink", 3).encode()


def test_a_partition_waits_from_its_record_to_its_tombstone() -> None:
    table = ThrottleTable()
    assert not table.waits_any_partition
    table.apply(WAITS, encode_throttle("it waits", 5, is_progressing=True))
    assert table.waits_any_partition
    assert not table.is_anybody_progressing, "it is no client"
    assert table.of_partition("uplink", 3) == Throttle(reason="it waits", since_ms=5, is_progressing=True)
    assert table.of_partition("uplink", 4) is None
    assert table.of(WAITS.decode()) is None
    table.apply(WAITS, None)
    assert table.of_partition("uplink", 3) is None


def test_a_partition_of_which_nobody_speaks_any_more_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("sinks.kafka.throttles.time.monotonic", lambda: now_s)
    table = ThrottleTable()
    table.apply(WAITS, encode_throttle("it waits", 5, is_progressing=True))
    now_s += PARTITION_HOLDS_S - 0.1
    assert not table.expire()
    assert table.of_partition("uplink", 3) is not None
    now_s += 0.1
    assert table.of_partition("uplink", 3) is None
    assert table.expire()
    assert not table.waits_any_partition


def test_what_a_matcher_said_before_the_topic_was_read_does_not_hold() -> None:
    table = ThrottleTable()
    table.replace([(WAITS, encode_throttle("it has crashed", 5, is_progressing=True))])
    assert not table.waits_any_partition


def test_who_catches_up_is_known_until_the_throttle_changes() -> None:
    table = ThrottleTable()
    table.apply(b"c", encode_throttle("", 1, is_progressing=True))
    assert table.progressing("c") is not None
    table.apply(b"c", encode_throttle("", 1))
    assert (table.progressing("c"), table.is_anybody_progressing) == (None, False)
    table.apply(b"*", encode_throttle("", 1))
    assert not table.is_anybody_progressing
    table.apply(b"*", encode_throttle("", 1, is_progressing=True))
    assert table.is_anybody_progressing
    assert table.progressing("*") == Throttle(since_ms=1, is_progressing=True)
    assert table.progressing("c") is None
    table.replace([(b"c", encode_throttle("", 2, is_progressing=True))])
    assert table.progressing("c") == Throttle(since_ms=2, is_progressing=True)


class FakeMessage:
    def __init__(
        self, key: bytes | None = None, value: bytes | None = None, *, offset: int = 0, error: int | None = None
    ) -> None:
        self.key, self.value = lambda: key, lambda: value
        self.error = lambda: None if error is None else KafkaError(error)
        self.partition = lambda: 0
        self.offset = lambda: offset


class FakeConsumer:
    """One partition, two messages to a call. log: what is there, and after the end what is written later."""

    def __init__(self, log: list[FakeMessage], *, end: int = 9) -> None:
        self._log = log
        self._end = end
        self.asked = 0
        self._is_assigned = False
        self.closed = False

    def list_topics(self, *, timeout: float) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions={0: None})})

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert [(each.topic, each.partition, each.offset) for each in partitions] == [("t", 0, 5)]
        self._is_assigned = True

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert (partition.topic, partition.partition) == ("t", 0)
        return 5, self._end

    def consume(self, most: int, timeout: float) -> list[FakeMessage]:
        assert not timeout, "what has come is not kept waiting for more"
        found, self._log = self._log[:1], self._log[1:]
        return found

    def poll(self, timeout: float) -> FakeMessage | None:
        if not self._log or not self._is_assigned:
            time.sleep(0.01)
            return None
        return self._log.pop(0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeConsumer, ThrottleTable], ThrottleFollower]:
    def start(consumer: FakeConsumer, table: ThrottleTable, on_change: Callable[[], None] = lambda: None) -> ThrottleFollower:
        monkeypatch.setattr("sinks.kafka.throttles.Consumer", lambda config: consumer)
        follower = ThrottleFollower(table, bootstrap_servers="nowhere:1", topic="t", config={}, options={}, on_change=on_change)
        follower.start()
        return follower

    return start


END = FakeMessage(error=KafkaError._PARTITION_EOF)


def test_the_topic_is_known_when_it_was_read_to_its_end_and_then_followed(follow: Any) -> None:
    before = [FakeMessage(b"old", b"{}"), FakeMessage(b"slow", b"{}"), FakeMessage(b"old", None)]
    after = [FakeMessage(b"new", b"{}"), FakeMessage(b"slow", None)]
    consumer, table = FakeConsumer([*before, END, *after]), ThrottleTable()
    table.apply(b"stale", b"{}")
    follower = follow(consumer, table)
    assert follower.wait_known(5.0)
    assert table.of("stale") is None
    assert table.of("old") is None
    wait_until(lambda: table.of("new") is not None and table.of("slow") is None, "the records after the end are followed")
    follower.close()
    assert consumer.closed


def test_every_change_of_the_table_is_told(follow: Any) -> None:
    table, seen = ThrottleTable(), list[list[bool]]()
    log = [FakeMessage(b"a", b"{}"), END, FakeMessage(b"b", b"{}"), FakeMessage(b"b", None)]
    follower = follow(FakeConsumer(log), table, lambda: seen.append([table.of(each) is not None for each in ("a", "b")]))
    wait_until(lambda: len(seen) >= 2, "the end of the topic and what came behind it are told")
    follower.close()
    assert seen == [[True, False], [True, False]], "both records behind the end came together"


def test_the_end_is_where_it_was_at_the_start_even_if_no_record_is_there(follow: Any) -> None:
    follower = follow(FakeConsumer([], end=5), ThrottleTable())
    assert follower.wait_known(5.0)
    follower.close()
    table = ThrottleTable()
    follower = follow(FakeConsumer([FakeMessage(b"slow", b"{}", offset=6), FakeMessage(b"late", b"{}", offset=7)], end=7), table)
    assert follower.wait_known(5.0)
    assert table.of("slow") is not None
    follower.close()


def test_a_refused_coordinator_is_no_failure_because_none_is_needed(follow: Any) -> None:
    refused = FakeMessage(error=KafkaError.GROUP_AUTHORIZATION_FAILED)
    follower = follow(FakeConsumer([refused, END]), ThrottleTable())
    assert follower.wait_known(5.0)
    follower.close()


def test_a_topic_that_cannot_be_read_leaves_the_table_unknown(follow: Any) -> None:
    consumer = FakeConsumer([FakeMessage(b"slow", b"{}"), FakeMessage(error=KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    table = ThrottleTable()
    follower = follow(consumer, table)
    wait_until(lambda: consumer.closed, "the consumer is given up")
    assert not follower.wait_known(0.0)
    assert table.of("slow") is None
    follower.close()
