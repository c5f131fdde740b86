"""Iterates over the records of a topic as a member of a consumer group: the base of `Uplink` and `Receipts`.

The offset of a record is stored after the body of the loop has ended for it, and librdkafka commits stored offsets every second,
before a partition moves, and at `close`. So a record is given out at least once, whatever ends the process.

A topic that was deleted and created again is read from its beginning by another consumer. Kafka deletes the commits of a topic
with it, and a commit that comes later is of the old one.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, Consumer, KafkaException, TopicPartition

from inflight.keywords import checked
from inflight.readers.recent_ids import RecentIds
from inflight.running_up import kafka_of_running_up
from sinks.kafka.first_contact import first_contact
from sinks.kafka.group_consumer import check_consumer_error, is_committed_later
from sinks.kafka.librdkafka import ClientErrors, ErrorLogThrottle, KafkaFailed, client_config, new_client, reason_of
from sinks.kafka.security.librdkafka_client import from_python_names
from sinks.kafka.topic_ids import TopicIdWatch, TopicRecreated
from sinks.library_log import LibraryLogger
from state.errors import InflightError, UnreadableRecord

T = TypeVar("T")
Begin = Literal["earliest", "latest"]

_POLL_S: Final = 0.5
_COMMIT_INTERVAL_MS: Final = 1_000
_SESSION_MS: Final = 10_000
"""The group gives the partitions of a process that has died to others after this time."""
_LAST_COMMIT_S: Final = 5.0
_REJOIN_S: Final = 0.1
_SILENT_S: Final = 1.0

_log: Final = LibraryLogger(__name__)


class ReaderClosed(InflightError):
    """A closed reader was asked for a record. Make a new one."""


class GroupStream(ABC, Generic[T]):
    """Gives out the records of one topic, one after the other. One thread, or one task, iterates; any may call `stop`.

    Subclasses say which values a Kafka record has, and how a copy is recognised.
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str | None,
        *,
        group: str,
        begin: Begin,
        kafka_options: Mapping[str, Any],
    ) -> None:
        self._topic = topic
        self._errors = ClientErrors()
        self._log_throttle = ErrorLogThrottle()
        self._recent = RecentIds()
        self._given: list[T] = []
        """The values for which the body of the loop has not ended."""
        self._left: deque[T] = deque()
        """Further values of the newest record."""
        self._read: dict[int, int] = {}
        """By partition, the offset to be stored when the body has ended and nothing is left."""
        self._fetched: Any = None
        self._fetching: Future[None] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._is_stopping = False
        self._is_closed = False
        config = {
            "group.id": group,
            "session.timeout.ms": _SESSION_MS,
            "auto.offset.reset": begin,
            "enable.auto.commit": True,
            "auto.commit.interval.ms": _COMMIT_INTERVAL_MS,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "cooperative-sticky",
            "fetch.error.backoff.ms": 100,
            "queued.max.messages.kbytes": 16_384,
        }
        servers, options = bootstrap_servers or kafka_of_running_up(), from_python_names(kafka_options)
        self._servers = servers
        self._silent_since_s: float | None = None
        """When the first fetch began; None = not yet, or there was an answer, or it was said that there is none."""
        self._has_begun = False
        self._config = client_config(servers, options, self._errors, config)
        self._client: Any = new_client(Consumer, self._config)
        self._client.subscribe([topic])
        self._ids = TopicIdWatch([topic], servers, options)

    @abstractmethod
    def _values_in(self, message: Any) -> Iterable[T]:
        """Returns the values of a Kafka record that the loop gets. Raises UnreadableRecord; ValueError for a foreign record."""

    @abstractmethod
    def _identity(self, value: T) -> Hashable:
        """Returns what copies of the value have in common."""

    def stop(self) -> None:
        """Ends the loop after the record at hand. Any thread, a signal handler and the body of the loop may call it."""
        self._is_stopping = True

    def close(self) -> None:
        """Commits what was handled, and leaves the group. Blocks for seconds at most. May be called twice."""
        self.stop()
        if self._is_closed:
            return
        self._is_closed = True
        if self._executor is not None:
            self._executor.shutdown()
        self._commit_stored()
        self._client.close()

    def _commit_stored(self) -> None:
        """Commits what is stored, also while the group rebalances. librdkafka would try once, and others would read it again."""
        ends_s = time.monotonic() + _LAST_COMMIT_S
        while True:
            try:
                self._client.commit(asynchronous=False)
                return
            except KafkaException as error:
                if not is_committed_later(error.args[0]) or time.monotonic() >= ends_s:
                    return  # nothing is stored, or Kafka does not answer
            with suppress(KafkaException):
                self._client.poll(_REJOIN_S)  # takes part in the rebalance; what it returns is not stored

    # --- for, async for --------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        self._give_again()
        return self

    def __next__(self) -> T:
        self._store_handled()
        while not self._is_stopping:
            if (value := self._next_value()) is not None:
                return value
            self._fetch(_POLL_S)
        self._check_open()
        raise StopIteration

    @checked()
    def batches(self, most: int = 500, *, within_s: float = 1.0) -> Iterator[list[T]]:
        """Iterates over lists of values, for bodies that work on many at once. Offsets are stored after the body, as in `for`.

        Args:
            most: Values of a list; the last Kafka record may bring more.
            within_s: Seconds after which a list is given out as it is.
        """
        self._give_again()
        while not self._is_stopping:
            ends_s = time.monotonic() + within_s
            while self._left or (len(self._given) < most and time.monotonic() < ends_s and not self._is_stopping):
                if self._next_value() is None:
                    self._fetch(min(_POLL_S, max(0.0, ends_s - time.monotonic())))
            if self._given:
                yield list(self._given)
            self._store_handled()
        self._check_open()

    def __aiter__(self) -> Self:
        self._give_again()
        return self

    async def __anext__(self) -> T:
        self._store_handled()
        while not self._is_stopping:
            if self._fetching is None:
                if (value := self._next_value()) is not None:
                    return value
                self._fetch(0)
                if self._fetched is not None:
                    continue
                self._executor = self._executor or ThreadPoolExecutor(1, thread_name_prefix="inflight-reader")
                self._fetching = self._executor.submit(self._fetch, _POLL_S)
            # A task that is cancelled here must not lose what the thread fetches: the next call finds it.
            await asyncio.shield(asyncio.wrap_future(self._fetching))
            self._fetching = None
        self._check_open()
        raise StopAsyncIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.close)

    # --- one record ------------------------------------------------------------------------------------------------------------

    def _give_again(self) -> None:
        """Puts back what a loop has left unhandled, so that the next loop begins with it."""
        self._left.extendleft(reversed(self._given))
        self._given.clear()

    def _store_handled(self) -> None:
        """Stores offsets when the body has ended, and every value of the newest record was given out."""
        self._given.clear()
        if self._left:
            return
        for number, offset in self._read.items():
            try:
                self._client.store_offsets(offsets=[TopicPartition(self._topic, number, offset)])
            except KafkaException as error:  # the partition has moved: its new owner reads the record again
                _log.debug("offset_not_stored", topic=self._topic, error=str(reason_of(error)))
        self._read.clear()

    def _next_value(self) -> T | None:
        """Returns the next value of what was fetched; None = there is none left."""
        if not self._left and self._fetched is not None:
            message, self._fetched = self._fetched, None
            self._left.extend(value for value in self._readable(message) if self._recent.is_new(self._identity(value)))
            self._read[message.partition()] = message.offset() + 1
            if not self._given:
                self._store_handled()
        if not self._left:
            return None
        self._given.append(self._left.popleft())
        return self._given[-1]

    def _readable(self, message: Any) -> Iterable[T]:
        try:
            return self._values_in(message)
        except (UnreadableRecord, ValueError) as error:  # a foreign record: nobody can read it, and it must not stop the loop
            where = f"{self._topic}-{message.partition()}-{message.offset()}"
            _log.warning("record_skipped", record=where, error=str(error))
            return ()

    def _fetch(self, timeout_s: float) -> None:
        """Fetches one record, if there is one within the time. Raises KafkaFailed when a new reader is the cure."""
        self._check_open()
        try:
            self._ids.check()
        except TopicRecreated:
            self._begin_anew()
        try:
            message = self._client.poll(timeout_s)
        except KafkaException as error:
            raise self._errors.failed(self._topic, error) from error
        if message is None:
            self._say_if_kafka_is_away()
            if self._errors.is_login_refused:
                raise KafkaFailed(f"{self._topic} cannot be read: Kafka refuses the login. Check kafka_options")
        elif (wrong := message.error()) is not None:
            check_consumer_error(wrong, self._topic, self._log_throttle)
        else:
            self._has_begun, self._fetched = True, message

    def _say_if_kafka_is_away(self) -> None:
        """Warns once if nothing listens at the addresses some seconds after the first fetch. The reader goes on trying."""
        if not self._has_begun:
            self._has_begun, self._silent_since_s = True, time.monotonic()
        if self._silent_since_s is None or time.monotonic() - self._silent_since_s < _SILENT_S:
            return
        self._silent_since_s = None
        if (why := first_contact(self._servers)) is not None:
            action = "this reader goes on trying; check the address, and that Kafka runs"
            _log.warning("kafka_does_not_answer", topic=self._topic, error=why, action=action)

    def _begin_anew(self) -> None:
        """Reads the topic from its beginning. Values that the loop has, and those left of their record, stay."""
        self._read.clear()
        self._client.close()
        self._client = new_client(Consumer, {**self._config, "auto.offset.reset": "earliest"})
        begun: set[int] = set()

        def begin(client: Any, partitions: list[TopicPartition]) -> None:
            """Begins a partition that comes for the first time with its oldest record, and another one where it is committed."""
            for one in partitions:
                one.offset = OFFSET_STORED if one.partition in begun else OFFSET_BEGINNING
            begun.update(one.partition for one in partitions)
            client.incremental_assign(partitions)

        self._client.subscribe([self._topic], on_assign=begin)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ReaderClosed(f"this reader of {self._topic} is closed: make a new one")
