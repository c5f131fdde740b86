"""Knows the subscriptions of all clients, and finds those that match a topic [MQTT-3.3.2-3].

1. A client has one entry: its highest list, by `order_of` (state/records/subscriptions.py), in whatever order lists are read.
2. A client that has ended has no entry, and no list of the connection that has ended, or of an earlier one, gives it one.
3. A filter with one subscriber refers to the client's entry. A filter with several has a dict of entries, so a SUBSCRIBE changes
   one key of it, however many subscribers there are.
4. Filters with wildcards are found by their shapes (wildcard_shapes.py).

Equal filters and equal options of many clients are one object. `python -m bench.subscription_gateway` measures the table.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import msgspec

from sinks.mqtt_topics import is_of_the_server, is_shared
from sinks.routing.retained_once import RecentSubscriptions
from sinks.routing.wildcard_shapes import WildcardShapes
from state.inbound.subscriptions import SHARE_PREFIX
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList, order_of

_CACHED_OPTIONS: Final = 4_096
_MOST_ENDED: Final = 100_000
"""These take 20 MB if client ids have 20 characters."""


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of one subscription that decide how a publication is forwarded.

    Attributes:
        identifier: The subscription identifier, 1 to 268,435,455; None = the client gave none.
    """

    qos: QoS
    no_local: bool
    retain_as_published: bool
    identifier: int | None


@dataclass(slots=True, kw_only=True, eq=False)
class ClientEntry:
    """The highest list of a client. Only its table changes it.

    Attributes:
        version: Number of the list within the connection.
        is_online: True if the client was online when the list was written.
        subscriptions: Options by topic filter. A shared subscription has its whole filter, `$share/GROUP/FILTER`.
    """

    client_id: str
    connection_id: int
    version: int
    is_online: bool
    subscriptions: Mapping[str, SubscriptionOptions]

    def as_list(self) -> SubscriptionList:
        """Returns the list as its record has it, but for what only the SUBSCRIBE needed: Retain Handling and wanted filters."""
        return SubscriptionList(
            connection_id=self.connection_id,
            version=self.version,
            is_online=self.is_online,
            subscriptions=tuple(
                Subscription(
                    topic_filter=topic_filter,
                    qos=options.qos,
                    no_local=options.no_local,
                    retain_as_published=options.retain_as_published,
                    identifier=options.identifier,
                )
                for topic_filter, options in self.subscriptions.items()
            ),
        )


class GroupMatch(NamedTuple):
    """A shared subscription that matches a topic.

    Attributes:
        shared_filter: `$share/GROUP/FILTER`, the key of a member's options in its `subscriptions`.
        members: At least one, in the order in which they subscribed; not a copy.
    """

    group: str
    topic_filter: str
    shared_filter: str
    members: Collection[ClientEntry]


ClientMatch: TypeAlias = tuple[ClientEntry, tuple[SubscriptionOptions, ...]]
"""A client, and the options of each of its subscriptions that match; at least one."""


class TopicMatch(NamedTuple):
    """The subscribers of a topic. It holds until the table changes; `clients` can be read once.

    Attributes:
        clients: Each client with a matching subscription that is not shared, once.
        groups: Each matching shared subscription. A member may be among `clients`, too.
    """

    clients: Iterator[ClientMatch]
    groups: tuple[GroupMatch, ...]


