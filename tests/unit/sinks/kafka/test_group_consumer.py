"""sinks.kafka.group_consumer, on a client that does what the test says. With a broker: tests/integration/kafka."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sinks.kafka import group_consumer
from sinks.kafka.group_consumer import (
    CommitRefused,
    ConsumedRecord,
    GroupConsumer,
    MemberFenced,
    PartitionsAssigned,
    PartitionsRevoked,
)
from sinks.kafka.librdkafka import KafkaFailed


class Message:
    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self.partition = lambda: partition
        self.offset = lambda: offset
        self.error = lambda: error
        self.key = lambda: b"k"
        self.value = lambda: b"v"
        self.headers = lambda: None
        self.timestamp = lambda: (1, 99)


class Client:
    """confluent_kafka.Consumer. waiting: what the next poll brings. bounds: of all partitions."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.waiting: list[Message] = []
        self.before_poll: list[Callable[[], None]] = []
        self.offsets: dict[int, int] = {}
        self.bounds: tuple[int, int] | None = (10, 50)
        self.elections: list[KafkaError] = []
        self.assigned: dict[int, int] = {}
        self.sought: dict[int, int] = {}
        self.commits: list[tuple[dict[int, int], str]] = []
        self.member = "me-1"
        self.refuse: KafkaError | None = None

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost

    def assign(self, *partitions: int) -> None:
        self.before_poll.append(lambda: self.on_assign(self, [TopicPartition("t", number) for number in partitions]))

    def poll(self, timeout: float) -> Message | None:
        for action in self.before_poll:
            action()
        if self.refuse is not None:
            raise KafkaException(self.refuse)
        return self.waiting.pop(0) if self.waiting else None

    def consume(self, most: int, timeout: float) -> list[Message]:
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition("t", one.partition, self.offsets.get(one.partition, -1001)) for one in partitions]

    def get_watermark_offsets(self, partition: TopicPartition, **_: Any) -> tuple[int, int] | None:
        if self.elections:
            raise KafkaException(self.elections.pop())
        return self.bounds

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned |= {one.partition: one.offset for one in partitions}

    def seek(self, partition: TopicPartition) -> None:
        self.sought[partition.partition] = partition.offset

    def memberid(self) -> str:
        return self.member

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self.commits.append(({one.partition: one.offset for one in offsets}, offsets[0].metadata))


Outcomes = list[tuple[Mapping[int, int], CommitRefused | None]]


def consumer_of(
    monkeypatch: pytest.MonkeyPatch, *, resumes: bool = True, on_revoke: Callable[[], None] = lambda: None
) -> tuple[GroupConsumer, Client, Outcomes]:
    monkeypatch.setattr(group_consumer, "Consumer", Client)
    outcomes: Outcomes = []
    consumer = GroupConsumer(
        "t",
        bootstrap_servers="x:1",
        group_id="g",
        group_instance_id="me",
        session_timeout_ms=6_000,
        fetch_max_wait_ms=5,
        options={"auto.offset.reset": "earliest"},
        resumes=resumes,
        on_revoke=on_revoke,
        on_commit=lambda offsets, error: outcomes.append((offsets, error)),
    )
    return consumer, consumer._client, outcomes


def test_no_option_makes_it_pass_records_over_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    _, client, _ = consumer_of(monkeypatch)
    assert client.config["auto.offset.reset"] == "error"
    assert (client.config["group.instance.id"], client.config["enable.auto.commit"]) == ("me", False)


@pytest.mark.parametrize(
    ("committed", "start"), [(None, 50), (10, 10), (30, 30), (50, 50), (9, 50), (51, 50)], ids=lambda value: str(value)
)
def test_a_partition_starts_at_the_committed_offset_if_the_log_has_it(
    monkeypatch: pytest.MonkeyPatch, committed: int | None, start: int
) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    client.offsets = {} if committed is None else {3: committed}
    client.assign(3)
    consumer.poll(0, 10)
    assert list(consumer.changes) == [PartitionsAssigned({3: start})]
    assert client.assigned == {3: start}


def test_without_resuming_a_partition_starts_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch, resumes=False)
    client.offsets = {0: 20, 1: 20}
    client.assign(1, 0)
    consumer.poll(0, 10)
    assert client.assigned == {0: 50, 1: 50}


def test_a_partition_whose_end_is_not_known_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    monkeypatch.setattr("sinks.kafka.librdkafka._ANSWER_MS", 10)
    client.bounds = None
    client.assign(0)
    with pytest.raises(KafkaFailed, match="the end of t, partition 0, is not known"):
        consumer.poll(0, 10)
    assert not consumer.changes
    assert not client.assigned


