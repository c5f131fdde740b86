"""sinks.flow_control.wire_transitions: the table itself, and that the meter does what each row says."""

from copy import deepcopy
from itertools import product

import pytest

from sinks.flow_control.wire_meter import WireMeter
from sinks.flow_control.wire_transitions import HOLDS_SLOT, WIRE, WireAction, WireEvent, WirePhase
from state.commands import SendPublish
from state.model import QoS

ID = 7
ROWS = [(phase, event, *result) for (phase, event), result in WIRE.items()]
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


def take(meter: WireMeter, publish: SendPublish) -> WireAction:
    dropped = meter.resends_dropped
    if meter.admit(publish):
        return WireAction.WRITE_PUBLISH
    if meter.holds(ID):
        return WireAction.WAIT_FOR_SLOT
    assert meter.resends_dropped == dropped + 1
    return WireAction.DROP_RESEND


def cause(meter: WireMeter, event: WireEvent) -> WireAction:
    """Make it happen by the meter's methods; what they have the caller do."""
    match event:
        case WireEvent.PUBLISH:
            return take(meter, message())
        case WireEvent.RESEND:
            return take(meter, message(dup=True))
        case WireEvent.SLOT_FOR_QOS1 | WireEvent.SLOT_FOR_QOS2:
            if take(meter, message(qos=1 if event is WireEvent.SLOT_FOR_QOS1 else 2)) is WireAction.DROP_RESEND:
                return WireAction.NOTHING  # nothing can wait under this id
            assert meter.next_due() is not None
            return WireAction.WRITE_PUBLISH
        case WireEvent.TAKE:
            if meter.reserve(ID):
                return WireAction.TAKE_SLOT
        case WireEvent.CONFIRM_QOS1 | WireEvent.CONFIRM_QOS2:
            if meter.confirm(ID, QoS(1 if event is WireEvent.CONFIRM_QOS1 else 2)):
                return WireAction.WRITE_PUBLISH
        case WireEvent.PUBACK:
            meter.acknowledged(ID)
        case WireEvent.PUBREC | WireEvent.PUBREC_REFUSED:
            if meter.received(ID, 0 if event is WireEvent.PUBREC else 0x80):
                return WireAction.ANSWER_PUBREL
        case WireEvent.PUBREL:
            meter.release(ID)
        case WireEvent.PUBCOMP:
            meter.completed(ID)
        case WireEvent.WITHDRAW:
            meter.withdraw((ID,))
    return WireAction.NOTHING


def brought_to(phase: WirePhase) -> WireMeter:
    meter = WireMeter(2)
    for event in TO_PHASE[phase]:
        cause(meter, event)
    return meter


def seen_from_outside(meter: WireMeter) -> tuple[int, WireAction | None, WireAction, int]:
    """What tells the phases apart: the slot, what a resend does (None: a message of this id waits), what PUBREC and PUBACK do."""
    resend = None if meter.holds(ID) else cause(deepcopy(meter), WireEvent.RESEND)
    after_puback = deepcopy(meter)
    cause(after_puback, WireEvent.PUBACK)
    return meter.on_wire, resend, cause(deepcopy(meter), WireEvent.PUBREC), after_puback.on_wire


def test_the_table_has_a_row_for_everything_that_can_happen() -> None:
    assert set(WIRE) == set(product(WirePhase, WireEvent))


def test_the_phases_differ_from_outside() -> None:
    assert len({seen_from_outside(brought_to(phase)) for phase in WirePhase}) == len(WirePhase)


@pytest.mark.parametrize(("phase", "event", "next_phase", "action"), ROWS)
def test_the_meter_does_what_the_row_says(phase: WirePhase, event: WireEvent, next_phase: WirePhase, action: WireAction) -> None:
    meter = brought_to(phase)
    assert meter.on_wire == (phase in HOLDS_SLOT)
    assert cause(meter, event) is action
    expected = brought_to(next_phase)
    if action is WireAction.WAIT_FOR_SLOT:
        cause(expected, event)
    assert seen_from_outside(meter) == seen_from_outside(expected)


def test_no_row_leads_from_after_pubrec_to_a_publish_but_that_of_the_next_message() -> None:
    """[MQTT-4.3.3-6]"""
    after_pubrec = (WirePhase.AWAITING_PUBCOMP, WirePhase.RELEASED, WirePhase.FINISHED)
    writing = {event for phase, event, _, action in ROWS if phase in after_pubrec and action is WireAction.WRITE_PUBLISH}
    assert writing == {WireEvent.SLOT_FOR_QOS1, WireEvent.SLOT_FOR_QOS2}


def test_only_a_slot_that_is_given_or_taken_in_advance_takes_one() -> None:
    """[MQTT-4.9.0-2]"""
    taking = {event for phase, event, next_phase, _ in ROWS if phase not in HOLDS_SLOT and next_phase in HOLDS_SLOT}
    assert taking == {WireEvent.SLOT_FOR_QOS1, WireEvent.SLOT_FOR_QOS2, WireEvent.TAKE}


def test_a_message_of_the_fast_path_is_written_once_and_only_under_an_id_that_is_free() -> None:
    confirming = {(phase, event) for phase, event, _, action in ROWS if event >= WireEvent.CONFIRM_QOS1 and action}
    assert confirming == {(WirePhase.RESERVED, WireEvent.CONFIRM_QOS1), (WirePhase.RESERVED, WireEvent.CONFIRM_QOS2)}
    assert {phase for phase, _, next_phase, _ in ROWS if next_phase is WirePhase.RESERVED} == {
        WirePhase.ABSENT,
        WirePhase.FINISHED,
        WirePhase.RESERVED,
    }
