"""Reads `inflight.subscriptions` and `inflight.retained` to their ends, as a matcher does.

Says who would get a message of a topic now, what a client subscribes to, and what is retained.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from sinks.mqtt_topics import is_shared
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.subscription_table import ClientEntry, SubscriptionTable
from state.inbound.subscriptions import SHARE_PREFIX, topic_matches
from streaming.history.output import beginning_of
from streaming.history.sources.kafka_reader import reading
from streaming.history.sources.source import SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A subscription of a client.

    Attributes:
        group: Of a shared subscription; empty = it is not shared.
        identifier: None = the client gave none.
        is_online: None = not known.
    """

    client_id: str
    topic_filter: str
    qos: int
    group: str
    identifier: int | None
    no_local: bool
    retain_as_published: bool
    is_online: bool | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedMessage:
    """A message that later subscribers of its topic get. Times are ms since 1970.

    Attributes:
        publisher: The device; empty = a backend.
        payload: Its beginning, for people.
        expires_at_ms: None = never.
    """

    topic: str
    publisher: str
    qos: int
    size_bytes: int
    payload: str
    accepted_ms: int
    expires_at_ms: int | None


def read_retained(
    settings: "Settings",
    topic_filter: str,
    on_progress: Callable[[int, int], None],
    *,
    now_ms: int,
    most: int,
    payload_bytes: int,
) -> list[RetainedMessage]:
    """Returns retained messages that a valid filter matches, at most `most`.

    Raises:
        KafkaUnreachable, NothingFound: Without Kafka, or without the topic.
    """
    tables = RoutingTables()
    with reading(settings) as reader:
        ranges = reader.ranges([settings.topics.retained], SourceLimits(max_records=0))
        for record in reader.records(ranges, on_progress):
            tables.read_retained(record.key, record.value, record.headers, record.timestamp)
    return [
        RetainedMessage(
            topic=topic,
            publisher=entry.content.publisher,
            qos=entry.content.message.qos,
            size_bytes=len(entry.content.message.payload),
            payload=beginning_of(entry.content.message.payload, payload_bytes),
            accepted_ms=entry.content.message.accepted_ms,
            expires_at_ms=entry.expires_at_ms,
        )
        for topic, entry in islice(tables.retained.match(topic_filter, now_ms), most)
    ]


def read_subscriptions(
    settings: "Settings", on_progress: Callable[[int, int], None], *, client_id: str | None = None
) -> SubscriptionTable:
    """Returns the subscriptions of all clients, or those of the clients in one client's partition.

    Raises:
        KafkaUnreachable, NothingFound: Without Kafka, or without the topic.
    """
    tables = RoutingTables()
    with reading(settings) as reader:
        ranges = reader.ranges([settings.topics.subscriptions], SourceLimits(client_id=client_id, max_records=0))
        for record in reader.records(ranges, on_progress):
            tables.read_list(record.key, record.value, record.headers)
    return tables.subscriptions


def subscribers_of(table: SubscriptionTable, topic: str) -> list[Subscriber]:
    """Returns the subscriptions that match a topic name, by client; then the shared ones, by group."""
    match = table.match(topic)
    found = [
        _subscriber(entry, topic_filter)
        for entry, _ in match.clients
        for topic_filter in entry.subscriptions
        if not is_shared(topic_filter) and topic_matches(topic_filter, topic)
    ]
    found += [_subscriber(entry, group.shared_filter) for group in match.groups for entry in group.members]
    return sorted(found, key=lambda one: (one.group, one.client_id, one.topic_filter))


def subscriptions_of(table: SubscriptionTable, client_id: str) -> Iterator[Subscriber]:
    """Yields the subscriptions of a client."""
    entry = table.get(client_id)
    if entry is not None:
        for topic_filter in entry.subscriptions:
            yield _subscriber(entry, topic_filter)


def _subscriber(entry: ClientEntry, topic_filter: str) -> Subscriber:
    options = entry.subscriptions[topic_filter]
    group, plain_filter = "", topic_filter
    if is_shared(topic_filter):
        group, _, plain_filter = topic_filter.removeprefix(SHARE_PREFIX).partition("/")
    return Subscriber(
        client_id=entry.client_id,
        topic_filter=plain_filter,
        qos=options.qos,
        group=group,
        identifier=options.identifier,
        no_local=options.no_local,
        retain_as_published=options.retain_as_published,
    )
