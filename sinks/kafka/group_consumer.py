"""Reads one topic as a member of a consumer group, on librdkafka. One thread calls all methods.

Partitions move one by one (cooperative rebalancing). The offset from which a partition is read is fixed when the partition comes,
and reported with it (`changes`). From there on every record is read. When the log does not have one any more, or the topic was
deleted and created again, the consumer fails, and its successor begins anew.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import (
    ClientErrors,
    ErrorLogThrottle,
    KafkaFailed,
    client_config,
    headers_of,
    new_client,
    partition_bounds,
    reason_of,
)
from sinks.kafka.topic_ids import TopicIdWatch
from sinks.library_log import LibraryLogger

_log: Final = LibraryLogger(__name__)
_ANSWER_S: Final = 10.0
_COMMITTED_LATER: Final = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._WAIT_COORD,
)


class MemberFenced(KafkaFailed):
    """Another process has joined under our `group_instance_id`."""


class CommitRefused(KafkaFailed):
    """Kafka has refused a commit.

    Attributes:
        is_passing: See `is_committed_later`.
    """

    def __init__(self, text: str, *, is_passing: bool) -> None:
        super().__init__(text)
        self.is_passing = is_passing


class ConsumedRecord:
    """A record of Kafka. Fields become Python objects when they are read, because most readers use few of them."""

    __slots__ = ("_message", "offset")

    def __init__(self, message: Any) -> None:
        self._message = message
        self.offset: int = message.offset()

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self._message.key()
        return key

    @property
    def value(self) -> bytes | None:
        value: bytes | None = self._message.value()
        return value

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Raises UnreadableRecord."""
        return headers_of(self._message)

    @property
    def timestamp(self) -> int:
        """Returns milliseconds since 1970."""
        timestamp: int = self._message.timestamp()[1]
        return timestamp


class PartitionsAssigned(NamedTuple):
    """Partitions came.

    Attributes:
        starts: By partition, the offset of the first record that is read.
    """

    starts: dict[int, int]


class PartitionsRevoked(NamedTuple):
    """Partitions went."""

    partitions: frozenset[int]


def is_committed_later(error: KafkaError) -> bool:
    """Returns True for a refused commit if the group rebalances, has evicted this member, which joins again, or has no broker at
    the moment.
    """
    return error.code() in _COMMITTED_LATER


def check_consumer_error(error: KafkaError, topic: str, log_throttle: ErrorLogThrottle) -> None:
    """Logs an error in the stream of a consumer that promises to see every record, and that librdkafka survives.

    Raises:
        MemberFenced: Another process has joined under our `group_instance_id`.
        KafkaFailed: Another consumer is the cure.
    """
    code, text = error.code(), error.str()
    if code == KafkaError.FENCED_INSTANCE_ID or (code == KafkaError._FATAL and "fenced" in text):
        raise MemberFenced(text)
    # librdkafka decompresses at most 100 MB of zstd, and would stay at a batch with more for ever.
    if code in (KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET, KafkaError._BAD_COMPRESSION) or error.fatal():
        raise KafkaFailed(text)
    if log_throttle.is_due(code):  # a missing permission or topic: librdkafka tries again
        _log.warning("kafka_consumer", topic=topic, error=text)


def polled(client: Any, timeout_s: float, most: int) -> list[Any]:
    """Returns what librdkafka has, errors of partitions included; waits for the first only. Raises KafkaFailed."""
    try:
        first = client.poll(timeout_s)
        return [] if first is None else [first, *client.consume(most - 1, 0)]
    except KafkaException as error:
        raise KafkaFailed(str(reason_of(error))) from error


