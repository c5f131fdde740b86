"""PUBACK, PUBREC, PUBREL and PUBCOMP that say nothing but "success" for a packet id: four bytes, the same in MQTT 3.1.1 and 5.

Most of what a device sends is such, so it is read and written without making a value (packets.py) of each. Every other form of
them, and what is malformed, is the decoder's.
"""

from typing import Final

from sinks.mqtt.codec import framing
from state.model import PacketId

_SIZE: Final = 4
_TYPES: Final = frozenset((framing.PUBACK, framing.PUBREC, framing.PUBREL, framing.PUBCOMP))


def plain_acknowledgement(packet: bytes) -> PacketId:
    """The packet id of a whole packet that `FrameBuffer.next_packet` has cut out; 0 = decode it."""
    if len(packet) != _SIZE or packet[0] not in _TYPES:
        return 0
    return packet[2] << 8 | packet[3]


def encode_acknowledgement(first_byte: int, packet_id: PacketId) -> bytes:
    """first_byte: framing.PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return bytes((first_byte, 2, packet_id >> 8, packet_id & 0xFF))
