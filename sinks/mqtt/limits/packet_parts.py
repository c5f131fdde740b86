"""Measures the properties and topic filters of a packet before it is decoded.

The codecs decode them one by one, about a hundred times as slowly as the same bytes of payload. What exceeds a limit is cut off
before that and refused: only that topic filter or that publication, where MQTT has a code for it.
"""

from typing import Final, NamedTuple

from sinks.mqtt.codec import framing
from sinks.mqtt.codec.strings_v5 import encoded_topic_alias
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits, Limit
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


class Excess(NamedTuple):
    """A packet with more than a limit allows: what of it is decoded, and what is refused.

    Attributes:
        packet, body_start: Reduced to the parts within the limits.
        filters: Topic filters that were cut off, each of which is refused.
        is_refused: The whole packet is refused.
    """

    packet: bytes
    body_start: int
    filters: int = 0
    is_refused: bool = False


class PacketParts:
    """Applies the limits on properties, topic filters and wills to the packets of one connection.

    Attributes:
        session_filters: Topic filters that the session may hold. UNSUBSCRIBE may name as many.
    """

    __slots__ = ("_counters", "_limits", "session_filters")

    def __init__(self, limits: DeviceLimits, counters: GatewayCounters) -> None:
        self._limits = limits
        self._counters = counters
        self.session_filters = 0

    def measure(self, packet: bytes, body_start: int, *, is_v5: bool) -> tuple[int, Excess | None]:
        """Returns the size of a packet after CONNECT, in bytes of properties, and what exceeds a limit.

        Each topic filter but the first counts as PARTS_LIKE_A_PACKET_BYTES. Raises ProtocolViolation: 0x97 where the standard has
        no code for a single packet or topic filter, 0x81 for malformed filters beyond the limit.
        """
        first_byte = packet[0]
        if first_byte in _SUBSCRIBES:
            return self._measure_subscribe(packet, body_start + _LENGTH_BYTES, is_v5=is_v5)
        if not is_v5:
            return 0, None
        if first_byte & 0xF0 != framing.PUBLISH:
            size = len(packet)
            if self._exceeds(size, self._limits.max_properties_bytes, Limit.PROPERTIES_BYTES):
                raise self._violation(Limit.PROPERTIES_BYTES)
            return size, None
        header_end = body_start + _LENGTH_BYTES + _uint16(packet, body_start) + (_LENGTH_BYTES if first_byte & 0x06 else 0)
        size, start = _properties_bytes(packet, header_end)
        if not self._exceeds(size, self._limits.max_properties_bytes, Limit.PROPERTIES_BYTES):
            return size, None
        alias = encoded_topic_alias(packet, start, start + size)  # the device goes on using it
        body = packet[body_start:header_end] + framing.encode_length(len(alias)) + alias
        return size, Excess(*_packet(first_byte, body), is_refused=True)

    def _measure_subscribe(self, packet: bytes, start: int, *, is_v5: bool) -> tuple[int, Excess | None]:
        """Returns the same as `measure`, for a SUBSCRIBE or UNSUBSCRIBE.

        Args:
            start: The position after the packet id.

        Raises:
            ProtocolViolation: An UNSUBSCRIBE of MQTT 3.1.1 has too many topic filters, or filters beyond the limit are malformed.
        """
        limits, is_subscribe = self._limits, packet[0] == framing.SUBSCRIBE
        size, properties_start = _properties_bytes(packet, start) if is_v5 else (0, start)
        first_filter = properties_start + size
        is_refused = self._exceeds(size, limits.max_properties_bytes, Limit.PROPERTIES_BYTES)
        most = limits.max_subscribe_filters if is_subscribe else max(limits.max_subscribe_filters, self.session_filters)
        filters, cut = _count_filters(packet, first_filter, 1 if is_subscribe else 0, most=most)
        refused = 0
        if cut < len(packet) and filters == most:
            self._counters.limits_reached[Limit.SUBSCRIBE_FILTERS] += 1
            if not (is_v5 or is_subscribe):  # UNSUBACK of MQTT 3.1.1 can only say that all of it is done
                raise self._violation(Limit.SUBSCRIBE_FILTERS)
            refused = _count_refused(packet, cut, is_subscribe=is_subscribe, is_v5=is_v5)
        cost = size + max(0, filters + refused - 1) * PARTS_LIKE_A_PACKET_BYTES
        if not refused and not is_refused:
            return cost, None
        header = packet[start - _LENGTH_BYTES : start] + b"\0" if is_refused else packet[start - _LENGTH_BYTES : first_filter]
        reduced = _packet(packet[0], header + packet[first_filter:cut])
        return cost, Excess(*reduced, filters=refused, is_refused=is_refused)

    def check_connect(self, packet: bytes, body_start: int) -> None:
        """Checks the properties of an MQTT 5 CONNECT. Raises ProtocolViolation (0x97)."""
        position = body_start + _CONNECT_HEADER_BYTES
        flags = packet[body_start + 7 : body_start + 8]
        size, start = _properties_bytes(packet, position)
        if flags and flags[0] & _WILL_FLAG:
            will = start + size
            size += _properties_bytes(packet, will + _LENGTH_BYTES + _uint16(packet, will))[0]
        if self._exceeds(size, self._limits.max_connect_properties_bytes, Limit.CONNECT_PROPERTIES_BYTES):
            raise self._violation(Limit.CONNECT_PROPERTIES_BYTES)

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

    def _exceeds(self, size: int, most: int, limit: Limit) -> bool:
        if size <= most:
            return False
        self._counters.limits_reached[limit] += 1
        return True

    @staticmethod
    def _violation(limit: Limit) -> ProtocolViolation:
        return ProtocolViolation(f"more than {limit} allows", reason_code=ReasonCode.QUOTA_EXCEEDED)


def _packet(first_byte: int, body: bytes) -> tuple[bytes, int]:
    """Returns a packet and where its body starts."""
    header = bytes((first_byte,)) + framing.encode_length(len(body))
    return header + body, len(header)


def _count_filters(packet: bytes, position: int, options_bytes: int, *, most: int) -> tuple[int, int]:
    """Counts topic filters, at most `most`. Returns their number, and where they end."""
    count, end, overhead = 0, len(packet) - 1, _LENGTH_BYTES + options_bytes
    while position < end and count < most:
        position += overhead + (packet[position] << 8 | packet[position + 1])
        count += 1
    return count, position


def _count_refused(packet: bytes, position: int, *, is_subscribe: bool, is_v5: bool) -> int:
    """Counts and checks topic filters that are not decoded, because they are refused. Raises ProtocolViolation (0x81)."""
    count, reserved = 0, 0xC0 if is_v5 else 0xFC
    try:
        while position < len(packet):
            start = position + _LENGTH_BYTES
            position = start + (packet[position] << 8 | packet[position + 1])
            text = packet[start:position]
            is_bad = 0 in text or (not text.isascii() and not _is_utf8(text))
            if is_subscribe:
                options = packet[position]
                is_bad |= options & reserved > 0 or options & 0x03 == 0x03 or options & 0x30 == 0x30
                position += 1
            if is_bad or position > len(packet):
                raise IndexError
            count += 1
    except IndexError:
        raise ProtocolViolation("a topic filter or its options are malformed", reason_code=ReasonCode.MALFORMED_PACKET) from None
    return count


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


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
