"""Converts MQTT 5 properties between paho's class and ours. Paho's class is untyped; it checks names and ranges on assignment."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from state.model import NO_PROPERTIES, PublishProperties, QoS
from state.records.properties import PROPERTIES

_PAHO_NAMES: Final = tuple(row.mqtt_name.replace(" ", "") for row in PROPERTIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """The limits that the broker's CONNACK sets (MQTT 5, 3.2.2.3). An MQTT 3.1.1 broker sets none."""

    receive_maximum: int = 65_535
    maximum_packet_size_bytes: int | None = None
    maximum_qos: QoS = QoS.EXACTLY_ONCE
    retain_available: bool = True
    shared_subscriptions: bool = True


def connect_properties(*, session_expiry_s: int, receive_maximum: int, maximum_packet_size_bytes: int) -> Properties:
    """Makes the properties of a CONNECT."""
    packed: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    packed.SessionExpiryInterval = session_expiry_s
    packed.ReceiveMaximum = receive_maximum
    packed.MaximumPacketSize = maximum_packet_size_bytes
    return packed  # type: ignore[no-any-return]


def read_limits(properties: Properties | None) -> BrokerLimits:
    """Reads the limits from a CONNACK; None (MQTT 3.1.1) = the broker does not say."""

    def limit(name: str, default: Any) -> Any:
        return getattr(properties, name, default)

    return BrokerLimits(
        receive_maximum=limit("ReceiveMaximum", 65_535),
        maximum_packet_size_bytes=limit("MaximumPacketSize", None),
        maximum_qos=QoS(limit("MaximumQoS", 2)),
        retain_available=bool(limit("RetainAvailable", 1)),
        shared_subscriptions=bool(limit("SharedSubscriptionAvailable", 1)),
    )


def to_paho(properties: PublishProperties, expiry_interval_s: int | None) -> Properties:
    """Makes the properties of a PUBLISH."""
    packed: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if expiry_interval_s is not None:
        packed.MessageExpiryInterval = expiry_interval_s
    for name, value in zip(_PAHO_NAMES, msgspec.structs.astuple(properties), strict=True):
        if value is not None and value != ():
            setattr(packed, name, list(value) if isinstance(value, tuple) else value)
    return packed  # type: ignore[no-any-return]


def from_paho(properties: Any) -> PublishProperties:
    """Reads the properties of a PUBLISH; None (MQTT 3.1.1) = it has none."""
    if properties is None or properties.isEmpty():
        return NO_PROPERTIES
    found: dict[str, Any] = {}
    for row, name in zip(PROPERTIES, _PAHO_NAMES, strict=True):
        value = getattr(properties, name, None)
        if value is not None:
            found[row.field] = tuple((key, text) for key, text in value) if isinstance(value, list) else value
    return PublishProperties(**found)
