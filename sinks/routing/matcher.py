"""Routes publications: makes records of `inflight.messages` out of records that name a topic. Pure; kafka_matcher.py calls it.

1. A client with a matching subscription [MQTT-4.5.0-1] gets one copy, with the highest QoS of its matching subscriptions and all
   their identifiers [MQTT-3.3.4-2] [MQTT-3.3.4-4]. A shared subscription that chose it gives it one copy more.
2. Each copy names source and mark, so that a session recognizes the same copy when a publication is routed twice. A shared
   subscription is a source of its own, because a client may have a copy through it and one without.
3. A copy is in the partition of its client's other messages. The copies of a partition share records, so a payload is written
   once for many clients.
4. A backend's publication with RETAIN and `deliver-at` waits in `inflight.retained`. At its time it goes back to
   `inflight.publications` without `deliver-at`, and is routed as one that has just come. Until then the present message is kept.
5. A retained publication of a device comes to a client that subscribes at about the same time once: live, or as retained message
   (retained_once.py).
6. A publication that nobody subscribes to costs a look at its headers and at the table, and makes no record. While there is not
   one subscription, publications of devices are only counted.
"""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec

from sinks.kafka.partitioning import partition_of
from sinks.mqtt_topics import is_shared
from sinks.routing.metrics import MatcherCounters
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from sinks.routing.shared_choice import choose_member
from sinks.routing.subscription_table import ClientEntry, GroupMatch, SubscriptionOptions
from state.errors import UnreadableRecord
from state.inbound.subscriptions import topic_matches
from state.model import ClientId, Message, QoS, Routing
from state.records.delayed import DelayedPublication, delayed_headers, delayed_key, due_headers
from state.records.messages import RETAIN, TOPIC, BrokenContract
from state.records.publications import Publication, message_headers, publication_in
from state.records.record import Header
from state.records.routing import RECIPIENT_PREFIX, SourceKind, encode_routing, most_recipients, source_number
from state.records.scheduling import deliver_at_ms
from state.records.session_marks import MARK, encode_mark
from state.records.subscriptions import SubscriptionList, decode_subscriptions, encode_subscriptions, order_of

_MOST_RECIPIENTS_BYTES: Final = 262_144
"""Names and values of the recipients of one record; a record of Kafka has a limit, and client ids may be long."""
_TRUE: Final = (b"true", b"1")


class RecordToRoute(Protocol):
    """A record that was read from Kafka."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Raises UnreadableRecord."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""


class RoutedRecord(NamedTuple):
    """A record to be written.

    Attributes:
        key: None = its recipients are in its headers.
        waits_for: Recipients that get it with QoS 1 or 2. A copy of QoS 0 may be dropped, so nobody waits for it.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    waits_for: Sequence[ClientId] = ()


@dataclass(slots=True, kw_only=True)
class PublicationSource:
    """A partition of a topic that has publications.

    Attributes:
        topic_id: Kafka's id of the topic.
    """

    topic: str
    partition: int
    topic_id: str
    is_uplink: bool
    _numbers: dict[tuple[bool, str], int] = field(default_factory=dict)

    def number(self, *, is_of_batch: bool, share: str = "") -> int:
        """Returns the number of the source of a copy.

        Args:
            is_of_batch: The engine wrote the publication.
            share: The shared subscription that the copy is for; empty = none.
        """
        known = self._numbers.get((is_of_batch, share))
        if known is None:
            if self.is_uplink:
                kind = SourceKind.UPLINK_BATCH if is_of_batch else SourceKind.UPLINK
            else:
                kind = SourceKind.PUBLICATIONS_BATCH if is_of_batch else SourceKind.PUBLICATIONS
            named = f"{self.topic_id} {share}" if share else self.topic_id
            known = self._numbers[is_of_batch, share] = source_number(kind, self.partition, named)
        return known


