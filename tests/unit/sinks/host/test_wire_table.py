"""sinks.host.wire_table: the table itself, and that the outbox does what it says for every phase and event."""

from copy import deepcopy
from itertools import product

import pytest

from sinks.host.outbox import FastPublish, Outbox
from sinks.host.wire_table import HOLDS_SLOT, WIRE, WireAction, WireEvent, WirePhase
from state.commands import SendPublish
from state.model import Message, Position, QoS

ID = 7
ROWS = [(phase, event, *WIRE.get((phase, event), (phase, WireAction.NOTHING))) for phase, event in product(WirePhase, WireEvent)]
"""Every combination. A combination that the table lacks changes nothing."""
TO_PHASE = {
    WirePhase.ABSENT: (),
    WirePhase.AWAITING_PUBACK: (WireEvent.SLOT_FOR_QOS1,),
    WirePhase.AWAITING_PUBREC: (WireEvent.SLOT_FOR_QOS2,),
    WirePhase.AWAITING_PUBCOMP: (WireEvent.SLOT_FOR_QOS2, WireEvent.PUBREC),
    WirePhase.RELEASED: (WireEvent.PUBREL,),
    WirePhase.FINISHED: (WireEvent.SLOT_FOR_QOS1, WireEvent.PUBACK),
    WirePhase.RESERVED: (WireEvent.TAKE,),
}


def message(*, qos: int = 1, dup: bool = False) -> SendPublish:
    return SendPublish(connection_id=1, partition=0, sequence=1, packet_id=ID, topic="t", payload=b"", qos=QoS(qos), dup=dup)


class Wire(Outbox):
    """A device that does not read: what waits for a slot has none before its turn. taken: by the fast path, not confirmed."""

    def __init__(self) -> None:
        super().__init__(2, is_blocked=True)
        self.taken: FastPublish | None = None

    def cause(self, event: WireEvent) -> WireAction:
        """Makes it happen by the methods of the outbox; returns what they have the caller do."""
        match event:
            case WireEvent.PUBLISH:
                return self.send(message(), 0)
            case WireEvent.RESEND:
                return self.send(message(dup=True), 0)
            case WireEvent.SLOT_FOR_QOS1 | WireEvent.SLOT_FOR_QOS2:
                if self.send(message(qos=1 if event is WireEvent.SLOT_FOR_QOS1 else 2), 0) is WireAction.DROP:
                    return WireAction.NOTHING  # nothing can wait under this id
                self.block(False)
                due = self.next_due(0)
                self.block(True)
                assert due is not None
                return WireAction.WRITE_PUBLISH
            case WireEvent.TAKE:
                taken = FastPublish(Position(0, 1), Message(message_id="m", topic="t", payload=b""), QoS(1), ID, None, b"", 0)
                if self.reserve(taken):
                    self.taken = taken
                    return WireAction.TAKE_SLOT
            case WireEvent.CONFIRM_QOS1 | WireEvent.CONFIRM_QOS2:
                if self.taken is not None:
                    self.taken.qos, self.taken.is_confirmed = QoS(1 if event is WireEvent.CONFIRM_QOS1 else 2), True
                    if self.next_due(0) is not None:
                        return WireAction.WRITE_PUBLISH
            case WireEvent.PUBACK:
                self.acknowledged(ID)
            case WireEvent.PUBREC | WireEvent.PUBREC_REFUSED:
                if self.received(ID, 0 if event is WireEvent.PUBREC else 0x80):
                    return WireAction.ANSWER_PUBREL
            case WireEvent.PUBREL:
                self.release(ID)
            case WireEvent.PUBCOMP:
                self.completed(ID)
            case WireEvent.WITHDRAW:
                self.withdraw((ID,))
        return WireAction.NOTHING


def brought_to(phase: WirePhase) -> Wire:
    wire = Wire()
    for event in TO_PHASE[phase]:
        wire.cause(event)
    return wire


def seen_from_outside(wire: Wire) -> tuple[int, WireAction | None, WireAction, int]:
    """Returns what distinguishes the phases: the slot, and what a resend (None: a message waits), PUBREC and PUBACK do."""
    resend = None if wire.held else deepcopy(wire).cause(WireEvent.RESEND)
    after_puback = deepcopy(wire)
    after_puback.cause(WireEvent.PUBACK)
    return wire.on_wire, resend, deepcopy(wire).cause(WireEvent.PUBREC), after_puback.on_wire


def test_every_row_of_the_table_changes_or_does_something() -> None:
    assert [row for row, result in WIRE.items() if result == (row[0], WireAction.NOTHING)] == []


def test_the_phases_differ_from_outside() -> None:
    assert len({seen_from_outside(brought_to(phase)) for phase in WirePhase}) == len(WirePhase)


@pytest.mark.parametrize(("phase", "event", "next_phase", "action"), ROWS)
def test_the_outbox_does_what_the_row_says(phase: WirePhase, event: WireEvent, next_phase: WirePhase, action: WireAction) -> None:
    wire = brought_to(phase)
    assert wire.on_wire == (phase in HOLDS_SLOT)
    assert wire.cause(event) is action
    expected = brought_to(next_phase)
    if action is WireAction.WAIT_FOR_SLOT:
        expected.cause(event)
    assert seen_from_outside(wire) == seen_from_outside(expected)


def test_after_pubrec_only_the_next_message_is_published() -> None:
    """[MQTT-4.3.3-6]"""
    after_pubrec = (WirePhase.AWAITING_PUBCOMP, WirePhase.RELEASED, WirePhase.FINISHED)
    writing = {event for phase, event, _, action in ROWS if phase in after_pubrec and action is WireAction.WRITE_PUBLISH}
    assert writing == {WireEvent.SLOT_FOR_QOS1, WireEvent.SLOT_FOR_QOS2}


def test_only_slots_and_reservations_count_for_the_quota() -> None:
    """[MQTT-4.9.0-2]"""
    taking = {event for phase, event, next_phase, _ in ROWS if phase not in HOLDS_SLOT and next_phase in HOLDS_SLOT}
    assert taking == {WireEvent.SLOT_FOR_QOS1, WireEvent.SLOT_FOR_QOS2, WireEvent.TAKE}


def test_a_fast_path_message_is_written_once_under_a_free_id() -> None:
    confirming = {(phase, event) for phase, event, _, action in ROWS if event >= WireEvent.CONFIRM_QOS1 and action}
    assert confirming == {(WirePhase.RESERVED, WireEvent.CONFIRM_QOS1), (WirePhase.RESERVED, WireEvent.CONFIRM_QOS2)}
    assert {phase for phase, _, next_phase, _ in ROWS if next_phase is WirePhase.RESERVED} == {
        WirePhase.ABSENT,
        WirePhase.FINISHED,
        WirePhase.RESERVED,
    }
