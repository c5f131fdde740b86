"""Runs the matcher on Kafka, in a thread of its own beside that of the table reader.

1. Poll publications (and lists of subscriptions, for retained messages), as a member of the matchers' group.
2. The barrier: ask where `subscriptions` ends *then*, and wait until the tables are that far. Whatever was acknowledged before
   one of these publications was appended is below that end. The same for `retained`, if a client has just subscribed
   (retained_once.py).
3. Leave out copies of a publication of QoS 2 (copies.py). Match the others, and write the records in their order. A publication
   for a client that is connected and behind waits, with the rest of its partition (recipient_waits.py). Other partitions go on.
4. When Kafka has confirmed all records of a poll, commit its offsets.
5. Publish what has waited for its `deliver-at`, if it came from a partition of `publications` that this matcher owns, behind a
   barrier too: what another owner has published waits no longer. A crash in between publishes it twice, with the same message id.

A failure costs time only: all clients are given up, and new ones begin at the committed offsets. What is routed twice by that has
the same source and mark, by which sessions recognize it. A topic that was deleted and created again is another source: it is
routed from its beginning, without what was routed before that was noticed.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, KafkaException

from sinks.health import UnmetCondition
from sinks.host.broker_clock import BrokerClock
from sinks.kafka.group_consumer import ConsumedRecord, MemberFenced
from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client
from sinks.kafka.throttles import ThrottleFollower, ThrottleTable
from sinks.kafka.topic_ids import TopicIdWatch
from sinks.kafka.topic_partitions import TopicMissing
from sinks.routing.copies import CopyFinder, doubt_of
from sinks.routing.log_ends import END, Partition, log_offsets
from sinks.routing.matcher import Matcher, PublicationSource, RoutedRecord
from sinks.routing.metrics import MatcherCounters
from sinks.routing.recipient_waits import ProgressingClients, RecipientWaits
from sinks.routing.routed_writer import PublicationPosition, ReadBatch, RoutedWriter
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from sinks.routing.source_consumer import SourceConsumer
from sinks.routing.source_topics import SourceTopics
from sinks.routing.table_reader import TableListener, TableReader
from sinks.routing.uplink_search import UplinkSearch
from sinks.routing.wait_announcer import WaitAnnouncer
from state.errors import UnreadableRecord
from state.model import ClientId
from state.records.delayed import DelayedPublication
from state.records.session_marks import MARK
from state.records.subscriptions import SubscriptionList, decode_subscriptions

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.2
_UNCONFIRMED_POLL_S: Final = 0.02
"""While records are unconfirmed: their confirmations are handled between polls."""
_WAITING_POLL_S: Final = 0.05
"""While a partition waits: so much later it learns that its client has caught up."""
_MOST_RECORDS: Final = 500
_REST_S: Final = 0.005
"""A client that subscribes meanwhile gets what was published since the rest began, although it came before its SUBSCRIBE."""
_BUSY_REST_S: Final = 0.05
_BUSY_RECORDS: Final = 25
"""After a poll with so many records, and less than a full one, the rest is the longer one."""
_RESTART_PAUSE_S: Final = 1.0
_ANSWER_S: Final = 10.0
_BARRIER_S: Final = 10.0
_FLUSH_S: Final = 5.0
_CHECK_S: Final = 30.0
_COUNT_S: Final = 1.0

NO_TABLES: Final = UnmetCondition(
    "not all subscriptions are read yet", "wait; its log says how far it is, and routing_tables_complete when it is"
)
NO_SOURCE: Final = UnmetCondition(
    "no partition to route publications of",
    "nothing, if there are more matchers than partitions; else wait for the consumer group",
)


class KafkaMatcher:
    """The matcher of a process, with its tables.

    Args:
        host: Settings of the process.
        clock: The brokers' clock, which another part of the process keeps right; None = the matcher keeps one.

    Attributes:
        tables: Of the process. `reader` says whether they are complete.
        throttles: The throttled clients, which `routing.max_wait_ms` follows.
        has_joined: True while it is in its group, and the group has given it partitions or none.
    """

    def __init__(
        self,
        settings: RoutingSettings,
        host: HostSettings,
        counters: MatcherCounters | None = None,
        *,
        clock: BrokerClock | None = None,
    ) -> None:
        self.tables = RoutingTables()
        self.counters = counters or MatcherCounters()
        self._settings = settings
        self._host = host
        self._own_clock = BrokerClock() if clock is None else None
        self._clock = clock or self._own_clock or BrokerClock()
        self._config = partial(client_config, host.bootstrap_servers, host.kafka_options)
        self.reader = TableReader(self.tables, settings, host, self.counters, now_ms=self._now_ms)
        self.throttles = ThrottleTable()
        self._follower = ThrottleFollower(
            self.throttles,
            bootstrap_servers=host.bootstrap_servers,
            topic=settings.throttle_topic,
            config={},
            options=host.kafka_options,
        )
        self._announcer = WaitAnnouncer(host, settings.throttle_topic, self._now_ms)
        self._too_large: set[PublicationPosition] = set()
        self._sources: SourceTopics | None = None
        self.has_joined = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-matcher", daemon=True)

    def start(self, listener: TableListener | None = None) -> None:
        """Starts the table reader and the matcher.

        Args:
            listener: The process, if it holds connections. It hears of lists that are out of order.
        """
        self.reader.start(listener)
        if self._settings.max_wait_ms:
            self._follower.start()
        self._thread.start()

    def check(self) -> None:
        """Blocks for seconds at most.

        Raises:
            KafkaFailed: No broker answers.
            TopicMissing: A topic does not exist.
        """
        errors = ClientErrors()
        client = new_client(Consumer, {**self._config(errors), "group.id": self._settings.group_id})
        try:
            partition_counts(client, self._settings, errors)
        finally:
            client.close()

    async def close(self, timeout_s: float) -> None:
        """Finishes what was read, commits it and leaves the group."""
        self._stopping.set()
        loop = asyncio.get_running_loop()
        if self._thread.ident is not None:
            await loop.run_in_executor(None, self._thread.join, timeout_s)
            self.reader.stop()
            await loop.run_in_executor(None, self.reader.join, timeout_s)
            if self._settings.max_wait_ms:
                await loop.run_in_executor(None, self._follower.close)

    def has_tables(self) -> bool:
        """Returns True if the tables are complete. Any thread may ask."""
        return self.reader.is_complete

    def missing(self) -> Iterable[UnmetCondition]:
        """Returns what the matcher lacks. Any thread may ask."""
        if not self.reader.is_complete:
            yield NO_TABLES
        elif not self.counters.partitions_owned:
            yield NO_SOURCE

    def _now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000

    # --- on the matcher's thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._is_ready():
                    self._route_publications()
            except MemberFenced:  # joining again would fence the other one
                _log.warning("matcher_fenced", group=self._settings.group_id, group_instance_id=self._host.group_instance_id)
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, new clients are the cure
                self.counters.restarts += 1
                _log.warning("matcher_failed", error=repr(error), action="new Kafka clients start in a second")
            finally:
                self.has_joined, self.counters.partitions_owned, self.counters.lag = False, 0, 0
                self.counters.partitions_waiting = 0
            self._stopping.wait(_RESTART_PAUSE_S)

    def _is_ready(self) -> bool:
        """Waits for the tables, because a publication that is matched before would miss subscribers."""
        while not self.reader.is_complete:
            if self._stopping.wait(_POLL_S / 4):
                return False
        return True

    def _route_publications(self) -> None:
        errors, settings = ClientErrors(), self._settings
        sources = settings.uplink_topic, settings.publications_topic, settings.subscriptions_topic
        self._sources = self._sources or SourceTopics(
            TopicIdWatch(sources, self._host.bootstrap_servers, self._host.kafka_options)
        )
        self._sources.ask()
        self._too_large = {position for position in self._too_large if position.topic not in self._sources.recreated}
        asking = new_client(Consumer, {**self._config(errors), "group.id": self._settings.group_id})
        writer = RoutedWriter(self._host, self.counters, self._own_clock, self._too_large)
        routing: _Routing | None = None
        try:
            routing = _Routing(
                self._settings,
                self._host,
                self.reader,
                self.tables,
                self.counters,
                self._sources,
                self.throttles,
                asking=asking,
                errors=errors,
                writer=writer,
                now_ms=self._now_ms,
            )
            while not self._stopping.is_set():
                routing.run()
                self._announcer.announce(routing.waiting, time.monotonic())
                self.has_joined = routing.consumer.has_joined
        finally:
            if routing is not None:
                routing.close()
            self._announcer.close()
            writer.close()
            asking.close()


@dataclass(slots=True, eq=False)
class _HeldPartition:
    """The records of a partition that waits.

    Attributes:
        routed: What the first of them has become.
    """

    records: list[ConsumedRecord]
    routed: list[RoutedRecord]

    @property
    def waits_for(self) -> Iterable[ClientId]:
        return (client_id for each in self.routed for client_id in each.waits_for)


class _Routing:
    """Routes with one set of clients, until one fails."""

    def __init__(
        self,
        settings: RoutingSettings,
        host: HostSettings,
        reader: TableReader,
        tables: RoutingTables,
        counters: MatcherCounters,
        topics: SourceTopics,
        throttles: ProgressingClients,
        *,
        asking: Any,
        errors: ClientErrors,
        writer: RoutedWriter,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._reader = reader
        self._counters = counters
        self._asking = asking
        self._errors = errors
        self._writer = writer
        self._topics = topics
        self._now_ms = now_ms
        self._counts = partition_counts(asking, settings, errors)
        self._matcher = Matcher(
            tables,
            settings,
            counters,
            messages_partitions=self._counts[settings.messages_topic],
            retained_partitions=self._counts[settings.retained_topic],
            now_ms=now_ms,
        )
        self._sources = self._describe()
        self._waits = RecipientWaits(throttles, counters, max_wait_s=settings.max_wait_ms / 1_000)
        self._held: dict[Partition, _HeldPartition] = {}
        self._positions: dict[Partition, int] = {}
        self._generation = tables.generation
        self._published: dict[bytes, DelayedPublication] = {}
        """Those whose end the tables have not read yet."""
        self._is_busy = False
        self._search = UplinkSearch(host, settings.group_id, asking)
        self._copies = CopyFinder(self._search.offset_at, self._search.ids_between)
        self._check_again_s = time.monotonic() + _CHECK_S
        self._count_again_s = 0.0
        self.consumer = SourceConsumer(
            host,
            group_id=settings.group_id,
            begins_at_end={settings.uplink_topic: True, settings.publications_topic: False, settings.subscriptions_topic: False},
            ids=dict(topics.ids),
            partitions=self._sources,
            recreated=topics.recreated,
            asking=asking,
            before_revoke=self._finish,
            on_gone=self._let_go,
        )

    def close(self) -> None:
        """Gives all partitions back."""
        self.consumer.close()
        self._search.close()

    @property
    def waiting(self) -> Collection[Partition]:
        """Partitions whose publications wait for a client that is connected and behind."""
        return self._held.keys()

    def run(self) -> None:
        """Routes what one poll returns. Raises KafkaFailed, MemberFenced."""
        self._topics.check()
        self._continue_held()
        self._rest()
        batches = self.consumer.poll(self._poll_s(), _MOST_RECORDS)
        self._is_busy = _BUSY_RECORDS <= sum(map(len, batches.values())) < _MOST_RECORDS
        if batches:
            self._route(batches)
        else:
            self._writer.poll()
        self._counters.partitions_waiting = len(self._held)
        self._publish_due()
        self._note_finished()
        self.consumer.commit()
        now_s = time.monotonic()
        if now_s >= self._count_again_s:
            self._count_again_s = now_s + _COUNT_S
            self._copies.forget_unused(now_s)
            self._counters.partitions_owned = len(self.consumer.owned)
            self._positions = {partition: self._positions.get(partition, at) for partition, at in self.consumer.owned.items()}
            self._counters.lag = self.consumer.lag(self._positions)
        if now_s >= self._check_again_s:
            self._check_again_s = now_s + _CHECK_S
            if partition_counts(self._asking, self._settings, self._errors) != self._counts:
                raise KafkaFailed("a topic has more partitions now")

    def _poll_s(self) -> float:
        if self._writer.has_unconfirmed:
            return _UNCONFIRMED_POLL_S
        return _WAITING_POLL_S if self._held else _POLL_S

    def _rest(self) -> None:
        """Lets publications gather while nobody subscribes to anything, because a barrier for each costs more than its match."""
        if self.consumer.owned and not self._writer.has_unconfirmed and not self._reader.has_subscriptions:
            self._reader.await_subscriptions(_BUSY_REST_S if self._is_busy else _REST_S)

    def _route(self, batches: dict[Partition, list[ConsumedRecord]]) -> None:
        ends = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        batch = self._writer.begin(ends)
        lists = [(key, records) for key, records in batches.items() if key[0] == self._settings.subscriptions_topic]
        asks = [(self._sources[key], *asked) for key, records in lists for asked in _asking_for_retained(records)]
        self._generation = self._tables.generation
        for partition, records in lists:
            self._repeat_higher_lists(partition, records, batch)
        if asks or len(batches) > len(lists):
            with_retained = bool(asks) or self._retained_matters(batches)
            self._await_tables(with_retained=with_retained)
            if not with_retained and self._retained_matters(batches):  # by a list that has been read meanwhile
                self._await_tables(with_retained=True)
        for partition, records in batches.items():
            if partition[0] != self._settings.subscriptions_topic:
                self._route_partition(partition, records, batch, ends)
        for source, offset, client_id, asked, listed_ms in asks:
            with self._tables.lock:
                self._check_tables()
                answer = self._matcher.answer(source, offset, client_id, asked, listed_ms=listed_ms)
            for routed in answer:
                self._writer.write(routed, batch, PublicationPosition(source.topic, source.partition, offset))
        self._positions.update(ends)
        self._writer.end(batch)

    def _route_partition(
        self, partition: Partition, records: list[ConsumedRecord], batch: ReadBatch, ends: dict[Partition, int]
    ) -> None:
        """Routes publications up to the first that has to wait, and says so in `ends`."""
        unrouted = self._unrouted(partition, records)
        done = self._match(partition, unrouted, batch)
        if done < len(unrouted):
            ends[partition] = first = unrouted[done].offset
            records = [each for each in records if each.offset < first]
            self.consumer.pause(partition)
        self._topics.note_routed(partition, records)

    def _continue_held(self) -> None:
        """Routes the publications of partitions that need not wait any more."""
        for partition, held in list(self._held.items()):
            if self._waits.must_wait(partition, held.waits_for, time.monotonic()):
                continue
            ends = {partition: held.records[-1].offset + 1}
            batch = self._writer.begin(ends)
            self._route_partition(partition, held.records, batch, ends)  # the tables are farther than its barrier was
            self._positions.update(ends)
            self._writer.end(batch)
            if partition not in self._held:
                self.consumer.resume(partition)

    def _let_go(self, partitions: frozenset[Partition]) -> None:
        """Forgets what waits of partitions that are gone. Their next owner reads it."""
        for partition in partitions:
            self._held.pop(partition, None)
        self._waits.forget(partitions, time.monotonic())

    def _unrouted(self, partition: Partition, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        topics = self._topics
        return [each for each in records if not topics.was_routed(partition, each)] if topics.has_routed_before else records

    def _repeat_higher_lists(self, partition: Partition, records: list[ConsumedRecord], batch: ReadBatch) -> None:
        """Writes lists again behind lower ones. Gateways do so for connected clients; nobody else does for the others."""
        if not self._reader.wait_for({partition: records[-1].offset + 1}, time.monotonic() + _BARRIER_S):
            raise KafkaFailed(f"the subscriptions were not read within {_BARRIER_S:g} s")
        with self._tables.lock:
            repeated = [(record.offset, self._matcher.repeated(partition[1], record)) for record in records]
        for offset, routed in repeated:
            if routed is not None:
                self._writer.write(routed, batch, PublicationPosition(*partition, offset))

    def _await_tables(self, *, with_retained: bool) -> None:
        """The barrier."""
        partitions = self._reader.partitions
        if not with_retained:
            partitions = tuple(each for each in partitions if each[0] == self._settings.subscriptions_topic)
        if not partitions or not self._reader.wait_for(log_offsets(self._asking, partitions, END), time.monotonic() + _BARRIER_S):
            raise KafkaFailed(f"the subscriptions were not read up to their end within {_BARRIER_S:g} s")
        if not self._reader.is_complete:
            raise KafkaFailed("the subscriptions are read anew")

    def _retained_matters(self, batches: dict[Partition, list[ConsumedRecord]]) -> bool:
        first_ms = [records[0].timestamp for partition, records in batches.items() if self._sources[partition].is_uplink]
        return bool(first_ms) and self._tables.subscriptions.recent.retained_matters(min(first_ms))

    def _check_tables(self) -> None:
        """Raises KafkaFailed if the tables were emptied since the barrier, to be read anew."""
        if self._tables.generation != self._generation:
            raise KafkaFailed("the subscriptions are read anew")

    def _match(self, partition: Partition, records: list[ConsumedRecord], batch: ReadBatch) -> int:
        """Writes what the records become, up to the first that has to wait. Returns how many were routed."""
        source, held = self._sources[partition], self._held.pop(partition, None)
        route, lock, too_large, waits = self._matcher.route, self._tables.lock, self._writer.too_large, self._waits
        with lock:
            self._check_tables()
            if self._matcher.passes_over(source, len(records)):
                return len(records)
        for number, record in enumerate(records):
            if too_large and PublicationPosition(source.topic, source.partition, record.offset) in too_large:
                continue
            if held is not None and not number:
                routed = held.routed
            else:
                if source.is_uplink and self._is_copy(partition, record):
                    continue
                with lock:
                    self._check_tables()
                    routed = route(source, record)
                if routed and waits.is_needed:
                    waiting = _HeldPartition(records[number:], routed)
                    if waits.must_wait(partition, waiting.waits_for, time.monotonic()):
                        self._held[partition] = waiting
                        return number
            if routed:
                position = PublicationPosition(source.topic, source.partition, record.offset)
                for each in routed:
                    self._writer.write(each, batch, position)
        return len(records)

    def _is_copy(self, partition: Partition, record: ConsumedRecord) -> bool:
        """Returns True, and counts the record, if it is a copy of one before it. It may be searched for: that takes a while."""
        doubt = doubt_of(record, self._tables.sessions)
        if doubt is None or not self._copies.is_copy(partition, record.offset, doubt, time.monotonic()):
            return False
        self._counters.publications_copied += 1
        return True

    def _publish_due(self) -> None:
        tables, now_ms = self._tables, self._now_ms()
        if not tables.delayed.has_due(now_ms):
            self._published.clear()
            return
        owned = {number for topic, number in self.consumer.owned if topic == self._settings.publications_topic}
        with tables.lock:
            due = self._unpublished(now_ms, owned)
        if not due:
            return
        self._generation = tables.generation
        self._await_tables(with_retained=True)
        with tables.lock:
            self._check_tables()
            due = self._unpublished(now_ms, owned)
        batch = self._writer.begin({})
        for key, delayed in due:
            position = PublicationPosition(key.decode(), delayed.partition, delayed.due_ms)
            is_too_large = position in self._writer.too_large
            for each in [self._matcher.not_delayed(key, delayed)] if is_too_large else self._matcher.due(key, delayed):
                self._writer.write(each, batch, position)
            self._published[key] = delayed
        self._writer.end(batch)

    def _unpublished(self, now_ms: int, owned: set[int]) -> list[tuple[bytes, DelayedPublication]]:
        """Returns what is due and not published by this process; the caller holds the lock."""
        due = self._tables.delayed.due(now_ms, owned)
        self._published = {key: delayed for key, delayed in due if self._published.get(key) is delayed}
        return [(key, delayed) for key, delayed in due if key not in self._published]

    def _finish(self) -> None:
        """Waits for confirmations before partitions go. What is not confirmed in time is routed again by their next owner."""
        self._writer.flush(_FLUSH_S)
        self._note_finished()

    def _note_finished(self) -> None:
        ends = self._writer.finished()
        self.consumer.finished(ends)
        self._topics.finished(ends)

    # --- topics -----------------------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[Partition, PublicationSource]:
        """Returns the sources by partition, with Kafka's ids of their topics."""
        return {
            (topic, number): PublicationSource(
                topic=topic, partition=number, topic_id=topic_id, is_uplink=topic == self._settings.uplink_topic
            )
            for topic, topic_id in self._topics.ids.items()
            for number in range(self._counts[topic])
        }


