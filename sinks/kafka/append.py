"""Appends to Kafka from an asyncio loop, and manages the producers behind it.

A producer works with threads; whoever appends runs on one asyncio loop. Confirmations cross over in batches, one wake-up of the
loop for many. All methods are called on the loop, and all callbacks run on it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import structlog
from confluent_kafka import KafkaError

from sinks.kafka.librdkafka import KafkaFailed
from sinks.kafka.partitioning import partition_of
from sinks.kafka.pending_appends import PartitionAppends, PendingAppend
from sinks.kafka.record_producer import MAX_ONE_BY_ONE, NotSent, RecordProducer
from sinks.kafka.topic_partitions import TopicPartitions
from state.errors import InflightError

Headers: TypeAlias = list[tuple[str, bytes]]
Confirmation: TypeAlias = Callable[[Exception | None], None]
"""Called once, later, on the loop: with None when all in-sync replicas have the record, else with AppendFailed."""

_log: Final = structlog.get_logger(__name__)
_RESTART_PAUSE_S: Final = 1.0
_HAND_OVER_MS: Final = 5_000
"""A record may live in its producer for so much longer than an append: in this time the next producer takes over."""
_SHORTEST_INSPECTION_S: Final = 0.02
_TIMER_STEP_S: Final = 0.001
"""uvloop's clock has whole milliseconds."""
LINGER_S: Final = 0.05
"""A record lingers for at most this time, by which the engine reads it later: short beside a micro-batch."""


class AppendFailed(InflightError):
    """Kafka did not confirm a record within its time. It is unknown if the record is in the log: do not acknowledge it."""

    action = "check the brokers and the topics' min.insync.replicas"
    """Tells an operator what to do about the error."""


class TimestampRefused(AppendFailed):
    """The clock of this machine is so far ahead of the brokers' that Kafka refuses the time of its records."""

    action = "set the clock of this machine (NTP), and run `inflight topics`: then the brokers' clock counts (LogAppendTime)"


class RecordTooLarge(AppendFailed):
    """The record will never fit: the broker's `message.max.bytes`, or the limit of this process, is smaller."""


class EventLog(Protocol):
    """Appends records; the order of records with the same key is kept."""

    def append(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers | None,
        done: Confirmation,
        *,
        may_linger: bool = False,
    ) -> None:
        """Raises nothing: a record that cannot be sent is a failed confirmation.

        Args:
            may_linger: Nobody waits for the record, so it may be sent together with the next one of its partition.
        """

    async def close(self, timeout_s: float) -> None:
        """Waits up to timeout_s for unconfirmed records, then gives them up: `done` is not called for them any more."""


