"""The packet ids of the fast path on one connection, 32,768…65,535: given out going round, so that each rests for long.

An id that was used is free again only when a grant from behind its message does not list it: until then the session may not have
read that it was used, and an acknowledgement that comes late could count for another message.
"""

from collections.abc import Callable, Collection, Iterable

from state.model import MAX_PACKET_ID, MIN_FAST_PACKET_ID, PacketId, Position


class FastPacketIds:
    """used: those that were taken here, with the message's position, and no grant has freed yet."""

    __slots__ = ("_last", "_listed", "_used")

    def __init__(self) -> None:
        self._listed: Collection[PacketId] = ()
        self._used: dict[PacketId, Position] = {}
        self._last = 0

    def granted(self, after: Position, ids_in_use: Iterable[PacketId], last_id: PacketId) -> None:
        """As in OpenFastPath."""
        self._listed = frozenset(ids_in_use) or ()
        self._used = {
            packet_id: position
            for packet_id, position in self._used.items()
            if position.partition != after.partition or position.offset > after.offset
        }
        self._last = self._last or last_id

    def next(self, is_free: Callable[[PacketId], bool]) -> PacketId | None:
        """The next free id; None = there is none. is_free: on the wire. Take it with `use`."""
        last, count = max(self._last, MIN_FAST_PACKET_ID - 1), MAX_PACKET_ID - MIN_FAST_PACKET_ID + 1
        for step in range(1, count + 1):
            packet_id = MIN_FAST_PACKET_ID + (last + step - MIN_FAST_PACKET_ID) % count
            if packet_id not in self._used and packet_id not in self._listed and is_free(packet_id):
                return packet_id
        return None

    def use(self, packet_id: PacketId, position: Position) -> None:
        self._used[packet_id] = position
        self._last = packet_id