class SubscriptionTable:
    """Holds the subscriptions of all clients. One thread uses it; others may call `get` and `len`.

    The table remembers that a client has ended, because a late record must not bring its subscriptions back. It remembers the
    last `most_ended` of them. A forgotten one that comes back costs records for a session that does not exist, and no message.

    Attributes:
        recent: When subscriptions began that asked for retained messages.
    """

    def __init__(self, *, most_ended: int = _MOST_ENDED) -> None:
        self.recent = RecentSubscriptions()
        self._entries: dict[str, ClientEntry] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        """The last connections of clients that have ended; the client that ended last is the last key."""
        self._most_ended = most_ended
        self._subscribers = _Subscribers()
        self._members = _Subscribers()
        """Members of shared subscriptions by their whole filters."""
        self._groups: dict[str, dict[str, str]] = {}
        """Whole filters of shared subscriptions by FILTER and GROUP."""
        self._shapes = WildcardShapes()
        self._subscription_count = 0
        self._filters_of_the_server = 0
        """Different filters below $SYS, shared ones included."""

    def replace(self, client_id: str, new: SubscriptionList, time_ms: int = 0) -> bool:
        """Puts a list instead of the client's former one.

        Args:
            time_ms: Time of the record, in ms since 1970.

        Returns:
            False, and nothing changed, if the table holds a higher list, or knows that the list's connection has ended.
        """
        entry = self._entries.get(client_id)
        if entry is None:
            if new.connection_id <= self._ended.get(client_id, -1):
                return False
            self._ended.pop(client_id, None)
            entry = ClientEntry(
                client_id=client_id,
                connection_id=new.connection_id,
                version=new.version,
                is_online=new.is_online,
                subscriptions={},
            )
            self._entries[client_id] = entry
        elif order_of(new) < (entry.connection_id, entry.version, not entry.is_online):
            return False
        if new.wanted:
            had = entry.subscriptions if entry.connection_id == new.connection_id else ()
            if begun := [each for each in new.wanted if each not in had]:
                self.recent.began(client_id, begun, time_ms)
        entry.connection_id, entry.version, entry.is_online = new.connection_id, new.version, new.is_online
        self._subscribe(entry, {subscription.topic_filter: _options(subscription) for subscription in new.subscriptions})
        return True

    def end(self, client_id: str, connection_id: int) -> bool:
        """Removes a client whose session has ended.

        Args:
            connection_id: The last connection of the session.

        Returns:
            False, and nothing changed, if the table holds a list of a later connection, or knows of this end or a later one.
        """
        entry = self._entries.get(client_id)
        if entry is None:
            if connection_id <= self._ended.get(client_id, -1):
                return False
        elif connection_id < entry.connection_id:
            return False
        else:
            self._subscribe(entry, {})
            del self._entries[client_id]
        self._ended[client_id] = connection_id
        self._ended.move_to_end(client_id)
        if len(self._ended) > self._most_ended:
            self._ended.popitem(last=False)
        return True

    def match(self, topic: str) -> TopicMatch:
        """Returns the subscribers of a valid topic name."""
        found: list[str] = []
        groups: list[GroupMatch] = []
        for topic_filter in self._shapes.candidates(topic):
            if topic_filter in self._subscribers:
                found.append(topic_filter)
            if topic_filter in self._groups:
                for group, shared_filter in self._groups[topic_filter].items():
                    groups.append(GroupMatch(group, topic_filter, shared_filter, self._members.of(shared_filter)))
        return TopicMatch(self._clients(found), tuple(groups))

    def get(self, client_id: str) -> ClientEntry | None:
        """Returns None for a client that is unknown or has ended."""
        return self._entries.get(client_id)

    @property
    def subscription_count(self) -> int:
        """The number of all subscriptions of all clients, shared ones included."""
        return self._subscription_count

    @property
    def has_subscribers_of_the_server(self) -> bool:
        """Returns True if a filter names `$SYS`. Any thread may ask."""
        return self._filters_of_the_server > 0

    def __len__(self) -> int:
        """Returns the number of clients; a client with an empty list counts."""
        return len(self._entries)

    def __iter__(self) -> Iterator[ClientEntry]:
        return iter(self._entries.values())

    def _clients(self, found: list[str]) -> Iterator[ClientMatch]:
        """Yields each client at the first of the filters that it has."""
        for position, topic_filter in enumerate(found):
            others = found[position + 1 :]
            for entry in self._subscribers.of(topic_filter):
                subscriptions = entry.subscriptions
                if position and any(earlier in subscriptions for earlier in found[:position]):
                    continue
                if others:
                    more = [subscriptions[other] for other in others if other in subscriptions]
                    yield entry, (subscriptions[topic_filter], *more)
                else:
                    yield entry, (subscriptions[topic_filter],)

    def _subscribe(self, entry: ClientEntry, subscriptions: Mapping[str, SubscriptionOptions]) -> None:
        former = entry.subscriptions
        # The keys of `former` are kept: they are the same objects as the keys of the table, and each is in memory once.
        listed = {topic_filter: subscriptions[topic_filter] for topic_filter in former if topic_filter in subscriptions}
        for topic_filter in former:
            if topic_filter not in listed:
                self._discard(topic_filter, entry)
        for topic_filter, options in subscriptions.items():
            if topic_filter not in listed:
                listed[self._add(topic_filter, entry)] = options
        entry.subscriptions = listed
        self._subscription_count += len(listed) - len(former)

    def _add(self, topic_filter: str, entry: ClientEntry) -> str:
        """Returns the filter as the object that other clients have, too."""
        if not is_shared(topic_filter):
            if topic_filter not in self._subscribers:
                self._shapes.add(topic_filter)
                self._filters_of_the_server += is_of_the_server(topic_filter)
            return self._subscribers.add(topic_filter, entry)
        group, plain_filter = _group_and_filter(topic_filter)
        if topic_filter not in self._members:
            self._shapes.add(plain_filter)
            self._filters_of_the_server += is_of_the_server(plain_filter)
            self._groups.setdefault(plain_filter, {})[group] = topic_filter
        return self._members.add(topic_filter, entry)

    def _discard(self, topic_filter: str, entry: ClientEntry) -> None:
        if not is_shared(topic_filter):
            if self._subscribers.discard(topic_filter, entry):
                self._shapes.discard(topic_filter)
                self._filters_of_the_server -= is_of_the_server(topic_filter)
        elif self._members.discard(topic_filter, entry):
            group, plain_filter = _group_and_filter(topic_filter)
            self._shapes.discard(plain_filter)
            self._filters_of_the_server -= is_of_the_server(plain_filter)
            groups = self._groups[plain_filter]
            del groups[group]
            if not groups:
                del self._groups[plain_filter]


