"""Reads and writes PUBACK, PUBREC, PUBREL and PUBCOMP that say only "success": four bytes, the same in MQTT 3.1.1 and 5.

Most packets of a device have this form, so no value (packets.py) is made of them. The decoder handles all other forms, and
malformed packets.
"""

from typing import Final

from sinks.mqtt.codec import framing
from state.model import PacketId

_SIZE: Final = 4
_TYPES: Final = frozenset((framing.PUBACK, framing.PUBREC, framing.PUBREL, framing.PUBCOMP))


def plain_acknowledgement(packet: bytes) -> PacketId:
    """Returns the packet id of a whole packet from `FrameBuffer.next_packet`; 0 = it has another form, decode it."""
    if len(packet) != _SIZE or packet[0] not in _TYPES:
        return 0
    return packet[2] << 8 | packet[3]


def encode_acknowledgement(first_byte: int, packet_id: PacketId) -> bytes:
    """Returns the packet of an acknowledgement.

    Args:
        first_byte: framing.PUBACK, PUBREC, PUBREL or PUBCOMP.
    """
    return bytes((first_byte, 2, packet_id >> 8, packet_id & 0xFF))
