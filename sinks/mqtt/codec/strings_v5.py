"""Checks every UTF-8 string of an MQTT 5 packet before the codec library reads it.

mqtt5 0.8.0 panics on a string that is not UTF-8: a BaseException, with a stack trace on standard error. Anybody could fill the
log with that. Nearly all packets are ASCII, which one C call finds out; the others are parsed.
"""

from typing import Final

from sinks.mqtt.codec import framing
from state.errors import ProtocolViolation
from state.model import ReasonCode

TOPIC_ALIAS: Final = 0x23
_TEXT: Final = -1
_BINARY: Final = -2
_TEXT_PAIR: Final = -3
_VARIABLE_INTEGER: Final = -4

# MQTT 5, table 2-4: property → its size in bytes, or one of the kinds above.
_PROPERTY_KINDS: Final = {
    0x01: 1, 0x02: 4, 0x03: _TEXT, 0x08: _TEXT, 0x09: _BINARY, 0x0B: _VARIABLE_INTEGER, 0x11: 4, 0x12: _TEXT, 0x13: 2,
    0x15: _TEXT, 0x16: _BINARY, 0x17: 1, 0x18: 4, 0x19: 1, 0x1A: _TEXT, 0x1C: _TEXT, 0x1F: _TEXT, 0x21: 2, 0x22: 2, 0x23: 2,
    0x24: 1, 0x25: 1, 0x26: _TEXT_PAIR, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1,
}  # fmt: skip


def check_strings(packet: bytes, body_start: int) -> None:
    """Raises ProtocolViolation (0x81) if a string of the packet is not UTF-8 or the packet is too broken to find its strings."""
    if packet.isascii():
        return
    try:
        _walk(packet, body_start)
    except UnicodeDecodeError as error:
        raise ProtocolViolation("a string is not UTF-8 [MQTT-1.5.4-1]", reason_code=ReasonCode.MALFORMED_PACKET) from error
    except IndexError as error:
        raise ProtocolViolation("the packet ends too early", reason_code=ReasonCode.MALFORMED_PACKET) from error


def encoded_topic_alias(packet: bytes, position: int, end: int) -> bytes:
    """Returns the Topic Alias among the properties between the positions, as a property; empty = there is none.

    Raises ProtocolViolation (0x81) if these properties are malformed.
    """
    alias = b""
    try:
        while position < end:
            start, position = position, _value(packet, position + 1, _PROPERTY_KINDS.get(packet[position]))
            if packet[start] == TOPIC_ALIAS:
                alias = packet[start:position]
    except (UnicodeDecodeError, IndexError) as error:
        raise ProtocolViolation("the properties cannot be read", reason_code=ReasonCode.MALFORMED_PACKET) from error
    return alias


def _walk(packet: bytes, position: int) -> None:
    first_byte = packet[0]
    if first_byte & 0xF0 == framing.PUBLISH:
        position = _text(packet, position)
        _properties(packet, position + (2 if first_byte & 0x06 else 0))
        return
    match first_byte:
        case framing.CONNECT:
            _walk_connect(packet, position)
        case framing.PUBACK | framing.PUBREC | framing.PUBREL | framing.PUBCOMP:
            if len(packet) > position + 3:
                _properties(packet, position + 3)
        case framing.SUBSCRIBE:
            position = _properties(packet, position + 2)
            while position < len(packet):
                position = _text(packet, position) + 1
        case framing.UNSUBSCRIBE:
            position = _properties(packet, position + 2)
            while position < len(packet):
                position = _text(packet, position)
        case framing.DISCONNECT | framing.AUTH:
            if len(packet) > position + 1:
                _properties(packet, position + 1)
        case _:
            pass


def _walk_connect(packet: bytes, position: int) -> None:
    position = _text(packet, position) + 1
    flags = packet[position]
    position = _properties(packet, position + 3)
    position = _text(packet, position)
    if flags & 0x04:
        position = _properties(packet, position)
        position = _text(packet, position)
        position = _binary(packet, position)
    if flags & 0x80:
        _text(packet, position)


def _properties(packet: bytes, position: int) -> int:
    """Checks the properties and returns where they end."""
    length, position = _variable_integer(packet, position)
    end = position + length
    if end > len(packet):
        raise IndexError
    while position < end:
        kind = _PROPERTY_KINDS.get(packet[position])
        position = _value(packet, position + 1, kind)
    if position != end:
        raise IndexError
    return position


def _value(packet: bytes, position: int, kind: int | None) -> int:
    """Checks the value of a property and returns where it ends."""
    if kind is None:
        raise ProtocolViolation("unknown property", reason_code=ReasonCode.MALFORMED_PACKET)
    if kind > 0:
        return position + kind
    if kind == _TEXT:
        return _text(packet, position)
    if kind == _BINARY:
        return _binary(packet, position)
    if kind == _TEXT_PAIR:
        return _text(packet, _text(packet, position))
    return _variable_integer(packet, position)[1]


def _text(packet: bytes, position: int) -> int:
    end = _binary(packet, position)
    packet[position + 2 : end].decode()
    return end


def _binary(packet: bytes, position: int) -> int:
    end = position + 2 + (packet[position] << 8 | packet[position + 1])
    if end > len(packet):
        raise IndexError
    return end


def _variable_integer(packet: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21):
        digit = packet[position]
        position += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, position
    raise ProtocolViolation("variable byte integer of more than four bytes", reason_code=ReasonCode.MALFORMED_PACKET)
