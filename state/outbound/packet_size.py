"""Computes the size of a PUBLISH on the wire before it is encoded, for the client's Maximum Packet Size [MQTT-3.1.2-24]."""

from typing import Final

from state.model import Message, PublishProperties

_STRING_PREFIX: Final = 2
_PROPERTY_ID: Final = 1


def publish_packet_bytes(message: Message, *, qos: int, protocol_version: int, expires: bool) -> int:
    """Returns the size of the whole packet, fixed header included.

    Args:
        expires: The packet has a Message Expiry Interval.
    """
    body = _text(message.topic) + (2 if qos else 0) + len(message.payload)
    if protocol_version >= 5:
        properties = properties_bytes(message.properties) + (_PROPERTY_ID + 4 if expires else 0)
        body += _variable_byte_integer_bytes(properties) + properties
    return 1 + _variable_byte_integer_bytes(body) + body


def properties_bytes(properties: PublishProperties) -> int:
    """Returns the size of the encoded properties, without their length field."""
    size = 0
    if properties.payload_format is not None:
        size += _PROPERTY_ID + 1
    for text in (properties.content_type, properties.response_topic):
        if text is not None:
            size += _PROPERTY_ID + _text(text)
    if properties.correlation_data is not None:
        size += _PROPERTY_ID + _STRING_PREFIX + len(properties.correlation_data)
    return size + sum(_PROPERTY_ID + _text(name) + _text(value) for name, value in properties.user_properties)


def _text(text: str) -> int:
    return _STRING_PREFIX + len(text.encode())


def _variable_byte_integer_bytes(value: int) -> int:
    return 1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4
