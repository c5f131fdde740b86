"""The session does what its tables say: each row is brought about, and the phase afterwards is the row's."""

import pytest

from state.commands import SendPublish, SendPubRel
from state.transitions import (
    INBOUND,
    OUTBOUND,
    InboundAction,
    InboundEvent,
    InboundPhase,
    OutboundAction,
    OutboundEvent,
    OutboundPhase,
)
from tests.scenarios.scenario import Scenario


def outbound_phase(s: Scenario) -> OutboundPhase:
    entry = s.session.outbound.window.get(1)
    return OutboundPhase.ABSENT if entry is None else entry.phase


def in_outbound_phase(phase: OutboundPhase) -> Scenario:
    """A connected session whose packet id 1 is in this phase."""
    s = Scenario(delivery_limit=2).connect(version=4)
    match phase:
        case OutboundPhase.AWAITING_PUBACK:
            s.submit("a", qos=1)
        case OutboundPhase.AWAITING_PUBREC:
            s.submit("a", qos=2)
        case OutboundPhase.AWAITING_PUBCOMP:
            s.submit("a", qos=2).pubrec(1)
        case OutboundPhase.ABSENT:
            pass
    assert outbound_phase(s) is phase
    return s


@pytest.mark.parametrize(("phase", "event"), OUTBOUND, ids=lambda member: member.name)
def test_each_outbound_row_is_what_happens(phase: OutboundPhase, event: OutboundEvent) -> None:
    s = in_outbound_phase(phase)
    target, action = OUTBOUND[phase, event]
    before = len(s.commands)
    match event:
        case OutboundEvent.PUBACK:
            s.puback(1)
        case OutboundEvent.PUBACK_REFUSED:
            s.puback(1, reason_code=0x99)
        case OutboundEvent.PUBREC:
            s.pubrec(1)
        case OutboundEvent.PUBREC_REFUSED:
            s.pubrec(1, reason_code=0x99)
        case OutboundEvent.PUBCOMP:
            s.pubcomp(1)
        case OutboundEvent.RETRY_DUE:
            s.after(30)
        case OutboundEvent.REPLAY:
            s.connect(version=4)
    assert outbound_phase(s) is target
    done = s.commands[before:]
    assert any(isinstance(c, SendPublish) for c in done) == (action is OutboundAction.RESEND_PUBLISH)
    assert any(isinstance(c, SendPubRel) for c in done) == (
        action
        in (
            OutboundAction.RELEASE,
            OutboundAction.RESEND_PUBREL,
            OutboundAction.ANSWER_PUBREL,
            OutboundAction.ANSWER_UNKNOWN_PUBREC,
        )
    )
    assert s.session.summary().connected == (action is not OutboundAction.PROTOCOL_ERROR)


@pytest.mark.parametrize(("phase", "event"), INBOUND, ids=lambda member: member.name)
def test_each_inbound_row_is_what_happens(phase: InboundPhase, event: InboundEvent) -> None:
    s = Scenario().connect()
    if phase is not InboundPhase.ABSENT:
        s.publish(1, "a")
    if phase is InboundPhase.TOMBSTONE:
        s.after(300)
    awaiting = s.session.inbound.awaiting_rel
    assert awaiting.phase(1) is phase
    target, action = INBOUND[phase, event]
    before = len(s.uplink)
    match event:
        case InboundEvent.PUBLISH:
            s.publish(1, "b")
        case InboundEvent.LATE_REPETITION:
            s.publish(1, "a", dup=True)
        case InboundEvent.PUBREL:
            s.pubrel(1)
        case InboundEvent.TIMEOUT:
            s.after(300)
    assert s.session.inbound.awaiting_rel.phase(1) is target
    assert (len(s.uplink) > before) == (action is InboundAction.HAND_ON)
