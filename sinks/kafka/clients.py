"""The two sides of Kafka that a gateway or a bridge needs, as small ports, and kafka-python behind them.

kafka-python works with threads; whoever uses these classes lives on one asyncio loop. Everything crosses over in batches: one
wake-up of the loop for many confirmations or many records. All methods are called on the loop, all callbacks run on the loop.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, Protocol, TypeAlias

import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError
from kafka.partitioner.default import murmur2
from kafka.structs import OffsetAndMetadata

from sinks.kafka.producers import abandon
from state.errors import InflightError

Headers: TypeAlias = list[tuple[str, bytes]]
Confirmation: TypeAlias = Callable[[Exception | None], None]

_log: Final = structlog.get_logger(__name__)
_KEYS_REMEMBERED: Final = 65_536
_COMMIT_INTERVAL_S: Final = 1.0
_BATCHES_AHEAD: Final = 4
_POLL_TIMEOUT_MS: Final = 200
_METADATA_TIMEOUT_S: Final = 5.0
_METADATA_PAUSE_S: Final = 0.2
_RESTART_PAUSE_S: Final = 1.0


class AppendFailed(InflightError):
    """Kafka did not confirm a record within its time. Whether it is in the log is unknown: do not answer for it."""


class RecordTooLarge(AppendFailed):
    """The record will never fit: the broker's `message.max.bytes` or the producer's `max_request_size` is smaller."""


class EventLog(Protocol):
    """Appends records; the order of records with the same key is kept."""

    def append(self, topic: str, key: bytes, value: bytes, headers: Headers | None, done: Confirmation) -> None:
        """done: called once, later, on the loop: with None when all in-sync replicas have the record, else with AppendFailed."""

    async def close(self, timeout_s: float) -> None:
        """Wait up to timeout_s for what is unconfirmed, then let go: `done` is not called any more for what is left."""


class CommandListener(Protocol):
    """Who carries commands out."""

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        """Every record written to these from now on will come."""

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        """Somebody else reads these now."""

    def commands(self, partition: int, values: list[bytes]) -> None:
        """The next records, in order. They count as carried out when this returns."""


class CommandTail(Protocol):
    """Reads the commands topic as a member of a consumer group."""

    def start(self, listener: CommandListener) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class KafkaEventLog:
    """EventLog on an idempotent producer, acks=all. After a failed append the producer is replaced (sinks/kafka/producers.py);
    what is appended meanwhile fails at once, so the devices concerned reconnect and say it again.

    Raises from `start`: kafka.errors.KafkaError when no broker answers, AppendFailed when a topic does not exist.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        linger_ms: int,
        timeout_ms: int,
        max_request_bytes: int,
        options: Mapping[str, Any],
    ) -> None:
        self._config: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "acks": "all",
            "enable_idempotence": True,
            "linger_ms": linger_ms,
            "batch_size": 65_536,
            "max_request_size": max_request_bytes,
            "request_timeout_ms": max(1_000, timeout_ms // 2),
            "delivery_timeout_ms": max(1_000, timeout_ms // 2) + linger_ms + max(0, timeout_ms - timeout_ms // 2),
            # The topics are known from `start`: a send never waits for metadata on the loop.
            "max_block_ms": 200,
            "allow_auto_create_topics": False,
            "reconnect_backoff_max_ms": 1_000,
            "metrics_enabled": False,
            **options,
        }
        self._producer: KafkaProducer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._partition_counts: dict[str, int] = {}
        self._confirmed: deque[tuple[Confirmation, Exception | None]] = deque()
        self._wake_scheduled = False
        self._pending = 0
        self._broken = False
        self._replacement: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self, topics: Iterable[str]) -> None:
        """Connect and learn about the topics. Call once, before `append`."""
        self._loop = asyncio.get_running_loop()
        await self._loop.run_in_executor(None, self._connect, tuple(topics))

    def _connect(self, topics: tuple[str, ...]) -> None:
        producer = KafkaProducer(**self._config)
        try:
            self._partition_counts = {topic: _partition_count(producer, topic) for topic in topics}
        except BaseException:
            producer.close(timeout=0)
            raise
        self._producer = producer

    def partition_count(self, topic: str) -> int:
        """Of a topic that was given to `start`."""
        return self._partition_counts[topic]

    def append(self, topic: str, key: bytes, value: bytes, headers: Headers | None, done: Confirmation) -> None:
        self._pending += 1
        self._idle.clear()
        producer = self._producer
        if producer is None:
            self._settle(done, KafkaConnectionError("the connection to Kafka is being set up anew after a failure"))
            return
        try:
            future = producer.send(
                topic, value=value, key=key, headers=headers, partition=partition_of(key, self._partition_counts[topic])
            )
        except (KafkaError, AssertionError, ValueError) as error:
            self._settle(done, error)
            return
        future.add_both(self._sent, producer, done)

    def _sent(self, producer: Any, done: Confirmation, outcome: object) -> None:
        """On the producer's thread."""
        if isinstance(outcome, BaseException) and producer is self._producer:
            self._broken = True
        self._settle(done, outcome)

    def _settle(self, done: Confirmation, outcome: object) -> None:
        """On the producer's thread, mostly. One wake-up of the loop serves every confirmation of a produce response."""
        failure: Exception | None = None
        if isinstance(outcome, BaseException):
            kind = RecordTooLarge if isinstance(outcome, MessageSizeTooLargeError) else AppendFailed
            failure = kind(f"{type(outcome).__name__}: {outcome}")
        self._confirmed.append((done, failure))
        if not self._wake_scheduled and self._loop is not None:
            self._wake_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._wake_scheduled = False  # before the queue is emptied: a confirmation that comes meanwhile wakes us once more
        confirmed = self._confirmed
        while confirmed:
            done, error = confirmed.popleft()
            self._pending -= 1
            done(error)
        if not self._pending:
            self._idle.set()
        if self._broken and self._producer is not None and self._loop is not None:
            self._broken = False
            old, self._producer = self._producer, None
            self._replacement = self._loop.create_task(self._replace(old))

    async def _replace(self, old: Any) -> None:
        """A new session with Kafka in place of one that has failed; tries until a broker answers."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, abandon, old)
        while self._producer is None:
            try:
                self._producer = await loop.run_in_executor(None, partial(KafkaProducer, **self._config))
            except KafkaError as error:
                _log.warning("kafka_unreachable", error=repr(error), next_try_s=_RESTART_PAUSE_S)
                await asyncio.sleep(_RESTART_PAUSE_S)

    async def close(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            _log.warning("records_unconfirmed_at_close", count=self._pending)
        if self._replacement is not None:
            self._replacement.cancel()
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.get_running_loop().run_in_executor(None, _close, producer)
        self._drain()


def _close(producer: Any) -> None:
    """Blocks for a second at most. Without a broker the producer cannot flush and says so by an exception: nothing is lost by
    that but records that nobody was told were safe.
    """
    with contextlib.suppress(KafkaError):
        producer.close(timeout=1.0)


def _partition_count(producer: Any, topic: str) -> int:
    """Blocks. A topic that was created a moment ago is given some seconds."""
    deadline = time.monotonic() + _METADATA_TIMEOUT_S
    while True:
        try:
            if partitions := producer.partitions_for(topic):
                return len(partitions)
        except KafkaError as error:
            cause = error
        else:
            cause = None
        if time.monotonic() > deadline:
            raise AppendFailed(
                f"topic {topic} does not exist, or may not be described; create it with `inflight topics` and start again"
            ) from cause
        time.sleep(_METADATA_PAUSE_S)


@lru_cache(maxsize=_KEYS_REMEMBERED)
def partition_of(key: bytes, partitions: int) -> int:
    """As Kafka's own default partitioner; remembered, because the hash in Python costs more than the rest of a send."""
    hashed: int = murmur2(key) & 0x7FFFFFFF
    return hashed % partitions


