"""SUBSCRIBE and UNSUBSCRIBE: what is granted, and what the acknowledgement says. The session keeps the subscriptions."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from sinks.mqtt.access.grant import EVERYTHING, Grant
from sinks.mqtt.codec.packets import SubAck, Subscribe, UnsubAck, Unsubscribe
from sinks.mqtt_topics import filter_of_shared, is_shared, is_topic_filter, topic_levels
from state.commands import AcceptConnection
from state.errors import ProtocolViolation
from state.model import QoS, ReasonCode, Subscription

_EVERY_SUBSCRIBE: Final = 0
_NEW_SUBSCRIPTIONS: Final = 1


class Granted(NamedTuple):
    """The result of a SUBSCRIBE.

    Attributes:
        subscriptions: In the order of the request.
        wanted: The filters whose retained messages the client gets.
        is_change: The list of the client's subscriptions is another one now.
    """

    answer: SubAck
    subscriptions: tuple[Subscription, ...]
    wanted: tuple[str, ...]
    is_change: bool


class Dropped(NamedTuple):
    """The result of an UNSUBSCRIBE.

    Attributes:
        topic_filters: The valid ones, which the session drops where it holds them.
        is_change: As in Granted. An unknown list may be another one.
    """

    answer: UnsubAck
    topic_filters: tuple[str, ...]
    is_change: bool


@dataclass(slots=True, eq=False)
class SubscriptionJudge:
    """Judges the subscriptions of one connection.

    Both answers have a code for each filter, in the order of the request, under its packet id [MQTT-2.2.1-6] [MQTT-3.8.4-2]
    [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.10.4-5] [MQTT-3.11.3-1]. A new filter beyond `max_subscriptions` or
    `max_subscription_bytes` is refused with 0x97; resubscribing does not count twice.

    Attributes:
        subscriptions: Those that the session holds, by their filters; without routing some have no value. None = too many to be
            told, so any may be among them.
        grant: What the login allows. A filter that it does not cover is refused with 0x87, one that it hides with 0x80.
        max_subscriptions: How many there may be; 0 = no limit.
        max_subscription_bytes: How long the filters may be together; 0 = no limit.
        max_topic_levels: Levels of a filter; 0 = no limit.
        has_routing: True if there are shared subscriptions and subscription identifiers.
        is_bridge: True for a broker that connects as a bridge with MQTT 3.1 or 3.1.1, which cannot ask for it: its subscriptions
            have No Local, or its publications would go round, and Retain As Published.
    """

    subscriptions: dict[str, Subscription | None] | None = field(default_factory=dict)
    grant: Grant = EVERYTHING
    max_subscriptions: int = 0
    max_subscription_bytes: int = 0
    max_topic_levels: int = 0
    has_routing: bool = False
    is_bridge: bool = False
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._bytes = sum(len(topic_filter.encode()) for topic_filter in self.subscriptions or ())

    def subscribe(self, subscribe: Subscribe, *, excess: int = 0, is_refused: bool = False) -> Granted:
        """Grants or refuses each filter.

        Args:
            excess: Further topic filters of the packet, which are refused.
            is_refused: True if all are refused, because the packet is over a limit.

        Raises:
            ProtocolViolation: The packet has a subscription identifier, and CONNACK rules it out.
        """
        identifier = subscribe.subscription_id
        if identifier is not None and not self.has_routing:
            raise ProtocolViolation(
                "subscription identifiers are not available, as CONNACK says",
                reason_code=ReasonCode.SUBSCRIPTION_IDS_NOT_SUPPORTED,
            )
        codes: list[int] = []
        granted: list[Subscription] = []
        wanted: dict[str, None] = {}
        is_change = False
        for asked in subscribe.subscriptions:
            code = ReasonCode.QUOTA_EXCEEDED if is_refused else self._judge(asked.topic_filter) or asked.qos
            codes.append(int(code))
            if code > QoS.EXACTLY_ONCE:
                continue
            if self.is_bridge:
                asked = msgspec.structs.replace(asked, no_local=not is_shared(asked.topic_filter), retain_as_published=True)
            if identifier is not None:
                asked = msgspec.structs.replace(asked, identifier=identifier)
            granted.append(asked)
            is_change |= self._add(asked, wanted)
        codes += (ReasonCode.QUOTA_EXCEEDED,) * excess
        answer = SubAck(packet_id=subscribe.packet_id, reason_codes=tuple(codes))
        return Granted(answer, tuple(granted), tuple(wanted), is_change)

    def unsubscribe(self, unsubscribe: Unsubscribe, *, excess: int = 0, is_refused: bool = False) -> Dropped:
        """Drops each valid filter. UNSUBACK does not have 0x97.

        Args:
            excess, is_refused: As in `subscribe`.
        """
        if is_refused:
            excess += len(unsubscribe.topic_filters)
            unsubscribe = Unsubscribe(packet_id=unsubscribe.packet_id, topic_filters=())
        valid = tuple(topic_filter for topic_filter in unsubscribe.topic_filters if is_topic_filter(topic_filter))
        codes = tuple(self._drop(topic_filter) for topic_filter in unsubscribe.topic_filters)
        is_change = ReasonCode.SUCCESS in codes
        codes += (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,) * excess
        return Dropped(UnsubAck(packet_id=unsubscribe.packet_id, reason_codes=codes), valid, is_change)

    def listed(self) -> tuple[Subscription, ...]:
        """Returns all subscriptions. Call it only with routing, where each has a value, and if they are known."""
        assert self.subscriptions is not None
        return tuple(subscription for subscription in self.subscriptions.values() if subscription is not None)

    def _judge(self, topic_filter: str) -> ReasonCode | None:
        """Returns why a filter is refused; None = it is granted."""
        plain_filter = topic_filter
        if is_shared(topic_filter):
            if not self.has_routing:
                return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            plain_filter = filter_of_shared(topic_filter)
        if not is_topic_filter(plain_filter) or 0 < self.max_topic_levels < topic_levels(plain_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        if self.grant.hides(plain_filter):
            return ReasonCode.UNSPECIFIED_ERROR
        if not self.grant.may_subscribe(plain_filter):
            return ReasonCode.NOT_AUTHORIZED
        if self.subscriptions is None:  # the session is over the limit already, or cannot say what is in its list
            return ReasonCode.QUOTA_EXCEEDED if self.max_subscription_bytes or self.has_routing else None
        if topic_filter not in self.subscriptions:
            size_bytes = self._bytes + len(topic_filter.encode())
            if 0 < self.max_subscriptions <= len(self.subscriptions) or 0 < self.max_subscription_bytes < size_bytes:
                return ReasonCode.QUOTA_EXCEEDED
        return None

    def _add(self, granted: Subscription, wanted: dict[str, None]) -> bool:
        """Returns False if nothing changes. Adds the filter to `wanted` by its Retain Handling [MQTT-3.3.1-9] [MQTT-3.3.1-10]."""
        topic_filter, subscriptions = granted.topic_filter, self.subscriptions
        if subscriptions is None:
            return True
        is_new = topic_filter not in subscriptions
        is_wanted = granted.retain_handling == _EVERY_SUBSCRIBE or (is_new and granted.retain_handling == _NEW_SUBSCRIPTIONS)
        if is_wanted and not is_shared(topic_filter):
            wanted[topic_filter] = None
        if is_new:
            self._bytes += len(topic_filter.encode())
        elif subscriptions[topic_filter] == granted:
            return False
        subscriptions[topic_filter] = granted  # instead of the former one [MQTT-3.8.4-3]
        return True

    def _drop(self, topic_filter: str) -> ReasonCode:
        if not is_topic_filter(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        if self.subscriptions is None:
            return ReasonCode.SUCCESS
        if topic_filter not in self.subscriptions:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        del self.subscriptions[topic_filter]
        self._bytes -= len(topic_filter.encode())
        return ReasonCode.SUCCESS


def known_subscriptions(accept: AcceptConnection, *, has_routing: bool) -> dict[str, Subscription | None] | None:
    """Returns the subscriptions of an accepted session, as far as the judge needs them; None = they are not known."""
    if has_routing:
        if accept.subscriptions is None:
            return None
        return {subscription.topic_filter: subscription for subscription in accept.subscriptions}
    return None if accept.topic_filters is None else dict.fromkeys(accept.topic_filters)