def test_a_partition_that_gets_its_leader_at_this_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    monkeypatch.setattr("sinks.kafka.librdkafka._PAUSE_S", 0.001)
    client.elections = [KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)] * 3
    client.assign(0)
    consumer.poll(0, 10)
    assert client.assigned == {0: 50}


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._STATE)), ValueError("a bug")], ids=["Kafka", "ours"])
def test_errors_of_callbacks_are_raised_by_poll(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    consumer, client, _ = consumer_of(monkeypatch)

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(client, "committed", fails)
    client.on_assign(client, [TopicPartition("t", 0)])
    with pytest.raises(KafkaFailed if isinstance(error, KafkaException) else ValueError):
        consumer.poll(0, 10)


def test_partitions_that_go_are_noted_however_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    client.on_revoke(client, [TopicPartition("t", 0), TopicPartition("t", 2)])
    client.on_lost(client, [TopicPartition("t", 1)])
    assert list(consumer.changes) == [PartitionsRevoked(frozenset((0, 2))), PartitionsRevoked(frozenset((1,)))]


def test_partitions_go_when_on_revoke_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    consumer, client, _ = consumer_of(monkeypatch, on_revoke=lambda: noted.append(len(consumer.changes)))
    client.on_revoke(client, [TopicPartition("t", 0)])
    assert noted == [1]


def test_one_poll_returns_records_by_partition_and_no_more_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    client.waiting = [Message(0, 5), Message(1, 8), Message(0, 6), Message(0, 7)]
    batches = consumer.poll(0, 3)
    assert {partition: [record.offset for record in records] for partition, records in batches.items()} == {0: [5, 6], 1: [8]}
    assert [record.offset for record in consumer.poll(0, 3)[0]] == [7]
    assert consumer.poll(0, 3) == {}


def test_a_record_has_kafkas_values() -> None:
    record, message = ConsumedRecord(Message(0, 5)), Message(0, 6)
    assert (record.offset, record.key, record.value, record.headers, record.timestamp) == (5, b"k", b"v", [], 99)
    message.headers = lambda: [("name", b"value")]  # type: ignore[assignment, return-value]
    assert ConsumedRecord(message).headers == [("name", b"value")]


FENCED = KafkaError(KafkaError._FATAL, "Fatal error: Static consumer fenced by other consumer with same group.instance.id")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FENCED, MemberFenced),
        (KafkaError(KafkaError.FENCED_INSTANCE_ID), MemberFenced),
        (KafkaError(KafkaError._FATAL, "something else"), KafkaFailed),
        (KafkaError(KafkaError._AUTO_OFFSET_RESET), KafkaFailed),
        (KafkaError(KafkaError._BAD_COMPRESSION), KafkaFailed),
    ],
)
def test_errors_for_which_another_consumer_is_the_cure(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError, raised: type[Exception]
) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    client.waiting = [Message(0, 5), Message(0, 6, error)]
    with pytest.raises(KafkaFailed) as caught:
        consumer.poll(0, 10)
    assert type(caught.value) is raised


def test_an_error_that_passes_by_itself_is_logged_once_and_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    with structlog.testing.capture_logs() as logs:
        for offset in (5, 6):
            client.waiting = [Message(0, -1, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), Message(0, offset)]
            assert [record.offset for record in consumer.poll(0, 10)[0]] == [offset]
    assert [line["event"] for line in logs] == ["kafka_consumer"]


def test_a_failed_poll_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    client.refuse = KafkaError(KafkaError._STATE)
    with pytest.raises(KafkaFailed, match=client.refuse.str()):
        consumer.poll(0, 10)


def test_skipping_seeks_to_a_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, _ = consumer_of(monkeypatch)
    assert consumer.skip_to_end(2) == 50
    assert client.sought == {2: 50}
    assert consumer.known_end(2) == 50
    monkeypatch.setattr("sinks.kafka.librdkafka._ANSWER_MS", 10)
    client.bounds = None
    with pytest.raises(KafkaFailed):
        consumer.skip_to_end(2)


def test_a_commit_is_reported_with_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client, outcomes = consumer_of(monkeypatch)
    consumer.commit({0: 7}, "stamp")
    assert client.commits == [({0: 7}, "stamp")]
    told = client.config["on_commit"]
    told(None, [TopicPartition("t", 0, 7)])
    told(KafkaError(KafkaError.ILLEGAL_GENERATION), [TopicPartition("t", 0, 8)])
    told(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), [TopicPartition("t", 0, 9)])
    told(KafkaError(KafkaError._WAIT_COORD), [TopicPartition("t", 0, 10)])
    passing = [(offsets, error and error.is_passing) for offsets, error in outcomes]
    assert passing == [({0: 7}, None), ({0: 8}, True), ({0: 9}, False), ({0: 10}, True)]


def test_without_membership_nothing_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka would take it while the group is empty, from a process that somebody else has replaced meanwhile."""
    consumer, client, outcomes = consumer_of(monkeypatch)
    client.member = ""
    consumer.commit({0: 7}, "stamp")
    assert client.commits == []
    [(offsets, error)] = outcomes
    assert offsets == {0: 7}
    assert error is not None
    assert error.is_passing
