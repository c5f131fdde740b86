"""MQTT 5 properties as paho has them ⇄ ours. paho's class is untyped and checks names and ranges when they are set."""

from dataclasses import dataclass
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from state.model import NO_PROPERTIES, PublishProperties, QoS


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """What the broker's CONNACK allows (MQTT 5, 3.2.2.3); an MQTT 3.1.1 broker does not say."""

    receive_maximum: int = 65_535
    maximum_packet_size_bytes: int | None = None
    maximum_qos: QoS = QoS.EXACTLY_ONCE
    retain_available: bool = True
    shared_subscriptions: bool = True


def connect_properties(*, session_expiry_s: int, receive_maximum: int, maximum_packet_size_bytes: int) -> Properties:
    """Of CONNECT."""
    packed: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    packed.SessionExpiryInterval = session_expiry_s
    packed.ReceiveMaximum = receive_maximum
    packed.MaximumPacketSize = maximum_packet_size_bytes
    return packed  # type: ignore[no-any-return]


def read_limits(properties: Properties | None) -> BrokerLimits:
    """Of CONNACK; None (MQTT 3.1.1) = the broker does not say."""

    def said(name: str, default: Any) -> Any:
        return getattr(properties, name, default)

    return BrokerLimits(
        receive_maximum=said("ReceiveMaximum", 65_535),
        maximum_packet_size_bytes=said("MaximumPacketSize", None),
        maximum_qos=QoS(said("MaximumQoS", 2)),
        retain_available=bool(said("RetainAvailable", 1)),
        shared_subscriptions=bool(said("SharedSubscriptionAvailable", 1)),
    )


def to_paho(properties: PublishProperties, expiry_interval_s: int | None) -> Properties:
    """Of PUBLISH."""
    packed: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if expiry_interval_s is not None:
        packed.MessageExpiryInterval = expiry_interval_s
    if properties.payload_format is not None:
        packed.PayloadFormatIndicator = properties.payload_format
    if properties.content_type is not None:
        packed.ContentType = properties.content_type
    if properties.response_topic is not None:
        packed.ResponseTopic = properties.response_topic
    if properties.correlation_data is not None:
        packed.CorrelationData = properties.correlation_data
    if properties.user_properties:
        packed.UserProperty = list(properties.user_properties)
    return packed  # type: ignore[no-any-return]


def from_paho(properties: Any) -> PublishProperties:
    """Of PUBLISH; None (MQTT 3.1.1) = none."""
    if properties is None or properties.isEmpty():
        return NO_PROPERTIES
    return PublishProperties(
        payload_format=getattr(properties, "PayloadFormatIndicator", None),
        content_type=getattr(properties, "ContentType", None),
        response_topic=getattr(properties, "ResponseTopic", None),
        correlation_data=getattr(properties, "CorrelationData", None),
        user_properties=tuple((name, value) for name, value in getattr(properties, "UserProperty", ())),
    )
