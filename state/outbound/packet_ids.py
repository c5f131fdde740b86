"""Packet identifiers of the messages that a session sends [MQTT-2.2.1-4]."""

from collections.abc import Container

from state.errors import SessionMisuse
from state.model import MAX_PACKET_ID, PacketId


class PacketIds:
    """Hands out the next id that is not in use: 1 … 65,535, then 1 again.

    Going round, rather than taking the lowest free id, keeps a freed id unused for as long as possible, so a late
    acknowledgement of a finished exchange is not mistaken for one of a new exchange.
    """

    __slots__ = ("last",)

    def __init__(self, last: PacketId = 0) -> None:
        self.last = last

    def allocate(self, in_use: Container[PacketId]) -> PacketId:
        """Raises SessionMisuse if all are in use; a window never admits that many."""
        candidate = self.last
        for _ in range(MAX_PACKET_ID):
            candidate = candidate % MAX_PACKET_ID + 1
            if candidate not in in_use:
                self.last = candidate
                return candidate
        raise SessionMisuse("all 65,535 packet ids are in use")
