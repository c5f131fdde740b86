"""Cuts a byte stream into control packets of MQTT 3.1.1 and 5, and refuses bad packets before they are complete.

The first byte and the length are checked as soon as they arrive. A packet that is too large, of a type that only a server sends,
or with forbidden flags ends the connection before its body has been received.
"""

from typing import Final

from state.errors import ProtocolViolation
from state.model import ReasonCode

CONNECT: Final = 0x10
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBSCRIBE: Final = 0x82
UNSUBSCRIBE: Final = 0xA2
PINGREQ: Final = 0xC0
DISCONNECT: Final = 0xE0
AUTH: Final = 0xF0

_MAX_LENGTH_BYTES: Final = 4
_CLIENT_TYPES: Final = {first_byte & 0xF0 for first_byte in (
    CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH)}  # fmt: skip
_EXACT_FIRST_BYTES: Final = {CONNECT, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH}


def encode_length(length: int) -> bytes:
    """Encodes a Remaining Length (variable byte integer).

    Args:
        length: 0…268,435,455.
    """
    if length < 0x80:
        return bytes((length,))
    encoded = bytearray()
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def check_first_byte(first_byte: int) -> None:
    """Raises ProtocolViolation unless a client may send a packet with this type and these flags."""
    if first_byte in _EXACT_FIRST_BYTES:
        return
    if first_byte & 0xF0 == PUBLISH:
        if first_byte & 0x06 == 0x06:
            raise ProtocolViolation("PUBLISH with QoS 3 [MQTT-3.3.1-4]", reason_code=ReasonCode.MALFORMED_PACKET)
        if first_byte & 0x0E == 0x08:
            raise ProtocolViolation("PUBLISH with DUP at QoS 0 [MQTT-3.3.1-2]", reason_code=ReasonCode.MALFORMED_PACKET)
        return
    if first_byte & 0xF0 in _CLIENT_TYPES:
        raise ProtocolViolation(
            f"reserved flags in the first byte {first_byte:#04x} [MQTT-2.1.3-1]", reason_code=ReasonCode.MALFORMED_PACKET
        )
    if first_byte & 0xF0 == 0:
        raise ProtocolViolation("packet type 0 is forbidden", reason_code=ReasonCode.MALFORMED_PACKET)
    raise ProtocolViolation(f"a client may not send packets of type {first_byte >> 4}", reason_code=ReasonCode.PROTOCOL_ERROR)


def _decode_length(buffer: bytearray, start: int) -> tuple[int, int] | None:
    """Returns a Remaining Length and how many bytes it has; None = there are more to come. Raises ProtocolViolation."""
    length = 0
    for index, digit in enumerate(buffer[start : start + _MAX_LENGTH_BYTES]):
        length |= (digit & 0x7F) << (7 * index)
        if digit < 0x80:
            if index and digit == 0:
                raise ProtocolViolation(
                    "Remaining Length not in its shortest form [MQTT-1.5.5-1]", reason_code=ReasonCode.MALFORMED_PACKET
                )
            return length, 1 + index
    if len(buffer) - start < _MAX_LENGTH_BYTES:
        return None
    raise ProtocolViolation("Remaining Length of more than four bytes", reason_code=ReasonCode.MALFORMED_PACKET)


class FrameBuffer:
    """Takes bytes and gives whole packets.

    Attributes:
        max_packet_size_bytes: The limit for a packet in bytes, fixed header included.
        size_bytes: Bytes that were received and not yet returned as packets.
    """

    __slots__ = ("_buffer", "_position", "max_packet_size_bytes", "size_bytes")

    def __init__(self, max_packet_size_bytes: int) -> None:
        self._buffer = bytearray()
        self._position = 0
        self.max_packet_size_bytes = max_packet_size_bytes
        self.size_bytes = 0

    def feed(self, data: bytes) -> None:
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data
        self.size_bytes += len(data)

    def clear(self) -> None:
        self._buffer.clear()
        self._position = self.size_bytes = 0

    @property
    def is_qos2_next(self) -> bool:
        """The next packet is a PUBLISH of QoS 2, or a PUBREL."""
        if not self.size_bytes:
            return False
        first_byte = self._buffer[self._position]
        return first_byte == PUBREL or first_byte & 0xF6 == PUBLISH | 0x04

    @property
    def is_publication_next(self) -> bool:
        """The next packet is a PUBLISH of QoS 0 or 1, a PINGREQ or a DISCONNECT."""
        if not self.size_bytes:
            return False
        first_byte = self._buffer[self._position]
        return first_byte in (PINGREQ, DISCONNECT) or (first_byte & 0xF0 == PUBLISH and not first_byte & 0x04)

    @property
    def is_subscribing_next(self) -> bool:
        """The next packet is a SUBSCRIBE, an UNSUBSCRIBE or a PINGREQ."""
        return self.size_bytes > 0 and self._buffer[self._position] in (SUBSCRIBE, UNSUBSCRIBE, PINGREQ)

    @property
    def is_disconnect_next(self) -> bool:
        return self.size_bytes > 0 and self._buffer[self._position] == DISCONNECT

    def next_packet(self) -> tuple[bytes, int] | None:
        """Returns the next whole packet and where its body starts in it; None = feed more bytes first.

        Raises ProtocolViolation (0x81, 0x82, 0x95). The buffer cannot be used after that.
        """
        buffer, start, received = self._buffer, self._position, self.size_bytes
        if received < 1:
            return None
        check_first_byte(buffer[start])
        if received < 2:
            return None
        length, body_start = buffer[start + 1], 2
        if length >= 0x80:
            if (decoded := _decode_length(buffer, start + 1)) is None:
                return None
            length, length_bytes = decoded
            body_start = 1 + length_bytes
        size = body_start + length
        if size > self.max_packet_size_bytes:
            raise ProtocolViolation(
                f"packet of {size} bytes, the limit is {self.max_packet_size_bytes}", reason_code=ReasonCode.PACKET_TOO_LARGE
            )
        if received < size:
            return None
        end = start + size
        packet = bytes(memoryview(buffer)[start:end])
        if received == size:
            self.clear()  # a silent device holds no memory
        else:
            self._position, self.size_bytes = end, received - size
        return packet, body_start
