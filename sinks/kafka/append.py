"""Appending to Kafka from an asyncio loop, and kafka-python's producer behind it.

kafka-python works with threads; whoever appends lives on one asyncio loop. Confirmations cross over in batches, one wake-up of
the loop for many. All methods are called on the loop, all callbacks run on it.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import structlog
from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError

from sinks.kafka.partitioning import partition_of
from sinks.kafka.producers import abandon, close_quietly
from state.errors import InflightError

Headers: TypeAlias = list[tuple[str, bytes]]
Confirmation: TypeAlias = Callable[[Exception | None], None]
"""Called once, later, on the loop: with None when all in-sync replicas have the record, else with AppendFailed."""

_log: Final = structlog.get_logger(__name__)
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
        """Raises nothing: a record that cannot be sent is a failed confirmation."""

    async def close(self, timeout_s: float) -> None:
        """Wait up to timeout_s for what is unconfirmed, then let go: `done` is not called any more for what is left."""


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
        """A new producer in place of one that has failed; tries until a broker answers."""
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
            await asyncio.get_running_loop().run_in_executor(None, close_quietly, producer)
        self._drain()


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