class KafkaEventLog:
    """EventLog on an idempotent producer, acks=all.

    An append that was not confirmed within timeout_ms has failed. Later appends to the same partition fail with it, until the
    producer that may still write it is gone (sinks/kafka/record_producer.py): the devices concerned reconnect and send again.
    Other partitions lose nothing:
    1. They go on with that producer while a new one connects.
    2. Each moves to the new one as soon as the old one has no undecided record of it; appends to it wait meanwhile.
    3. Then the old producer is ended, and the failed partition goes on with the new one.

    A record that the producer itself gives up costs all partitions. This happens when no broker answers in time for these steps.
    The producer is ended at once, and appends fail at once until there is a new one.

    `start` raises KafkaFailed when no broker answers, and TopicMissing.

    Args:
        on_partitions_added: See TopicPartitions.
        took: Gets the seconds from each append to its confirmation, or failure, without the time for which it lingered.
        observe: Gets the time of each record of `observed_topic`, in milliseconds since 1970, and the milliseconds from its
            append to its confirmation, if the broker gives records their time there.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        linger_ms: int,
        timeout_ms: int,
        max_request_bytes: int,
        options: Mapping[str, Any],
        on_partitions_added: Callable[[], None] = lambda: None,
        took: Callable[[float], None] = lambda seconds: None,
        observed_topic: str | None = None,
        observe: Callable[[int, float], None] = lambda broker_ms, took_ms: None,
    ) -> None:
        request_timeout_ms = max(1_000, timeout_ms // 2)
        self._new_client = partial(
            RecordProducer,
            bootstrap_servers=bootstrap_servers,
            options=options,
            config={
                "linger.ms": linger_ms,
                "batch.size": 65_536,
                "message.max.bytes": max_request_bytes,
                "queue.buffering.max.messages": 1_000_000,  # more than limits.unconfirmed_bytes lets in
                "request.timeout.ms": request_timeout_ms,
                "socket.timeout.ms": request_timeout_ms,
                # One that has given a record up is of no more use: it must not come to that before we do.
                "message.timeout.ms": max(timeout_ms, request_timeout_ms) + linger_ms + _HAND_OVER_MS,
            },
        )
        self._topics = TopicPartitions(on_partitions_added)
        self._timeout_s = timeout_ms / 1_000
        self._took = took
        self._observed_topic = observed_topic
        self._observe = observe
        self._producer: RecordProducer | None = None
        self._old: RecordProducer | None = None
        self._old_failed = asyncio.Event()
        self._old_settled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._partitions: dict[tuple[str, int], PartitionAppends] = {}
        self._decided: deque[tuple[PendingAppend, RecordProducer, KafkaError | None, int | None]] = deque()
        """Answers of producers: why the record was given up, and the broker's time of it."""
        self._wake_scheduled = False
        self._inspection: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._first_lingering: deque[PendingAppend] = deque()
        """The oldest of each partition that lingers, oldest first, and some that do not any more."""
        self._pending = 0
        self._replacement: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self, topics: Iterable[str]) -> None:
        """Connects, and learns how many partitions the topics have. Call once, before `append`."""
        self._loop = asyncio.get_running_loop()
        self._producer = await self._loop.run_in_executor(None, self._connect, tuple(topics))
        self._topics.watch(lambda: self._producer)

    def check(self) -> None:
        """Raises PartitionsAdded."""
        self._topics.check()

    def _connect(self, topics: tuple[str, ...]) -> RecordProducer:
        producer = self._new_client()
        try:
            self._topics.learn(producer, topics)
        except BaseException:
            producer.abandon()
            raise
        return producer

    def partition_count(self, topic: str) -> int:
        """Returns how many partitions a topic has that was given to `start`."""
        return self._topics.count(topic)

    def append(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers | None,
        done: Confirmation,
        *,
        may_linger: bool = False,
    ) -> None:
        assert self._loop is not None
        number = partition_of(key, self._topics.count(topic))
        partition = self._partitions.get((topic, number))
        if partition is None:
            partition = self._partitions[topic, number] = PartitionAppends(topic=topic, number=number, producer=self._producer)
        append = PendingAppend(partition, key, value, headers, done, self._loop.time() + self._timeout_s)
        if not self._pending:
            self._idle.clear()
        self._pending += 1
        if self._inspection is None:
            self._inspect_later()
        if partition.producer is not self._producer and not partition.sent and not partition.is_suspended:
            partition.producer = self._producer
        if self._producer is None or partition.is_suspended:
            self._refuse(append, AppendFailed("the connection to Kafka is being set up anew after a failure"))
        elif partition.is_busy or partition.producer is not self._producer:
            partition.hold_lingering()
            partition.held.append(append)
        elif may_linger:
            if not partition.lingering:
                self._first_lingering.append(append)
            partition.lingering.append(append)
            if self._linger_timer is None:
                self._linger_timer = self._loop.call_later(LINGER_S, self._send_due_lingering)
        elif partition.lingering:
            self._send_with_lingering(append)
        else:
            self._send_single(append)

    def _send_with_lingering(self, append: PendingAppend) -> None:
        """Sends a record first, and then what lingers: a broker answers one request of a connection after the other.

        Behind what lingers with the same key it stays in its order.
        """
        partition = append.partition
        if any(one.key == append.key for one in partition.lingering):
            partition.lingering.append(append)
        else:
            self._send_single(append)
        self._send_lingering(partition)

    def _send_due_lingering(self) -> None:
        """Sends what no record of its partition has followed for so long."""
        assert self._loop is not None
        self._linger_timer = None
        while self._first_lingering:
            append = self._first_lingering[0]
            lingering = append.partition.lingering
            is_lingering = bool(lingering) and lingering[0] is append  # it may have been sent with a later record
            left_s = LINGER_S - self._age_s(append)
            if is_lingering and left_s > _TIMER_STEP_S:
                self._linger_timer = self._loop.call_later(left_s, self._send_due_lingering)
                return
            self._first_lingering.popleft()
            if is_lingering:
                self._send_lingering(append.partition)

    def _send_all_lingering(self) -> None:
        self._linger_timer = None
        for partition in self._partitions.values():
            if partition.lingering:
                self._send_lingering(partition)

    def _send_lingering(self, partition: PartitionAppends) -> None:
        """Sends those that linger one by one, or holds them if they are too many for that."""
        assert self._loop is not None
        lingering, deadline_s = partition.lingering, self._loop.time() + self._timeout_s
        for append in lingering:
            append.deadline_s = deadline_s
        if partition.producer is self._producer is not None and len(partition.sent) + len(lingering) <= MAX_ONE_BY_ONE:
            while lingering:
                self._send_single(lingering.popleft())
        else:
            partition.hold_lingering()
            self._move(partition)

    def _send_single(self, append: PendingAppend) -> None:
        partition = append.partition
        self._send(append, partition.producer, in_group=bool(partition.sent) and partition.is_group)

    def _send(self, append: PendingAppend, producer: RecordProducer, *, in_group: bool) -> None:
        partition = append.partition
        partition.is_group = in_group
        partition.sent[append] = None
        try:
            producer.send(
                partition.topic,
                partition.number,
                key=append.key,
                value=append.value,
                headers=append.headers,
                answer=partial(self._answered, producer, append),
                in_group=in_group,
            )
        except NotSent as error:
            del partition.sent[append]
            if producer.has_given_up:
                self._failed(producer)
            self._refuse(append, _failure(error.error, str(error)))

    def _refuse(self, append: PendingAppend, error: AppendFailed) -> None:
        assert self._loop is not None
        self._loop.call_soon(self._tell, append, error)

    def _answered(
        self, producer: RecordProducer, append: PendingAppend, error: KafkaError | None, broker_ms: int | None, offset: int
    ) -> None:
        """Runs on the producer's thread. One wake-up of the loop serves every confirmation of a produce response."""
        self._decided.append((append, producer, error, broker_ms))
        if not self._wake_scheduled and self._loop is not None:
            self._wake_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._wake_scheduled = False  # before the queue is emptied: a confirmation that comes meanwhile wakes us once more
        decided, observed_topic = self._decided, self._observed_topic
        while decided:
            append, producer, error, broker_ms = decided.popleft()
            partition = append.partition
            if error is not None:
                self._failed(producer)
            if append not in partition.sent:
                continue  # it was too old, and has failed
            del partition.sent[append]
            if error is None:
                if partition.topic == observed_topic and broker_ms is not None:
                    self._observe(broker_ms, 1_000 * self._age_s(append))
                self._tell(append, None)
            else:
                self._tell(append, _failure(error, error.str()))
                self._fail_held(partition)
            if partition.held or partition.producer is not self._producer:
                self._move(partition)
        self._check_old_settled()

    def _fail_held(self, partition: PartitionAppends) -> None:
        """Fails what is held: nothing gets into the log behind a record that is missing there."""
        partition.hold_lingering()
        held, partition.held = partition.held, deque()
        for append in held:
            self._tell(append, AppendFailed("a record before it was not taken"))

    def _tell(self, append: PendingAppend, error: Exception | None) -> None:
        assert self._loop is not None
        self._pending -= 1
        self._took(self._age_s(append))
        append.done(error)
        if not self._pending:
            self._idle.set()

    def _age_s(self, append: PendingAppend) -> float:
        assert self._loop is not None
        return self._loop.time() - append.deadline_s + self._timeout_s

    # --- too old ------------------------------------------------------------------------------------------------------------

    def _inspect_later(self) -> None:
        assert self._loop is not None
        self._inspection = self._loop.call_later(max(_SHORTEST_INSPECTION_S, self._timeout_s / 20), self._inspect_deadlines)

    def _inspect_deadlines(self) -> None:
        assert self._loop is not None
        self._inspection = None
        self._drain()  # this process may have been stopped: a confirmation that is here already is not late
        now_s = self._loop.time()
        for partition in list(self._partitions.values()):
            deadline_s = partition.oldest_deadline_s()
            if deadline_s is not None and deadline_s <= now_s and not partition.is_suspended:
                self._suspend(partition)
        if self._pending:
            self._inspect_later()

    def _suspend(self, partition: PartitionAppends) -> None:
        partition.is_suspended = True
        late = AppendFailed(f"{partition.topic}, partition {partition.number}: not confirmed within {self._timeout_s:g} s")
        _log.warning("partition_silent", topic=partition.topic, partition=partition.number, timeout_s=self._timeout_s)
        partition.hold_lingering()
        for append in partition.pop_all():
            self._tell(append, late)
        if partition.producer is self._producer:
            self._replace_soon(self._producer)
        self._check_old_settled()

    # --- the next producer --------------------------------------------------------------------------------------------------

    def _failed(self, producer: RecordProducer) -> None:
        """Replaces a producer that has given up a record, and with it everything."""
        if producer is self._producer:
            self._replace_soon(producer)
            self._producer = None
        if producer is self._old:
            self._old_failed.set()

    def _replace_soon(self, producer: RecordProducer | None) -> None:
        """Does nothing while another producer is being replaced: `_replace` checks again when it is done."""
        if self._replacement is None and self._loop is not None and producer is not None:
            self._old = producer
            self._old_failed.clear()
            self._old_settled.clear()
            self._replacement = self._loop.create_task(self._replace(producer))

    async def _replace(self, old: RecordProducer) -> None:
        loop = asyncio.get_running_loop()
        connecting: asyncio.Task[RecordProducer] = loop.create_task(self._new_producer())
        failing: asyncio.Task[Any] = loop.create_task(self._old_failed.wait())
        waiting = {connecting, failing}
        is_used = False
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # step 1
            if not failing.done():
                is_used = True
                self._producer = connecting.result()
                self._old_settled.clear()
                self._move_all()
                self._check_old_settled()
                settled = loop.create_task(self._old_settled.wait())
                waiting.add(settled)
                await asyncio.wait({settled, failing}, return_when=asyncio.FIRST_COMPLETED)  # step 2
            await loop.run_in_executor(None, old.abandon)  # step 3
            self._drain()
            new = await connecting
        finally:
            for task in waiting:
                task.cancel()
        self._old = None
        has_failed = is_used and self._producer is None
        if not has_failed:
            self._producer = new
        for partition in list(self._partitions.values()):
            if partition.producer is old:
                self._leave(partition)
        self._move_all()
        self._replacement = None
        if has_failed or any(partition.is_suspended for partition in self._partitions.values()):
            self._replace_soon(new)
        if has_failed:
            self._old_failed.set()

    def _leave(self, partition: PartitionAppends) -> None:
        """Releases a partition whose producer is gone. That producer has failed its records, unless its thread hangs."""
        partition.is_suspended = False
        hanging, partition.sent = list(partition.sent), {}
        for append in hanging:
            self._tell(append, AppendFailed("the connection to Kafka was given up"))

    async def _new_producer(self) -> RecordProducer:
        """Connects a producer; tries until a broker answers."""
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(None, self._connect_again)
            except KafkaFailed as error:
                _log.warning("kafka_unreachable", error=str(error), next_try_s=_RESTART_PAUSE_S)
                await asyncio.sleep(_RESTART_PAUSE_S)

    def _connect_again(self) -> RecordProducer:
        """Connects a producer, and blocks until a broker has answered: records that are sent before would only wait in it."""
        producer = self._new_client()
        try:
            self._topics.ask(producer)
        except BaseException:
            producer.abandon()
            raise
        return producer

    def _move_all(self) -> None:
        for partition in list(self._partitions.values()):
            self._move(partition)

    def _move(self, partition: PartitionAppends) -> None:
        """Sends what is held to the current producer, if nothing of the partition is undecided."""
        if partition.sent or partition.is_suspended:
            return
        partition.producer = self._producer
        while partition.held and not partition.sent:
            group = partition.pop_group()
            for append in group:
                if partition.producer is None:
                    self._refuse(append, AppendFailed("the connection to Kafka has failed"))
                else:
                    self._send(append, partition.producer, in_group=len(group) > MAX_ONE_BY_ONE)

    def _check_old_settled(self) -> None:
        if self._old is not None and not any(
            partition.producer is self._old and partition.sent and not partition.is_suspended
            for partition in self._partitions.values()
        ):
            self._old_settled.set()

    async def close(self, timeout_s: float) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._send_all_lingering()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            _log.warning("records_unconfirmed_at_close", count=self._pending)
        if self._replacement is not None:
            self._replacement.cancel()
        self._topics.stop()
        if self._inspection is not None:
            self._inspection.cancel()
        producer, old = self._producer, self._old
        self._producer = self._old = None
        loop = asyncio.get_running_loop()
        if old is not None:
            await loop.run_in_executor(None, old.abandon)
        if producer is not None and producer is not old:
            await loop.run_in_executor(None, producer.close)
        self._drain()


_KINDS: Final[dict[int | None, type[AppendFailed]]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: RecordTooLarge,
    KafkaError.INVALID_TIMESTAMP: TimestampRefused,
}


def _failure(error: KafkaError | None, text: str) -> AppendFailed:
    return _KINDS.get(None if error is None else error.code(), AppendFailed)(text)
