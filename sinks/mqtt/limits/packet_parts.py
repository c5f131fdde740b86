"""Measures the properties and topic filters of a packet before it is decoded.

The codecs decode them one by one, about a hundred times as slowly as the same bytes of payload. Nothing here judges whether a
packet is well formed.
"""

from typing import Final

from sinks.mqtt.codec import framing
from sinks.mqtt.limits.settings import DeviceLimits, Limit
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt_topics import topic_levels
from state.errors import ProtocolViolation
from state.model import ReasonCode, Will
from state.records.properties import properties_bytes

_SUBSCRIBES: Final = (framing.SUBSCRIBE, framing.UNSUBSCRIBE)
_CONNECT_HEADER_BYTES: Final = 10
"""Protocol name, level, flags and keep alive."""
_WILL_FLAG: Final = 0x04
_LENGTH_BYTES: Final = 2
PARTS_LIKE_A_PACKET_BYTES: Final = 64
"""This many bytes of properties, or one topic filter, take about as long to decode as a small packet."""


class PacketParts:
    """Applies the limits on properties, topic filters and wills to the packets of one connection."""

    __slots__ = ("_counters", "_limits")

    def __init__(self, limits: DeviceLimits, counters: GatewayCounters) -> None:
        self._limits = limits
        self._counters = counters

    def measure(self, packet: bytes, body_start: int, *, is_v5: bool) -> int:
        """Returns the size of a packet after CONNECT, in bytes of properties. Raises ProtocolViolation (0x97) over a limit.

        Each topic filter but the first counts as PARTS_LIKE_A_PACKET_BYTES.
        """
        first_byte = packet[0]
        if first_byte in _SUBSCRIBES:
            return self._measure_subscribe(packet, body_start + _LENGTH_BYTES, is_v5=is_v5)
        if not is_v5:
            return 0
        size = len(packet)
        if first_byte & 0xF0 == framing.PUBLISH:
            topic_end = body_start + _LENGTH_BYTES + _uint16(packet, body_start)
            size, _ = _properties_bytes(packet, topic_end + (_LENGTH_BYTES if first_byte & 0x06 else 0))
        self._require(size, self._limits.max_properties_bytes, Limit.PROPERTIES_BYTES)
        return size

    def _measure_subscribe(self, packet: bytes, start: int, *, is_v5: bool) -> int:
        """start: the position after the packet id."""
        limits, size = self._limits, 0
        if is_v5:
            size, start = _properties_bytes(packet, start)
            self._require(size, limits.max_properties_bytes, Limit.PROPERTIES_BYTES)
        options_bytes = 1 if packet[0] == framing.SUBSCRIBE else 0
        filters = _filters(packet, start + size, options_bytes, most=limits.max_subscribe_filters)
        self._require(filters, limits.max_subscribe_filters, Limit.SUBSCRIBE_FILTERS)
        return size + max(0, filters - 1) * PARTS_LIKE_A_PACKET_BYTES

    def check_connect(self, packet: bytes, body_start: int) -> None:
        """Checks the properties of an MQTT 5 CONNECT. Raises ProtocolViolation (0x97)."""
        position = body_start + _CONNECT_HEADER_BYTES
        flags = packet[body_start + 7 : body_start + 8]
        size, start = _properties_bytes(packet, position)
        if flags and flags[0] & _WILL_FLAG:
            will = start + size
            size += _properties_bytes(packet, will + _LENGTH_BYTES + _uint16(packet, will))[0]
        self._require(size, self._limits.max_connect_properties_bytes, Limit.CONNECT_PROPERTIES_BYTES)

    def judge_will(self, will: Will) -> ReasonCode | None:
        """Returns why a will is refused; None = it is not."""
        if topic_levels(will.topic) > self._limits.max_topic_levels:
            self._counters.limits_reached[Limit.TOPIC_LEVELS] += 1
            return ReasonCode.TOPIC_NAME_INVALID
        size = len(will.topic.encode()) + len(will.payload) + properties_bytes(will.properties)
        if size > self._limits.max_will_bytes:
            self._counters.limits_reached[Limit.WILL_BYTES] += 1
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def _require(self, size: int, most: int, limit: Limit) -> None:
        if size > most:
            self._counters.limits_reached[limit] += 1
            raise ProtocolViolation(f"more than {limit} = {most}", reason_code=ReasonCode.QUOTA_EXCEEDED)


def _filters(packet: bytes, position: int, options_bytes: int, *, most: int) -> int:
    """Counts the topic filters, at most to one more than `most`."""
    count = 0
    while position < len(packet) and count <= most:
        position += _LENGTH_BYTES + _uint16(packet, position) + options_bytes
        count += 1
    return count


def _uint16(packet: bytes, position: int) -> int:
    """Reads a number; 0 after the end of the packet."""
    return int.from_bytes(packet[position : position + _LENGTH_BYTES], "big")


def _properties_bytes(packet: bytes, position: int) -> tuple[int, int]:
    """Returns the length of the properties at this position, and where they begin. Length 0 if that is malformed."""
    length = 0
    for shift, digit in zip((0, 7, 14, 21), packet[position : position + 4], strict=False):
        position += 1
        length |= (digit & 0x7F) << shift
        if digit < 0x80:
            return (length if position + length <= len(packet) else 0), position
    return 0, position