class GroupConsumer:
    """A member of a consumer group.

    Args:
        resumes: True = it starts where the group has committed, and at the end of the log without a commit. False = it always
            starts at the end.
        on_revoke: Called by `poll` when partitions go, after `changes` says so. Another member gets them when it has returned. It
            must raise nothing.
        on_commit: Gets the offsets of each `commit` and why Kafka has refused them; None = it has accepted them. Called by
            `poll`.

    Attributes:
        changes: Changes of the assignment, oldest first; whoever follows them removes them. Those of a poll hold for the records
            it returns.

    Raises:
        KafkaFailed: A file or value of the options is of no use.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str,
        group_id: str,
        group_instance_id: str | None,
        session_timeout_ms: int,
        fetch_max_wait_ms: int,
        options: Mapping[str, Any],
        resumes: bool,
        on_revoke: Callable[[], None] = lambda: None,
        on_commit: Callable[[Mapping[int, int], CommitRefused | None], None] = lambda offsets, error: None,
    ) -> None:
        self.changes: deque[PartitionsAssigned | PartitionsRevoked] = deque()
        self._topic = topic
        self._resumes = resumes
        self._on_revoke = on_revoke
        self._on_commit = on_commit
        self._failures = ClientErrors()
        self._log_throttle = ErrorLogThrottle()
        self._broken: Exception | None = None
        config: dict[str, Any] = {
            "group.id": group_id,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": max(100, session_timeout_ms // 4),
            "fetch.wait.max.ms": fetch_max_wait_ms,
            "fetch.min.bytes": 1,
            "fetch.queue.backoff.ms": 20,  # its default, a second, is how long it would pause with full hands
            "fetch.error.backoff.ms": 100,
            "queued.max.messages.kbytes": 16_384,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "check.crcs": True,
            "isolation.level": "read_committed",  # as the engine reads
            "partition.assignment.strategy": "cooperative-sticky",
            "on_commit": self._committed,
        }
        if group_instance_id is not None:
            config["group.instance.id"] = group_instance_id
        theirs = client_config(bootstrap_servers, options, self._failures, config)
        # A reader has promised to see every record: it must not skip one silently.
        self._client: Any = new_client(Consumer, {**theirs, "auto.offset.reset": "error"})
        self._ids = TopicIdWatch([topic], bootstrap_servers, options)
        self._client.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def poll(self, timeout_s: float, most: int) -> dict[int, list[ConsumedRecord]]:
        """Returns the next records of each partition, `most` in all; none when there are none within the time, or no broker.

        Raises MemberFenced; KafkaFailed when another consumer is the cure.
        """
        self._ids.check()
        messages = polled(self._client, timeout_s, most)
        if self._broken is not None:
            raise self._broken
        batches: dict[int, list[ConsumedRecord]] = {}
        for message in messages:
            if (wrong := message.error()) is not None:
                check_consumer_error(wrong, self._topic, self._log_throttle)
                continue
            batches.setdefault(message.partition(), []).append(ConsumedRecord(message))
        return batches

    # --- partitions ---------------------------------------------------------------------------------------------------------

    def _assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        """Begins to read new partitions. Called by `poll`, which raises what goes wrong here.

        An exception must not leave this method: confluent-kafka turns it into one that no `except` catches, and the thread ends.
        """
        try:
            starts = self._starts(client, partitions)
            client.incremental_assign([TopicPartition(self._topic, number, offset) for number, offset in starts.items()])
        except KafkaException as error:
            self._broken = KafkaFailed(f"{self._topic} cannot be read: {reason_of(error)}")
        except Exception as error:  # noqa: BLE001
            self._broken = error
        else:
            if starts:
                self.changes.append(PartitionsAssigned(starts))

    def _starts(self, client: Any, partitions: list[TopicPartition]) -> dict[int, int]:
        committed: dict[int, int] = {}
        if self._resumes and partitions:
            committed = {one.partition: one.offset for one in client.committed(partitions, timeout=_ANSWER_S)}
        starts = {}
        for number in sorted(partition.partition for partition in partitions):
            first, end = partition_bounds(client, self._topic, number)
            offset = committed.get(number, -1)
            starts[number] = offset if first <= offset <= end else end
        return starts

    def _revoke(self, client: Any, partitions: list[TopicPartition]) -> None:
        """Notes partitions that go. Called by `poll`."""
        self.changes.append(PartitionsRevoked(frozenset(partition.partition for partition in partitions)))
        self._on_revoke()

    def partition_count(self) -> int:
        """Returns how many partitions the topic has. Blocks for seconds at most. Raises KafkaFailed."""
        try:
            return len(self._client.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic].partitions)
        except KafkaException as error:
            raise self._failures.failed(f"{self._topic} is not described", error) from error

    def known_end(self, number: int) -> int:
        """Returns the end of a partition as of its newest read record; negative when it is not known."""
        end: int = self._client.get_watermark_offsets(TopicPartition(self._topic, number), cached=True)[1]
        return end

    def skip_to_end(self, number: int) -> int:
        """Skips the rest of a partition. Returns the offset of the first record that will be read. Raises KafkaFailed."""
        _, end = partition_bounds(self._client, self._topic, number)
        try:
            self._client.seek(TopicPartition(self._topic, number, end))
        except KafkaException as error:
            raise KafkaFailed(str(reason_of(error))) from error
        return end

    # --- commits ------------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[int, int], metadata: str) -> None:
        """Commits without waiting; `on_commit` gets the outcome. Raises KafkaFailed.

        A process that is in no group commits nothing. While the group is empty Kafka accepts a commit from anybody, and that
        would not mean that the partitions are ours.
        """
        if not self._client.memberid():
            self._on_commit(offsets, CommitRefused("this process is not in the group at the moment", is_passing=True))
            return
        wanted = [TopicPartition(self._topic, number, offset, metadata) for number, offset in offsets.items()]
        try:
            self._client.commit(offsets=wanted, asynchronous=True)
        except KafkaException as error:
            raise KafkaFailed(str(reason_of(error))) from error

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        wrong = next((each for each in (error, *(one.error for one in partitions)) if each is not None), None)
        refused = None if wrong is None else CommitRefused(wrong.str(), is_passing=is_committed_later(wrong))
        self._on_commit({one.partition: one.offset for one in partitions}, refused)

    def close(self) -> None:
        """Leaves the group, if the name in it is not kept. Blocks for seconds; without a broker for longer."""
        self._client.close()
