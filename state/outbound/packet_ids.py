"""Assigns packet identifiers to the messages of a session [MQTT-2.2.1-4], and keeps those of messages that were given up.

The client may still acknowledge a message that the session has given up (`delivery_limit`, Maximum Packet Size). The message has
had its receipt, but its packet id stays occupied:

 * An MQTT 5 client counts an unacknowledged PUBLISH towards its Receive Maximum. The message holds one slot of it until it is
   acknowledged or the connection ends [MQTT-3.3.4-9].
 * A client that has received a QoS 2 message keeps its packet id until PUBREL, over connections too. It would treat a new message
   under that id as a repetition. So the id is not used again before the handshake is over or the session ends.

`AbandonedExchanges` owns the phases; `step` asks the table (state/transitions.py).
"""

from collections.abc import Container, Iterable, Iterator
from typing import Final

from state.errors import SessionMisuse
from state.model import MAX_SESSION_PACKET_ID, MIN_FAST_PACKET_ID, PacketId, QoS
from state.transitions import AbandonedAction, AbandonedEvent, AbandonedPhase, abandoned_step

MAX_ABANDONED: Final = 1_024
"""Packet ids kept that hold no slot; the oldest is forgotten first. An id is only reused after some 32,000 others anyway."""


class PacketIds:
    """Assigns the next id that is not in use: 1 to 32,767, then 1 again.

    Ids are used in rotation instead of taking the lowest free one. A freed id then stays unused for as long as possible, so that
    a late acknowledgement of its old exchange does not count for a new one.

    Attributes:
        last: The id that the session used last.
        last_fast: The id of the fast path that was used last, from which the gateway of a new connection continues; 0 = none.
    """

    __slots__ = ("last", "last_fast")

    def __init__(self, last: PacketId = 0) -> None:
        self.last = last
        self.last_fast: PacketId = 0

    def allocate(self, in_use: Container[PacketId], kept: Container[PacketId] = ()) -> PacketId:
        """Returns the next free id.

        Args:
            kept: Further ids that are not free.

        Raises:
            SessionMisuse: All ids are in use. A window never admits that many messages.
        """
        candidate = self.last
        for _ in range(MAX_SESSION_PACKET_ID):
            candidate = candidate % MAX_SESSION_PACKET_ID + 1
            if candidate not in in_use and candidate not in kept:
                self.last = candidate
                return candidate
        raise SessionMisuse("all 32,767 packet ids of the session are in use")


def fast_ids(*in_use: Iterable[PacketId]) -> tuple[PacketId, ...]:
    """Returns those ids that belong to the fast path."""
    return tuple(packet_id for ids in in_use for packet_id in ids if packet_id >= MIN_FAST_PACKET_ID)


class AbandonedExchanges:
    """The exchanges of messages that were given up while the client may still acknowledge them.

    Attributes:
        phases: Oldest first.
        slots: Ids that were written on the present connection of an MQTT 5 client.
    """

    __slots__ = ("phases", "slots")

    def __init__(self) -> None:
        self.phases: dict[PacketId, AbandonedPhase] = {}
        self.slots: set[PacketId] = set()

    def give_up(self, packet_id: PacketId, qos: QoS, *, holds_slot: bool) -> None:
        """Adds an exchange that has ended without an acknowledgement.

        Args:
            holds_slot: See `slots`. A QoS 1 message without a slot is not added.
        """
        if holds_slot:
            self.slots.add(packet_id)
        elif qos == QoS.AT_LEAST_ONCE:
            return
        action = self.step(
            packet_id, AbandonedEvent.GIVEN_UP_QOS_1 if qos == QoS.AT_LEAST_ONCE else AbandonedEvent.GIVEN_UP_QOS_2
        )
        assert action is AbandonedAction.KEEP
        self._forget_oldest()

    def step(self, packet_id: PacketId, event: AbandonedEvent) -> AbandonedAction:
        """Makes one step of the exchange under this id. Raises SessionMisuse like `abandoned_step`."""
        phase = self.phases.get(packet_id, AbandonedPhase.ABSENT)
        target, action = abandoned_step(phase, event)
        if target is AbandonedPhase.ABSENT:
            del self.phases[packet_id]
            self.slots.discard(packet_id)
        else:
            self.phases[packet_id] = target
        return action

    def late_step(self, packet_id: PacketId, event: AbandonedEvent) -> None:
        """Applies an acknowledgement from an earlier connection of the session. One of the wrong kind is ignored."""
        if abandoned_step(self.phases[packet_id], event)[1] is not AbandonedAction.PROTOCOL_ERROR:
            self.step(packet_id, event)

    def restore(self, packet_id: PacketId, phase: AbandonedPhase, *, holds_slot: bool) -> None:
        """Adds an exchange from the stored session, as the newest."""
        self.phases[packet_id] = phase
        if holds_slot:
            self.slots.add(packet_id)

    def connection_ended(self) -> None:
        """Frees all slots and forgets the exchanges that end with the connection."""
        self.slots.clear()
        for packet_id in tuple(self.phases):
            action = self.step(packet_id, AbandonedEvent.CONNECTION_ENDED)
            assert action is (AbandonedAction.KEEP if packet_id in self else AbandonedAction.FORGET)
        self._forget_oldest()

    def end(self) -> None:
        """Forgets all ids, because the session is over and its client keeps none."""
        for packet_id in tuple(self.phases):
            self._forget(packet_id, AbandonedEvent.SESSION_ENDED)

    def to_replay(self) -> Iterator[PacketId]:
        """Yields the ids for which PUBREL has to be sent again on a new connection [MQTT-4.4.0-1]."""
        for packet_id in tuple(self.phases):
            action = self.step(packet_id, AbandonedEvent.REPLAY)
            assert action in (AbandonedAction.SEND_PUBREL, AbandonedAction.KEEP)
            if action is AbandonedAction.SEND_PUBREL:
                yield packet_id

    def __contains__(self, packet_id: object) -> bool:
        return packet_id in self.phases

    def __len__(self) -> int:
        return len(self.phases)

    def _forget_oldest(self) -> None:
        too_many = len(self.phases) - len(self.slots) - MAX_ABANDONED
        if too_many > 0:
            for packet_id in [kept for kept in self.phases if kept not in self.slots][:too_many]:
                self._forget(packet_id, AbandonedEvent.DISPLACED)

    def _forget(self, packet_id: PacketId, cause: AbandonedEvent) -> None:
        action = self.step(packet_id, cause)
        assert action is AbandonedAction.FORGET
