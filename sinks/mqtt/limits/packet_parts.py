"""How much of a packet has to be taken apart piece by piece: properties and topic filters.

That takes the codecs some hundred times as long as the same bytes of payload, so it is looked at before they are called. Nothing
here judges whether a packet is well formed.
"""

from typing import Final

from sinks.mqtt.codec import framing
from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt_topics import topic_levels
from state.errors import ProtocolViolation
from state.model import ReasonCode, Will
from state.outbound.packet_size import properties_bytes

_SUBSCRIBES: Final = (framing.SUBSCRIBE, framing.UNSUBSCRIBE)
_CONNECT_HEADER_BYTES: Final = 10
"""Protocol name, level, flags and keep alive."""
_WILL_FLAG: Final = 0x04
_LENGTH_BYTES: Final = 2


class PacketParts:
    """The limits on them, for one connection."""

    __slots__ = ("_counters", "_limits")

    def __init__(self, limits: DeviceLimits, counters: GatewayCounters) -> None:
        self._limits = limits
        self._counters = counters

    def measure(self, packet: bytes, body_start: int, *, is_v5: bool) -> int:
        """In bytes, of a packet behind CONNECT. Raises ProtocolViolation (0x97) if that is too much."""
        limits = self._limits
        if packet[0] in _SUBSCRIBES:
            self._require(len(packet), limits.max_subscribe_bytes, Limit.SUBSCRIBE_BYTES)
            return len(packet)
        if not is_v5:
            return 0
        size = _publish_properties_bytes(packet, body_start) if packet[0] & 0xF0 == framing.PUBLISH else len(packet)
        self._require(size, limits.max_properties_bytes, Limit.PROPERTIES_BYTES)
        return size

    def check_connect(self, packet: bytes, body_start: int) -> None:
        """Of MQTT 5. Raises ProtocolViolation (0x97)."""
        position = body_start + _CONNECT_HEADER_BYTES
        flags = packet[body_start + 7 : body_start + 8]
        size, start = _variable_integer(packet, position)
        if flags and flags[0] & _WILL_FLAG:
            will = start + size
            size += _variable_integer(packet, will + _LENGTH_BYTES + _uint16(packet, will))[0]
        self._require(size, self._limits.max_connect_properties_bytes, Limit.CONNECT_PROPERTIES_BYTES)

    def judge_will(self, will: Will) -> ReasonCode | None:
        """Why it is refused; None = it is not."""
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
            raise ProtocolViolation(f"{size} bytes, {limit} is {most}", reason_code=ReasonCode.QUOTA_EXCEEDED)


def _publish_properties_bytes(packet: bytes, position: int) -> int:
    position += _LENGTH_BYTES + _uint16(packet, position)
    return _variable_integer(packet, position + (_LENGTH_BYTES if packet[0] & 0x06 else 0))[0]


def _uint16(packet: bytes, position: int) -> int:
    """0 behind the end."""
    return int.from_bytes(packet[position : position + _LENGTH_BYTES], "big")


def _variable_integer(packet: bytes, position: int) -> tuple[int, int]:
    """The value, and where it ends. 0 behind the end."""
    value = 0
    for shift, digit in zip((0, 7, 14, 21), packet[position : position + 4], strict=False):
        position += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            break
    return value, position
