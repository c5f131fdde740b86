"""SUBSCRIBE and UNSUBSCRIBE: what is granted, and what the acknowledgement says. The session keeps the subscriptions."""

from dataclasses import dataclass

from sinks.mqtt.access.grant import EVERYTHING, Grant
from sinks.mqtt.codec.packets import SubAck, Subscribe, UnsubAck, Unsubscribe
from sinks.mqtt_topics import is_shared, is_topic_filter, topic_levels
from state.errors import ProtocolViolation
from state.model import QoS, ReasonCode, Subscription


@dataclass(slots=True, eq=False)
class SubscriptionJudge:
    """Judges the subscriptions of one connection. Both answers have a code for each filter, in the order of the request, under
    its packet id [MQTT-2.2.1-6] [MQTT-3.8.4-2] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.10.4-5] [MQTT-3.11.3-1].

    topic_filters: those that the session holds; None = too many to be told, so any may be among them.
    grant: what the login allows; a filter that it does not cover is refused with 0x87, one that it hides with 0x80.
    max_subscriptions: how many there may be, max_subscription_bytes: how long together; 0 = no limit. One more is refused with
    0x97; resubscribing does not count twice. max_topic_levels: of a filter; 0 = no limit.
    """

    topic_filters: set[str] | None
    grant: Grant = EVERYTHING
    max_subscriptions: int = 0
    max_subscription_bytes: int = 0
    max_topic_levels: int = 0
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._bytes = sum(len(topic_filter.encode()) for topic_filter in self.topic_filters or ())

    def subscribe(
        self, subscribe: Subscribe, *, excess: int = 0, is_refused: bool = False
    ) -> tuple[SubAck, tuple[Subscription, ...]]:
        """The acknowledgement and what is granted. Raises ProtocolViolation for a subscription identifier, which CONNACK rules
        out.

        excess: further topic filters of the packet, which are refused. is_refused: all are, because the packet is over a limit.
        """
        if subscribe.subscription_id is not None:
            raise ProtocolViolation(
                "subscription identifiers are not available, as CONNACK says",
                reason_code=ReasonCode.SUBSCRIPTION_IDS_NOT_SUPPORTED,
            )
        if is_refused:
            codes = (int(ReasonCode.QUOTA_EXCEEDED),) * len(subscribe.subscriptions)
        else:
            codes = tuple(self._grant(asked) for asked in subscribe.subscriptions)
        granted = tuple(asked for asked, code in zip(subscribe.subscriptions, codes, strict=True) if code <= QoS.EXACTLY_ONCE)
        codes += (ReasonCode.QUOTA_EXCEEDED,) * excess
        return SubAck(packet_id=subscribe.packet_id, reason_codes=codes), granted

    def unsubscribe(
        self, unsubscribe: Unsubscribe, *, excess: int = 0, is_refused: bool = False
    ) -> tuple[UnsubAck, tuple[str, ...]]:
        """The acknowledgement and the valid filters, which the session drops where it holds them.

        excess, is_refused: as in `subscribe`. UNSUBACK does not have 0x97.
        """
        if is_refused:
            excess += len(unsubscribe.topic_filters)
            unsubscribe = Unsubscribe(packet_id=unsubscribe.packet_id, topic_filters=())
        valid = tuple(topic_filter for topic_filter in unsubscribe.topic_filters if is_topic_filter(topic_filter))
        codes = tuple(self._drop(topic_filter) for topic_filter in unsubscribe.topic_filters)
        codes += (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,) * excess
        return UnsubAck(packet_id=unsubscribe.packet_id, reason_codes=codes), valid

    def _grant(self, asked: Subscription) -> int:
        topic_filter = asked.topic_filter
        if is_shared(topic_filter):
            return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if not is_topic_filter(topic_filter) or 0 < self.max_topic_levels < topic_levels(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        if self.grant.hides(topic_filter):
            return ReasonCode.UNSPECIFIED_ERROR
        if not self.grant.may_subscribe(topic_filter):
            return ReasonCode.NOT_AUTHORIZED
        if self.topic_filters is None:
            return ReasonCode.QUOTA_EXCEEDED if self.max_subscription_bytes else asked.qos  # it is over the limit already
        if topic_filter not in self.topic_filters:
            size_bytes = self._bytes + len(topic_filter.encode())
            if 0 < self.max_subscriptions <= len(self.topic_filters) or 0 < self.max_subscription_bytes < size_bytes:
                return ReasonCode.QUOTA_EXCEEDED
            self.topic_filters.add(topic_filter)
            self._bytes = size_bytes
        return asked.qos

    def _drop(self, topic_filter: str) -> ReasonCode:
        if not is_topic_filter(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        if self.topic_filters is None:
            return ReasonCode.SUCCESS
        if topic_filter not in self.topic_filters:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self.topic_filters.remove(topic_filter)
        self._bytes -= len(topic_filter.encode())
        return ReasonCode.SUCCESS