class KafkaCommandTail:
    """CommandTail on a consumer in a thread of its own.

    A partition is announced only when its start position is fixed: what the group has committed, else the end of the log.
    Offsets of what the listener has carried out are committed about once a second. Partitions move one by one (cooperative
    rebalancing): a new gateway costs only the devices of the partitions that it gets their connection.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        topic: str,
        group_id: str,
        group_instance_id: str | None,
        session_timeout_ms: int,
        fetch_max_wait_ms: int,
        options: Mapping[str, Any],
    ) -> None:
        self._topic = topic
        self._config: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "group_id": group_id,
            "group_instance_id": group_instance_id,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": max(100, session_timeout_ms // 4),
            "fetch_max_wait_ms": fetch_max_wait_ms,
            "fetch_min_bytes": 1,
            "auto_offset_reset": "latest",
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "max_poll_records": 500,
            "reconnect_backoff_max_ms": 1_000,
            "metrics_enabled": False,
            "partition_assignment_strategy": (CooperativeStickyAssignor,),
            **options,
        }
        self._stopping = threading.Event()
        self._room = threading.Semaphore(_BATCHES_AHEAD)
        self._changes: deque[tuple[bool, frozenset[int]]] = deque()
        self._carried_out: dict[int, int] = {}
        self._owned: set[int] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: CommandListener | None = None

    def start(self, listener: CommandListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="inflight-commands", daemon=True)
        self._thread.start()

    async def close(self, timeout_s: float) -> None:
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, thread.join, timeout_s)

    # --- on the consumer's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._consume()
            except Exception as error:  # noqa: BLE001 - whatever it was, a new consumer is the cure
                _log.warning("commands_consumer_failed", error=repr(error), action="a new consumer starts in a second")
            if self._owned:
                self._on_loop(self._revoked, frozenset(self._owned))
                self._owned.clear()
            self._changes.clear()
            self._stopping.wait(_RESTART_PAUSE_S if not self._stopping.is_set() else 0)

    def _consume(self) -> None:
        consumer = KafkaConsumer(**self._config)
        try:
            consumer.subscribe([self._topic], listener=_Rebalance(self._topic, self._changes))
            next_commit = time.monotonic() + _COMMIT_INTERVAL_S
            committed: dict[int, int] = {}
            while not self._stopping.is_set():
                batches = consumer.poll(timeout_ms=_POLL_TIMEOUT_MS)
                self._follow_assignment(consumer)
                for partition, records in batches.items():
                    if partition.partition in self._owned and not self._hand_over(partition.partition, records):
                        return
                if time.monotonic() >= next_commit:
                    next_commit = time.monotonic() + _COMMIT_INTERVAL_S
                    self._commit(consumer, committed)
            self._commit_and_wait(consumer)
        finally:
            consumer.close(autocommit=False, timeout_ms=2_000)

    def _follow_assignment(self, consumer: Any) -> None:
        while self._changes:
            is_assignment, partitions = self._changes.popleft()
            if is_assignment:
                for partition in partitions:
                    # Resolves and fixes the start, so that a connection that chooses the partition misses no command.
                    self._carried_out[partition] = consumer.position(TopicPartition(self._topic, partition), timeout_ms=10_000)
                self._owned |= partitions
                self._on_loop(self._assigned, partitions)
            else:
                self._owned -= partitions
                self._on_loop(self._revoked, partitions)

    def _hand_over(self, partition: int, records: list[Any]) -> bool:
        """False: stopping."""
        while not self._room.acquire(timeout=0.2):
            if self._stopping.is_set():
                return False
        values = [record.value for record in records if record.value is not None]
        self._on_loop(self._deliver, partition, values, records[-1].offset + 1)
        return True

    def _commit(self, consumer: Any, committed: dict[int, int]) -> None:
        """Does not wait: commands must not. One that fails is covered by the next."""
        offsets = {
            partition: offset
            for partition, offset in self._carried_out.copy().items()
            if partition in self._owned and committed.get(partition) != offset
        }
        if not offsets:
            return

        def committed_or_not(_offsets: object, outcome: object) -> None:
            if isinstance(outcome, BaseException):
                _log.debug("commit_failed", error=repr(outcome))
            else:
                committed.update(offsets)

        consumer.commit_async(
            {TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()},
            callback=committed_or_not,
        )

    def _commit_and_wait(self, consumer: Any) -> None:
        offsets = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in self._carried_out.copy().items()
            if partition in self._owned
        }
        if offsets:
            with contextlib.suppress(KafkaError):  # they are read again, and known by their sequence numbers or answered
                consumer.commit(offsets, timeout_ms=1_000)

    def _on_loop(self, method: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(method, *args)
        except RuntimeError:
            self._stopping.set()  # the loop is closed

    # --- on the loop --------------------------------------------------------------------------------------------------------

    def _assigned(self, partitions: frozenset[int]) -> None:
        assert self._listener is not None
        self._listener.partitions_assigned(partitions)

    def _revoked(self, partitions: frozenset[int]) -> None:
        assert self._listener is not None
        self._listener.partitions_revoked(partitions)

    def _deliver(self, partition: int, values: list[bytes], next_offset: int) -> None:
        assert self._listener is not None
        try:
            self._listener.commands(partition, values)
            self._carried_out[partition] = next_offset
        finally:
            self._room.release()


class _Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]
    """Only takes notes: it runs on the consumer's I/O loop, which must not wait."""

    def __init__(self, topic: str, changes: deque[tuple[bool, frozenset[int]]]) -> None:
        self._topic = topic
        self._changes = changes

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._note(True, assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._note(False, revoked)

    def _note(self, is_assignment: bool, partitions: Iterable[TopicPartition]) -> None:
        numbers = frozenset(partition.partition for partition in partitions if partition.topic == self._topic)
        if numbers:
            self._changes.append((is_assignment, numbers))
