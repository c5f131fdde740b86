"""The rule by which a retained publication comes once to a client that subscribes at about the same time, and what it needs.

The gateway of its publisher writes it to `inflight.retained`, and to `inflight.uplink` when Kafka has that record. So the client
could get it live, from the matcher that reads `uplink`, and as the retained message that its SUBSCRIBE asks for, from the matcher
that reads the list of subscriptions. The times of the two records decide:

1. Retained before the list: it comes as retained message. Live it is left out.
2. Retained behind the list: it comes live, because it is behind the list in `uplink`, too. As retained message it is left out.

So the matcher of `uplink` has to know what was retained before a list that it knows (`retained_matters`).

Brokers have clocks of their own. With several of them, what is closer together than these may differ comes both ways.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from state.model import ClientId

_MOST_RETAINED: Final = 20_000
"""These take 4 MB."""
_MOST_SUBSCRIPTIONS: Final = 20_000
"""These take 9 MB if each is of another client."""
_MOST_BETWEEN_MS: Final = 10_000
"""Time between the two records of a retained publication. It takes milliseconds."""


class RecentSubscriptions:
    """Holds when subscriptions began that asked for retained messages: those of the clients that subscribed last.

    What it has forgotten may come both ways.

    Attributes:
        newest_ms: When the last one began, in ms since 1970.
    """

    def __init__(self, *, most: int = _MOST_SUBSCRIPTIONS) -> None:
        self.newest_ms = 0
        self._most = most
        self._count = 0
        self._began_ms: OrderedDict[ClientId, dict[str, int]] = OrderedDict()
        """By client and topic filter; of both the newest is the last one."""

    def began(self, client_id: ClientId, topic_filters: Collection[str], time_ms: int) -> None:
        """Notes subscriptions.

        Args:
            topic_filters: At least one.
            time_ms: Time of the record of the list, in ms since 1970.
        """
        self.newest_ms = max(self.newest_ms, time_ms)
        known = self._began_ms.setdefault(client_id, {})
        self._began_ms.move_to_end(client_id)
        self._count -= len(known)
        for topic_filter in topic_filters:
            known.pop(topic_filter, None)
            known[topic_filter] = time_ms
        self._count += len(known)
        while self._count > self._most and len(self._began_ms) > 1:
            _, forgotten = self._began_ms.popitem(last=False)
            self._count -= len(forgotten)

    def began_behind(self, client_id: ClientId, time_ms: int) -> Collection[str]:
        """Returns the topic filters of the client's subscriptions that are known to have begun after a time."""
        known = self._began_ms.get(client_id)
        if known is None or known[next(reversed(known))] <= time_ms:  # most publications are behind all subscriptions
            return ()
        return {topic_filter for topic_filter, began_ms in known.items() if began_ms > time_ms}

    def retained_matters(self, first_ms: int) -> bool:
        """Returns True if a subscription may have begun between the two records of a publication.

        Args:
            first_ms: Time of the earliest of the publications in `uplink`, in ms since 1970.
        """
        return self.newest_ms > first_ms - _MOST_BETWEEN_MS


class RecentlyRetained:
    """Holds when the last publications were retained.

    What it has forgotten may come both ways.
    """

    def __init__(self, *, most: int = _MOST_RETAINED) -> None:
        self._most = most
        self._times_ms: OrderedDict[bytes, int] = OrderedDict()

    def add(self, inflight_id: bytes, time_ms: int) -> None:
        """Notes a record of `inflight.retained`.

        Args:
            time_ms: Time of the record, in ms since 1970.
        """
        self._times_ms[inflight_id] = time_ms
        if len(self._times_ms) > self._most:
            self._times_ms.popitem(last=False)

    def time_ms(self, inflight_id: bytes) -> int | None:
        """Returns None if it is not known."""
        return self._times_ms.get(inflight_id)
