"""The packets of attackers: what a well-meaning client never sends."""

from typing import Final

from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

FOREVER: Final = 0xFFFFFFFF
"""The Session Expiry Interval of a session that never ends."""
MAX_TEXT_BYTES: Final = 65_535

_USER_PROPERTY: Final = b"\x26"
_SESSION_EXPIRY: Final = b"\x11"
_QOS_1: Final = 0x32


def connect_clean(client_id: str) -> bytes:
    """MQTT 3.1.1, without keep alive."""
    return connect(keep_alive_s=0, payload=text(client_id))


def connect_kept(client_id: str) -> bytes:
    """MQTT 3.1.1, with a session that is kept, without keep alive."""
    return connect(flags=0x00, keep_alive_s=0, payload=text(client_id))


def connect_v5(client_id: str, *, session_expiry_s: int = 0) -> bytes:
    """A clean start, without keep alive."""
    expiry = _SESSION_EXPIRY + session_expiry_s.to_bytes(4, "big")
    return connect(level=5, keep_alive_s=0, properties=expiry, payload=text(client_id))


def subscribe(packet_id: int, topic_filters: list[str]) -> bytes:
    """MQTT 3.1.1, at QoS 1."""
    return packet(0x82, packet_id.to_bytes(2, "big"), *(text(topic_filter) + b"\x01" for topic_filter in topic_filters))


def user_property(name: bytes = b"", value: bytes = b"") -> bytes:
    return _USER_PROPERTY + text(name) + text(value)


def publish_v5(properties: bytes, *, packet_id: int = 1) -> bytes:
    """QoS 1. properties: of any length, encoded, without their length."""
    length = packet(0x00, properties)[1:]  # a length is written as that of a packet
    return packet(_QOS_1, text("attack"), packet_id.to_bytes(2, "big"), length)


def bomb(user_properties: int) -> bytes:
    """A PUBLISH of nothing but user properties, all of them empty."""
    return publish_v5(user_property() * user_properties)


def unfinished_publish(size_bytes: int, missing_bytes: int) -> bytes:
    """A PUBLISH of MQTT 3.1.1 with a payload of that size, of which the end is missing."""
    return publish("attack", bytes(size_bytes))[:-missing_bytes]
