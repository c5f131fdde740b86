"""SUBSCRIBE and UNSUBSCRIBE: what is granted, and what the acknowledgement says. Pure; the session keeps the subscriptions."""

from sinks.mqtt.packets import SubAck, Subscribe, UnsubAck, Unsubscribe
from sinks.mqtt.topics import is_shared, is_topic_filter
from state.errors import ProtocolViolation
from state.model import QoS, ReasonCode, Subscription


def judge_subscribe(subscribe: Subscribe) -> tuple[SubAck, tuple[Subscription, ...]]:
    """The acknowledgement and what is granted. Raises ProtocolViolation for a subscription identifier: CONNACK rules it out."""
    if subscribe.subscription_id is not None:
        raise ProtocolViolation(
            "subscription identifiers are not available, as CONNACK says", reason_code=ReasonCode.SUBSCRIPTION_IDS_NOT_SUPPORTED
        )
    codes = tuple(_grant(asked) for asked in subscribe.subscriptions)
    granted = tuple(asked for asked, code in zip(subscribe.subscriptions, codes, strict=True) if code <= QoS.EXACTLY_ONCE)
    return SubAck(packet_id=subscribe.packet_id, reason_codes=codes), granted


def _grant(asked: Subscription) -> int:
    if is_shared(asked.topic_filter):
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    return asked.qos if is_topic_filter(asked.topic_filter) else ReasonCode.TOPIC_FILTER_INVALID


def judge_unsubscribe(unsubscribe: Unsubscribe) -> tuple[UnsubAck, tuple[str, ...]]:
    """The acknowledgement and the valid filters. Whether a subscription existed only the session knows."""
    valid = tuple(topic_filter for topic_filter in unsubscribe.topic_filters if is_topic_filter(topic_filter))
    codes = tuple(
        ReasonCode.SUCCESS if is_topic_filter(topic_filter) else ReasonCode.TOPIC_FILTER_INVALID
        for topic_filter in unsubscribe.topic_filters
    )
    return UnsubAck(packet_id=unsubscribe.packet_id, reason_codes=codes), valid
