"""What a client has subscribed to, and which QoS that grants to a message on its way to it."""

from collections.abc import Iterable, Iterator
from typing import Final

from state.model import QoS, Subscription

TOLD_AT_MOST_BYTES: Final = 32_768
"""A gateway is told the topic filters of a session up to this size."""


def topic_matches(topic_filter: str, topic: str) -> bool:
    """Whether a valid topic filter matches a topic name [MQTT-4.7.1-1] [MQTT-4.7.1-2], character by character [MQTT-4.7.3-4];
    `$…` only by a filter that names it [MQTT-4.7.2-1]."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    levels = topic.split("/")
    wanted = topic_filter.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


class Subscriptions:
    """By topic filter; the same filter replaces the older subscription [MQTT-3.8.4-3]."""

    __slots__ = ("_by_filter",)

    def __init__(self, subscriptions: Iterable[Subscription] = ()) -> None:
        self._by_filter = {subscription.topic_filter: subscription for subscription in subscriptions}

    def add(self, subscription: Subscription) -> None:
        self._by_filter[subscription.topic_filter] = subscription

    def discard(self, topic_filter: str) -> None:
        """UNSUBSCRIBE, by exactly the same filter [MQTT-3.10.4-1] [MQTT-3.10.4-2]; what is in flight goes on [MQTT-3.10.4-3]."""
        self._by_filter.pop(topic_filter, None)

    def clear(self) -> None:
        self._by_filter.clear()

    def topic_filters(self) -> tuple[str, ...] | None:
        """For a gateway; None if they would make its command larger than a record of Kafka may be."""
        filters = tuple(self._by_filter)
        return filters if sum(len(topic_filter.encode()) for topic_filter in filters) <= TOLD_AT_MOST_BYTES else None

    def capped_qos(self, topic: str, qos: QoS) -> QoS:
        """The message's QoS, lowered to the best grant of all that match, if any do [MQTT-3.3.4-2] [MQTT-3.8.4-8]."""
        granted = [s.qos for s in self._by_filter.values() if topic_matches(s.topic_filter, topic)]
        return min(qos, max(granted)) if granted else qos

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_filter.values())

    def __len__(self) -> int:
        return len(self._by_filter)