class FanOutLimit:
    """Limits the copies of each publisher in a second. Used by one thread.

    Args:
        most: Copies of one publisher in a second; 0 = no limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._second = 0
        self._copies: Counter[ClientId] = Counter()

    def admit(self, publisher: ClientId, now_ms: int) -> bool:
        """Counts a copy. Returns False if the publisher has had as many as it may have in this second."""
        if not self._most:
            return True
        if now_ms // 1_000 != self._second:
            self._second = now_ms // 1_000
            self._copies.clear()
        self._copies[publisher] += 1
        return self._copies[publisher] <= self._most


class Matcher:
    """Routes publications with the tables of its process, whose lock the caller holds.

    Args:
        messages_partitions: The number of partitions of `inflight.messages`.
        retained_partitions: The number of partitions of `inflight.retained`.
        now_ms: Returns the brokers' time, in ms since 1970.
    """

    def __init__(
        self,
        tables: RoutingTables,
        settings: RoutingSettings,
        counters: MatcherCounters,
        *,
        messages_partitions: int,
        retained_partitions: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._settings = settings
        self._counters = counters
        self._messages_partitions = messages_partitions
        self._retained_partitions = retained_partitions
        self._now_ms = now_ms
        self._limit = FanOutLimit(settings.max_fan_out)

    # --- publications ---------------------------------------------------------------------------------------------------------

    def passes_over(self, source: PublicationSource, count: int) -> bool:
        """Returns True, and counts the publications, if `route` would return no record for any of them.

        What a device publishes for later subscribers, its gateway has written to `inflight.retained`.
        """
        if not source.is_uplink or self._tables.subscriptions.subscription_count:
            return False
        self._counters.publications += count
        self._counters.publications_unmatched += count
        return True

    def route(self, source: PublicationSource, record: RecordToRoute) -> list[RoutedRecord]:
        """Returns the records for a publication, in the order in which they have to be written."""
        self._counters.publications += 1
        try:
            named = dict(record.headers)
            topic = (named.get(TOPIC) or b"").decode()
        except (UnreadableRecord, UnicodeDecodeError):
            self._counters.publications_refused["unreadable"] += 1
            return []
        clients, groups = self._tables.subscriptions.match(topic)
        found = list(clients)
        is_retained = not source.is_uplink and named.get(RETAIN) in _TRUE
        if not found and not groups and not is_retained and topic:
            self._counters.publications_unmatched += 1
            return []
        try:
            publication = publication_in(
                [Header(name, value) for name, value in record.headers],
                record.value,
                accepted_ms=record.timestamp,
                default_message_id=f"{source.topic}-{source.partition}-{record.offset}",
                is_uplink=source.is_uplink,
            )
        except BrokenContract:
            self._counters.publications_refused["broken_contract"] += 1
            return []
        records: list[RoutedRecord] = []
        if is_retained and not publication.share:
            due_ms = deliver_at_ms(publication.message)
            if due_ms is None or due_ms <= record.timestamp:
                records = self._retained(publication)
            elif waiting := self._delayed(source, record, publication.message, due_ms):
                return waiting
        recipients = self._recipients(source, record, publication, found, groups)
        if recipients:
            self._counters.recipients += len(recipients)
            records += self._records(publication.message, recipients)
        else:
            self._counters.publications_unmatched += 1
        return records

    def _recipients(
        self,
        source: PublicationSource,
        record: RecordToRoute,
        publication: Publication,
        found: list[tuple[ClientEntry, tuple[SubscriptionOptions, ...]]],
        groups: Sequence[GroupMatch],
    ) -> list[tuple[ClientId, Routing]]:
        message, publisher = publication.message, publication.publisher
        is_of_batch = publication.batch_ms is not None
        mark = record.offset if publication.batch_ms is None else publication.batch_ms
        recipients: list[tuple[ClientId, Routing]] = []
        now_ms = self._now_ms() if publisher else 0

        def add(entry: ClientEntry, options: Sequence[SubscriptionOptions], number: int, share: str = "") -> None:
            qos = options[0].qos if len(options) == 1 else max(each.qos for each in options)
            if publisher and not self._limit.admit(publisher, now_ms) and min(qos, message.qos) == QoS.AT_MOST_ONCE:
                self._counters.recipients_shed += 1
                return
            routing = Routing(
                source=number,
                mark=mark,
                connection_id=entry.connection_id,
                version=entry.version,
                qos=qos,
                retain=message.retain and any(each.retain_as_published for each in options),  # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
                subscription_ids=tuple(each.identifier for each in options if each.identifier is not None),
                share=share,
                is_named=publication.is_named,
                tried=publication.tried,
            )
            recipients.append((entry.client_id, routing))

        if not publication.share:
            number = source.number(is_of_batch=is_of_batch)
            is_retained = source.is_uplink and message.retain
            retained_ms = self._tables.recently_retained.time_ms(message.message_id.encode()) if is_retained else None
            for entry, options in found:
                if retained_ms is not None:
                    options = self._without_retained(entry, options, message.topic, retained_ms)
                if entry.client_id == publisher:
                    options = tuple(each for each in options if not each.no_local)  # [MQTT-3.8.3-3]
                if options:
                    add(entry, options, number)
        for group in groups:  # [MQTT-4.8.2-4]
            if publication.share in ("", group.shared_filter):
                member = choose_member(
                    [member for member in group.members if member.client_id not in publication.tried] or group.members,
                    self._settings.shared_strategy,
                    stays_with=publisher.encode() or record.key or message.message_id.encode(),
                    number=record.offset if publication.batch_ms is None else zlib.crc32(message.message_id.encode()),
                )
                number = source.number(is_of_batch=is_of_batch, share=group.shared_filter)
                add(member, (member.subscriptions[group.shared_filter],), number, group.shared_filter)
        return recipients

    def _without_retained(
        self, entry: ClientEntry, options: tuple[SubscriptionOptions, ...], topic: str, retained_ms: int
    ) -> tuple[SubscriptionOptions, ...]:
        """Leaves out the subscriptions whose SUBSCRIBE brings what was retained at that time."""
        tables = self._tables
        left_out = tables.subscriptions.recent.began_behind(entry.client_id, retained_ms + tables.clocks_differ_ms)
        if not left_out:
            return options
        return tuple(
            each
            for topic_filter, each in entry.subscriptions.items()
            if topic_filter not in left_out and not is_shared(topic_filter) and topic_matches(topic_filter, topic)
        )

    def _retained(self, publication: Publication) -> list[RoutedRecord]:
        """Returns the record that keeps a backend's message for later subscribers, or that removes what is kept."""
        message, key = publication.message, publication.message.topic.encode()
        partition = partition_of(key, self._retained_partitions)
        if not message.payload:  # [MQTT-3.3.1-6]
            return [RoutedRecord(self._settings.retained_topic, partition, key, None, [])]
        kept = self._tables.retained
        if (
            len(kept) >= self._settings.max_retained_messages and kept.get(message.topic, self._now_ms()) is None
        ) or kept.size_bytes + len(message.payload) > self._settings.max_retained_bytes:
            self._counters.publications_refused["retained_full"] += 1
            return []
        return [RoutedRecord(self._settings.retained_topic, partition, key, message.payload, self._headers(message))]

    # --- publications with RETAIN for later -------------------------------------------------------------------------------------

    def _delayed(self, source: PublicationSource, record: RecordToRoute, message: Message, due_ms: int) -> list[RoutedRecord]:
        """Returns the record by which a publication waits. None if too many wait: it is routed then, and not kept."""
        delayed = DelayedPublication(message=message, due_ms=due_ms, partition=source.partition, key=record.key)
        key, waiting, settings = delayed_key(message, source.partition), self._tables.delayed, self._settings
        if key not in waiting and (
            len(waiting) >= settings.max_retained_messages
            or waiting.size_bytes + len(message.payload) > settings.max_retained_bytes
        ):
            self._counters.publications_refused["retained_full"] += 1
            return []
        headers = delayed_headers(delayed, now_ms=self._now_ms())
        return [self._delayed_record(key, delayed, message.payload, [(header.key, header.value) for header in headers])]

    def due(self, key: bytes, delayed: DelayedPublication) -> list[RoutedRecord]:
        """Returns the records for a publication whose time has come: it is published, and waits no longer."""
        headers = [(header.key, header.value) for header in due_headers(delayed, now_ms=self._now_ms())]
        topic, message = self._settings.publications_topic, delayed.message
        return [
            RoutedRecord(topic, delayed.partition, delayed.key, message.payload, headers),
            self.not_delayed(key, delayed),
        ]

    def not_delayed(self, key: bytes, delayed: DelayedPublication) -> RoutedRecord:
        """Returns the record that ends the wait of a publication."""
        return self._delayed_record(key, delayed, None, [])

    def _delayed_record(
        self, key: bytes, delayed: DelayedPublication, value: bytes | None, headers: list[tuple[str, bytes | None]]
    ) -> RoutedRecord:
        partition = partition_of(delayed.message.topic.encode(), self._retained_partitions)
        return RoutedRecord(self._settings.retained_topic, partition, key, value, headers)

    # --- retained messages ------------------------------------------------------------------------------------------------------

    def answer(
        self, source: PublicationSource, offset: int, client_id: ClientId, asked: SubscriptionList, *, listed_ms: int
    ) -> Iterator[RoutedRecord]:
        """Returns the records with the retained messages that a SUBSCRIBE asks for: one copy of each message.

        A message that came from a gateway behind the list is left out: it comes live.

        Only the call needs the lock, the iteration does not.

        Args:
            source: The partition of `inflight.subscriptions` that has the list.
            asked: The list, with `wanted` filters.
            listed_ms: Time of its record, in ms since 1970.
        """
        granted = {each.topic_filter: each for each in asked.subscriptions}
        now_ms = self._now_ms()
        limit_ms = listed_ms + self._tables.clocks_differ_ms
        copies: dict[str, tuple[Publication, QoS, list[int]]] = {}
        for topic_filter in asked.wanted:
            subscription = granted.get(topic_filter)
            if subscription is None or is_shared(topic_filter):
                continue
            for topic, entry in self._tables.retained.match(topic_filter, now_ms):
                content = entry.content
                if subscription.no_local and content.publisher == client_id:
                    continue
                if content.message.accepted_ms > limit_ms and content.publisher and content.batch_ms is None:
                    continue
                qos, identifiers = subscription.qos, [] if subscription.identifier is None else [subscription.identifier]
                if (other := copies.get(topic)) is not None:
                    qos, identifiers = max(qos, other[1]), [*other[2], *(each for each in identifiers if each not in other[2])]
                copies[topic] = content, qos, identifiers
        return self._answers(source, offset, client_id, asked, copies)

    def _answers(
        self,
        source: PublicationSource,
        offset: int,
        client_id: ClientId,
        asked: SubscriptionList,
        copies: Mapping[str, tuple[Publication, QoS, list[int]]],
    ) -> Iterator[RoutedRecord]:
        number = source_number(SourceKind.RETAINED, source.partition, source.topic_id)
        for topic, (publication, qos, identifiers) in copies.items():
            routing = Routing(
                source=number,
                mark=offset,
                connection_id=asked.connection_id,
                version=asked.version,
                qos=qos,
                retain=True,  # [MQTT-3.3.1-8]
                subscription_ids=tuple(identifiers),
            )
            self._counters.retained_sent += 1
            digest = hashlib.blake2b(topic.encode(), digest_size=12).hexdigest()
            message_id = f"{source.topic}-{source.partition}-{offset}:{digest}"  # unique, and the same in a second attempt
            message = msgspec.structs.replace(publication.message, message_id=message_id)
            yield from self._records(message, [(client_id, routing)])

    # --- lists ------------------------------------------------------------------------------------------------------------------

    def repeated(self, partition: int, record: RecordToRoute) -> RoutedRecord | None:
        """Returns the client's highest list once more if this record of `inflight.subscriptions` is lower.

        Compaction would keep the lower one, because it is the last. The tables have read the record. None = it is the highest, or
        the client has none.
        """
        key = record.key or b""
        if key.startswith(MARK):
            return self._repeated_mark(partition, key, record)
        try:
            highest = self._tables.subscriptions.get(key.decode())
            read = None if record.value is None else decode_subscriptions(record.value)
        except (UnreadableRecord, UnicodeDecodeError):
            return None
        if highest is None or read is None or order_of(read) >= order_of(found := highest.as_list()):
            return None
        self._counters.lists_repeated += 1
        return RoutedRecord(self._settings.subscriptions_topic, partition, key, encode_subscriptions(found), [])

    def _repeated_mark(self, partition: int, key: bytes, record: RecordToRoute) -> RoutedRecord | None:
        """Repeats the newest mark of a client if this record, of an earlier connection, stands behind it."""
        newest = self._tables.sessions.get(key.removeprefix(MARK))
        if newest is None:
            return None
        try:
            is_earlier = record.value is None or decode_subscriptions(record.value).connection_id < newest.connection_id
        except UnreadableRecord:
            return None
        if not is_earlier:
            return None
        return RoutedRecord(self._settings.subscriptions_topic, partition, key, encode_mark(newest.connection_id), [])

    # --- records ----------------------------------------------------------------------------------------------------------------

    def _records(self, message: Message, recipients: Sequence[tuple[ClientId, Routing]]) -> list[RoutedRecord]:
        """Returns the records for all recipients of a message, each with as many as it may have."""
        most = most_recipients(len(message.payload))
        common = self._headers(message)
        records: list[RoutedRecord] = []
        filling: dict[int, _Filling] = {}
        for client_id, routing in recipients:
            name, value = client_id.encode(), encode_routing(routing)
            partition = partition_of(name, self._messages_partitions)
            size = len(name) + len(value)
            into = filling.get(partition)
            if (
                into is None
                or len(into.names) >= most
                or into.size + size > _MOST_RECIPIENTS_BYTES
                or client_id in into.names  # a record names a client once
            ):
                waits_for: list[ClientId] = []
                topic = self._settings.messages_topic
                record = RoutedRecord(topic, partition, None, message.payload, list(common), waits_for)
                into = filling[partition] = _Filling(record, waits_for)
                records.append(record)
            into.record.headers.append((RECIPIENT_PREFIX + client_id, value))
            if routing.qos and message.qos:
                into.waits_for.append(client_id)
            into.names.add(client_id)
            into.size += size
        return records

    def _headers(self, message: Message) -> list[tuple[str, bytes | None]]:
        now_ms = self._now_ms() if message.expires_at_ms is not None else 0
        return [(header.key, header.value) for header in message_headers(message, now_ms=now_ms)]


@dataclass(slots=True)
class _Filling:
    """A record that gets recipients.

    Attributes:
        size: Size of their names and values, in bytes.
    """

    record: RoutedRecord
    waits_for: list[ClientId]
    names: set[ClientId] = field(default_factory=set)
    size: int = 0
