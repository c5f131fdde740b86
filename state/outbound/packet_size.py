"""Computes the size of a PUBLISH on the wire before it is encoded, for the client's Maximum Packet Size [MQTT-3.1.2-24]."""

from typing import Final

from state.model import Message
from state.records.properties import properties_bytes

_EXPIRY_INTERVAL_BYTES: Final = 5


def publish_packet_bytes(message: Message, *, qos: int, protocol_version: int, expires: bool) -> int:
    """Returns the size of the whole packet, fixed header included.

    Args:
        expires: The packet has a Message Expiry Interval.
    """
    body = 2 + len(message.topic.encode()) + (2 if qos else 0) + len(message.payload)
    if protocol_version >= 5:
        properties = properties_bytes(message.properties) + (_EXPIRY_INTERVAL_BYTES if expires else 0)
        if message.routing is not None:
            properties += sum(1 + _variable_byte_integer_bytes(number) for number in message.routing.subscription_ids)
        body += _variable_byte_integer_bytes(properties) + properties
    return 1 + _variable_byte_integer_bytes(body) + body


def _variable_byte_integer_bytes(value: int) -> int:
    return 1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4