class _Crowd:
    """Several subscribers of one filter.

    Attributes:
        topic_filter: The object that each of them has as its key.
    """

    __slots__ = ("entries", "topic_filter")

    def __init__(self, topic_filter: str, first: ClientEntry) -> None:
        self.topic_filter = topic_filter
        self.entries: dict[ClientEntry, None] = {first: None}


class _Subscribers:
    """Holds who has which filter. Most filters of a fleet have one subscriber, so those need no dict."""

    __slots__ = ("_by_filter",)

    def __init__(self) -> None:
        self._by_filter: dict[str, ClientEntry | _Crowd] = {}

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._by_filter

    def of(self, topic_filter: str) -> Collection[ClientEntry]:
        """Returns the subscribers of a filter that somebody has, in the order in which they subscribed; not a copy."""
        held = self._by_filter[topic_filter]
        return held.entries.keys() if isinstance(held, _Crowd) else (held,)

    def add(self, topic_filter: str, entry: ClientEntry) -> str:
        """Returns an equal filter, which the entry should have as its key."""
        held = self._by_filter.get(topic_filter)
        if held is None:
            self._by_filter[topic_filter] = entry
            return topic_filter
        if not isinstance(held, _Crowd):
            held = self._by_filter[topic_filter] = _Crowd(topic_filter, held)
        held.entries[entry] = None
        return held.topic_filter

    def discard(self, topic_filter: str, entry: ClientEntry) -> bool:
        """Returns True if nobody else has the filter."""
        held = self._by_filter[topic_filter]
        if isinstance(held, _Crowd):
            del held.entries[entry]
            if held.entries:
                return False
        del self._by_filter[topic_filter]
        return True


def _options(subscription: Subscription) -> SubscriptionOptions:
    return _options_of(subscription.qos, subscription.no_local, subscription.retain_as_published, subscription.identifier)


@lru_cache(maxsize=_CACHED_OPTIONS)
def _options_of(qos: QoS, no_local: bool, retain_as_published: bool, identifier: int | None) -> SubscriptionOptions:
    """Returns the same object for the same options, because a million subscriptions have few different ones."""
    return SubscriptionOptions(qos=qos, no_local=no_local, retain_as_published=retain_as_published, identifier=identifier)


def _group_and_filter(shared_filter: str) -> tuple[str, str]:
    group, _, topic_filter = shared_filter.removeprefix(SHARE_PREFIX).partition("/")
    return group, topic_filter