def partition_counts(client: Any, settings: RoutingSettings, errors: ClientErrors) -> dict[str, int]:
    """Returns how many partitions each topic has that a matcher uses.

    Raises:
        KafkaFailed: No broker answers.
        TopicMissing: A topic does not exist, or may not be described.
    """
    try:
        described = client.list_topics(timeout=_ANSWER_S).topics
    except KafkaException as error:
        raise errors.failed("no broker answers", error) from error
    sources = settings.uplink_topic, settings.publications_topic, settings.subscriptions_topic
    counts = {}
    for topic in (*sources, settings.messages_topic, settings.retained_topic):
        if topic not in described or not described[topic].partitions:
            raise TopicMissing(f"topic {topic} does not exist, or may not be described; create it with `inflight topics`")
        counts[topic] = len(described[topic].partitions)
    return counts


def _asking_for_retained(records: list[ConsumedRecord]) -> Iterator[tuple[int, ClientId, SubscriptionList, int]]:
    """Yields offset, client, list and time of records that want retained messages. The table reader counts unreadable ones."""
    for record in records:
        key, value = record.key or b"", record.value
        if value is None or key.startswith(MARK):
            continue
        with contextlib.suppress(UnreadableRecord, UnicodeDecodeError):
            if (asked := decode_subscriptions(value)).wanted:
                yield record.offset, key.decode(), asked, record.timestamp
