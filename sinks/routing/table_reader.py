"""Follows `inflight.subscriptions` and `inflight.retained` into the tables of a process, in a thread of its own.

The reader is in no consumer group: every process reads all partitions, from the beginning, and then as records come. It knows how
far it is (`wait_for`). After a failure a new consumer goes on where the last one was. If the log does not have that offset any
more, or a topic was deleted and created again, the tables are empty again and the topics are read from the beginning. After
`subscriptions` was recreated they are complete when an engine has written the lists of all sessions: it alone has them.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from sinks.garbage import freeze_tables
from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, ErrorLogThrottle, KafkaFailed, client_config, headers_of, new_client
from sinks.kafka.topic_ids import TopicIdWatch, TopicRecreated
from sinks.routing.log_ends import END, Partition, log_offsets
from sinks.routing.metrics import MatcherCounters
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from state.errors import UnreadableRecord
from state.model import ClientId

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.2
_MOST_RECORDS: Final = 500
"""Records that are applied in one go, while the tables are locked."""
_ANSWER_S: Final = 10.0
_RESTART_PAUSE_S: Final = 1.0
_CHECK_S: Final = 30.0
_CLOCKS_DIFFER_MS: Final = 100
"""NTP keeps brokers nearer together than this."""


class TableListener(Protocol):
    """A process that holds connections."""

    def lower_list_read(self, client_id: ClientId) -> None:
        """A lower list of this client stands behind a higher one in the log. Called on the reader's thread.

        If the client is connected here, append its own list once more: compaction keeps the last record, not the highest.
        """


class TableReader:
    """Fills tables from Kafka.

    Args:
        host: Settings of the process.
        now_ms: Returns the brokers' time, in ms since 1970.

    Attributes:
        is_complete: True once the reader has reached the ends that both topics had when it started. Any thread may ask.
    """

    def __init__(
        self,
        tables: RoutingTables,
        settings: RoutingSettings,
        host: HostSettings,
        counters: MatcherCounters,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self.is_complete = False
        self._tables = tables
        self._topics = (settings.subscriptions_topic, settings.retained_topic)
        self._group_id = settings.group_id
        self._config = partial(client_config, host.bootstrap_servers, host.kafka_options)
        self._new_watch = partial(TopicIdWatch, self._topics, host.bootstrap_servers, host.kafka_options)
        self._awaits_engine = False
        """`subscriptions` was recreated, and no engine has written the lists of all sessions since."""
        self._counters = counters
        self._now_ms = now_ms
        self._listener: TableListener | None = None
        self._positions: dict[Partition, int] = {}
        """The offset of the next record of each partition."""
        self._moved = threading.Condition()
        self._behind: set[ClientId] = set()
        self._log_throttle = ErrorLogThrottle()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-routing-tables", daemon=True)

    def start(self, listener: TableListener | None) -> None:
        self._listener = listener
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._moved:
            self._moved.notify_all()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions that are followed; none before the reader has learned them. Any thread may ask."""
        return tuple(self._positions)

    def wait_for(self, ends: Mapping[Partition, int], deadline_s: float) -> bool:
        """Blocks until all records below these ends are in the tables. Any other thread may call it.

        Args:
            deadline_s: A time of `time.monotonic`.

        Returns:
            False if the deadline came first, or the reader was stopped.
        """
        with self._moved:
            while not all(self._positions.get(partition, -1) >= end for partition, end in ends.items()):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._stopping.is_set():
                    return False
                self._moved.wait(left_s)
        return True

    @property
    def has_subscriptions(self) -> bool:
        """Returns False while nobody subscribes to anything."""
        return self._counters.subscriptions > 0

    def await_subscriptions(self, timeout_s: float) -> None:
        """Blocks until somebody subscribes to something, at most for this time."""
        with self._moved:
            self._moved.wait_for(lambda: self.has_subscriptions or self._stopping.is_set(), timeout_s)

    # --- on the reader's thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        watch: TopicIdWatch | None = None
        while not self._stopping.is_set():
            try:
                watch = watch or self._new_watch()
                self._follow(watch)
            except TopicRecreated as error:
                self._awaits_engine |= self._topics[0] in error.topics
                if self._awaits_engine:
                    _log.warning(
                        "subscriptions_recreated",
                        action="publications wait until an engine has started: it writes the subscriptions of all sessions again",
                    )
                self._forget()
            except _OffsetGone:
                _log.warning("routing_tables_read_anew", reason="the log does not have the next record any more")
                self._forget()
            except Exception as error:  # noqa: BLE001 - whatever it was, a new consumer is the cure
                _log.warning("routing_tables_consumer_failed", error=repr(error), action="a new consumer starts in a second")
            self._stopping.wait(_RESTART_PAUSE_S)

    def _forget(self) -> None:
        self.is_complete = False
        with self._moved:
            self._positions = {}
        self._tables.clear()

    def _follow(self, watch: TopicIdWatch) -> None:
        config = {
            "group.id": self._group_id,  # librdkafka wants one of a consumer that joins none, too
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",  # nobody else's transaction holds the tables up
            "fetch.wait.max.ms": 500,
            "fetch.error.backoff.ms": 100,
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": 16_384,
        }
        errors = ClientErrors()
        consumer = new_client(Consumer, {**self._config(errors), **config})
        try:
            if recreated := watch.ask():
                raise TopicRecreated(recreated)
            checked_s = self._assign(consumer, errors)
            ends = log_offsets(consumer, self.partitions, END)
            while not self._stopping.is_set():
                watch.check()
                first = consumer.poll(_POLL_S)
                self._read([] if first is None else [first, *consumer.consume(_MOST_RECORDS, 0)])
                if self._awaits_engine and self._tables.marks_all_sessions:
                    self._awaits_engine = False
                    ends = log_offsets(consumer, self.partitions, END)  # the lists are before the mark, in any partition
                if not self.is_complete and not self._awaits_engine and self.wait_for(ends, 0):
                    self.is_complete = True
                    freeze_tables()
                    _log.info(
                        "routing_tables_complete", clients=self._counters.clients, retained=self._counters.retained_messages
                    )
                self._report()
                if time.monotonic() - checked_s > _CHECK_S:
                    checked_s = self._assign(consumer, errors)
        finally:
            consumer.close()

    def _assign(self, consumer: Any, errors: ClientErrors) -> float:
        """Begins to read partitions that are not read yet. Returns the time."""
        try:
            cluster = consumer.list_topics(timeout=_ANSWER_S)
        except KafkaException as error:
            raise errors.failed("no broker answers", error) from error
        described = cluster.topics
        self._tables.clocks_differ_ms = _CLOCKS_DIFFER_MS if len(cluster.brokers) > 1 else 0
        existing = [(topic, number) for topic in self._topics if topic in described for number in described[topic].partitions]
        if missing := [topic for topic in self._topics if topic not in described]:
            raise KafkaFailed(f"topic {missing[0]} does not exist, or may not be described; create it with `inflight topics`")
        assigned = {(one.topic, one.partition) for one in consumer.assignment()}
        new = [partition for partition in existing if partition not in assigned]
        if new:
            consumer.incremental_assign(
                [TopicPartition(topic, number, self._positions.get((topic, number)) or OFFSET_BEGINNING) for topic, number in new]
            )
            with self._moved:
                self._positions = {partition: self._positions.get(partition, 0) for partition in existing}
        return time.monotonic()

    def _read(self, messages: list[Any]) -> None:
        positions: dict[Partition, int] = {}
        subscriptions_topic = self._topics[0]
        tables = self._tables
        with tables.lock:
            for message in messages:
                topic = message.topic()
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # says the position behind records that are not there any more
                        positions[topic, message.partition()] = message.offset()
                    else:
                        self._check_error(error)
                    continue
                positions[topic, message.partition()] = message.offset() + 1
                try:
                    headers = headers_of(message)
                except UnreadableRecord:
                    tables.unreadable += 1
                    continue
                timestamp_ms = message.timestamp()[1]
                if topic == subscriptions_topic:
                    if (client_id := tables.read_list(message.key(), message.value(), headers, timestamp_ms)) is not None:
                        self._behind.add(client_id)
                    elif self._behind:
                        self._behind.discard((message.key() or b"").decode(errors="replace"))
                else:
                    tables.read_retained(message.key(), message.value(), headers, timestamp_ms)
        tables.delete_expired(self._now_ms())
        counters = self._counters
        counters.clients, counters.subscriptions = len(tables.subscriptions), tables.subscriptions.subscription_count
        counters.delayed_publications = len(tables.delayed)
        counters.retained_messages, counters.retained_bytes = len(tables.retained), tables.retained.size_bytes
        if positions:
            with self._moved:
                self._positions.update(positions)
                self._moved.notify_all()

    def _report(self) -> None:
        """Reports clients whose last record is not their highest, once it is known what the last record is."""
        if self.is_complete and self._behind:
            behind, self._behind = self._behind, set()
            if self._listener is not None:
                for client_id in behind:
                    self._listener.lower_list_read(client_id)

    def _check_error(self, error: KafkaError) -> None:
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise _OffsetGone(error.str())
        if code in (KafkaError._FATAL, KafkaError._BAD_COMPRESSION) or error.fatal():
            raise KafkaFailed(error.str())
        if self._log_throttle.is_due(code):  # a missing permission or topic: librdkafka tries again
            _log.warning("kafka_consumer", topic=self._topics[0], error=error.str())


class _OffsetGone(Exception):
    """The log begins behind the position, or ends before it."""
