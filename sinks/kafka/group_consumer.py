"""A member of a consumer group that reads one topic, on librdkafka. One thread calls all methods.

Partitions move one by one (cooperative rebalancing). Where a partition is read from is fixed when it comes, and said with it
(`changes`). From there on every record is read: when the log does not have one any more, the consumer fails, and its successor
begins anew.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, LogThrottle, client_config, headers_of, new_client, reason_of

_log: Final = structlog.get_logger(__name__)
_ANSWER_S: Final = 10.0
_PAUSE_S: Final = 0.1
_COMMITTED_LATER: Final = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
)


class MemberFenced(KafkaFailed):
    """Another process has joined under our `group_instance_id`."""


class CommitRefused(KafkaFailed):
    """is_passing: the group shares its partitions out, or has gone on without this member, which joins again."""

    def __init__(self, text: str, *, is_passing: bool) -> None:
        super().__init__(text)
        self.is_passing = is_passing


class Record:
    """As Kafka has it. What is not asked for is not made into Python objects: most readers pass over most of it."""

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
        """Milliseconds since 1970."""
        timestamp: int = self._message.timestamp()[1]
        return timestamp


class Assigned(NamedTuple):
    """These partitions come. starts: the offset of the first record of each that is read."""

    starts: dict[int, int]


class Revoked(NamedTuple):
    """These partitions go."""

    partitions: frozenset[int]


class GroupConsumer:
    """changes: of the assignment, oldest first; whoever follows them takes them out. Those of a poll hold for what it returns.

    resumes: start where the group has committed, else, and always if not, at the end of the log.
    on_commit: gets the offsets of each `commit` and why Kafka has not taken them, None = it has; called by `poll`.

    Raises KafkaFailed for a file or value that is of no use.
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
        on_commit: Callable[[Mapping[int, int], CommitRefused | None], None] = lambda offsets, error: None,
    ) -> None:
        self.changes: deque[Assigned | Revoked] = deque()
        self._topic = topic
        self._resumes = resumes
        self._on_commit = on_commit
        self._failures = ClientErrors()
        self._log_throttle = LogThrottle()
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
        # Nothing is passed over silently: whoever reads has promised to see every record.
        self._client: Any = new_client(Consumer, {**theirs, "auto.offset.reset": "error"})
        self._client.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def poll(self, timeout_s: float, most: int) -> dict[int, list[Record]]:
        """The next records of each partition, `most` in all; none when there are none within the time, or no broker.

        Raises MemberFenced; KafkaFailed when another consumer is the cure.
        """
        try:
            first = self._client.poll(timeout_s)
            messages = [] if first is None else [first, *self._client.consume(most - 1, 0)]
        except KafkaException as error:
            raise KafkaFailed(str(reason_of(error))) from error
        if self._broken is not None:
            raise self._broken
        batches: dict[int, list[Record]] = {}
        for message in messages:
            if (wrong := message.error()) is not None:
                self._look_at(wrong)
                continue
            batches.setdefault(message.partition(), []).append(Record(message))
        return batches

    def _look_at(self, error: KafkaError) -> None:
        code, text = error.code(), error.str()
        if code == KafkaError.FENCED_INSTANCE_ID or (code == KafkaError._FATAL and "fenced" in text):
            raise MemberFenced(text)
        if code in (KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET) or error.fatal():
            raise KafkaFailed(text)
        if self._log_throttle.is_due(code):  # a missing right or topic: it tries again by itself
            _log.warning("kafka_consumer", topic=self._topic, error=text)

    # --- partitions ---------------------------------------------------------------------------------------------------------

    def _assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        """Called by `poll`, which raises what goes wrong here.

        It may not come out of here: confluent-kafka makes something of it that no `except` catches, and the thread ends.
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
                self.changes.append(Assigned(starts))

    def _starts(self, client: Any, partitions: list[TopicPartition]) -> dict[int, int]:
        committed: dict[int, int] = {}
        if self._resumes and partitions:
            committed = {one.partition: one.offset for one in client.committed(partitions, timeout=_ANSWER_S)}
        starts = {}
        for number in sorted(partition.partition for partition in partitions):
            first, end = self._bounds(client, number)
            offset = committed.get(number, -1)
            starts[number] = offset if first <= offset <= end else end
        return starts

    def _bounds(self, client: Any, number: int) -> tuple[int, int]:
        """A partition that gets a leader at this moment, as after its creation, is given some seconds. Raises KafkaFailed."""
        deadline = time.monotonic() + _ANSWER_S
        reason = "no answer"
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                bounds: tuple[int, int] | None = client.get_watermark_offsets(TopicPartition(self._topic, number), timeout=left_s)
            except KafkaException as error:
                reason = str(reason_of(error))
                time.sleep(_PAUSE_S)
                continue
            if bounds is not None:
                return bounds
        raise KafkaFailed(f"the end of {self._topic}, partition {number}, is not known: {reason}, within {_ANSWER_S:g} s")

    def _revoke(self, client: Any, partitions: list[TopicPartition]) -> None:
        """Called by `poll`."""
        self.changes.append(Revoked(frozenset(partition.partition for partition in partitions)))

    def partition_count(self) -> int:
        """Of the topic. Blocks for seconds at most. Raises KafkaFailed."""
        try:
            return len(self._client.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic].partitions)
        except KafkaException as error:
            raise self._failures.failed(f"{self._topic} is not described", error) from error

    def known_end(self, number: int) -> int:
        """The end of a partition as it was when its newest record was read; negative when that is not known."""
        end: int = self._client.get_watermark_offsets(TopicPartition(self._topic, number), cached=True)[1]
        return end

    def skip_to_end(self, number: int) -> int:
        """Returns the offset of the first record that will be read. Raises KafkaFailed."""
        _, end = self._bounds(self._client, number)
        try:
            self._client.seek(TopicPartition(self._topic, number, end))
        except KafkaException as error:
            raise KafkaFailed(str(reason_of(error))) from error
        return end

    # --- commits ------------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[int, int], metadata: str) -> None:
        """Does not wait; `on_commit` hears of it. Who is in no group commits nothing: Kafka would take it from anybody while the
        group is empty, which would not mean that the partitions are ours. Raises KafkaFailed."""
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
        refused = None if wrong is None else CommitRefused(wrong.str(), is_passing=wrong.code() in _COMMITTED_LATER)
        self._on_commit({one.partition: one.offset for one in partitions}, refused)

    def close(self) -> None:
        """Leaves the group, if the name in it is not kept. Blocks for seconds; without a broker for longer."""
        self._client.close()
