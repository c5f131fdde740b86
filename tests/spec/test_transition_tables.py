"""The session does what its tables say: each row is brought about, and the phase afterwards is the row's."""

import pytest

from state.commands import SendPublish, SendPubRel, SendReceipt, WithdrawPublish
from state.events import PubAckReceived, PubCompReceived, PubRecReceived
from state.model import Outcome, Position
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

RETRY_S = 30
POSITION = Position(0, 7)


def outbound_phase(s: Scenario) -> OutboundPhase:
    entry = s.session.outbound.window.get(1)
    return OutboundPhase.ABSENT if entry is None else entry.phase


def in_outbound_phase(phase: OutboundPhase, *, delivery_limit: int = 2) -> Scenario:
    """A connected session whose packet id 1 is in this phase."""
    s = Scenario(delivery_limit=delivery_limit).connect(version=4)
    match phase:
        case OutboundPhase.AWAITING_PUBACK:
            s.submit("a", qos=1, at=POSITION)
        case OutboundPhase.AWAITING_PUBREC:
            s.submit("a", qos=2, at=POSITION)
        case OutboundPhase.AWAITING_PUBCOMP:
            s.submit("a", qos=2).pubrec(1)
        case OutboundPhase.ABSENT:
            pass
    assert outbound_phase(s) is phase
    return s


RESENDS = {OutboundAction.RESEND_QOS_1: 1, OutboundAction.RESEND_QOS_2: 2}
"""The QoS of the PUBLISH that is sent again."""

PUBRELS = {
    OutboundAction.RELEASE,
    OutboundAction.RESEND_PUBREL,
    OutboundAction.ANSWER_PUBREL,
    OutboundAction.ANSWER_UNKNOWN_PUBREC,
}

OUTCOMES = {
    OutboundAction.COMPLETE: Outcome.DELIVERED,
    OutboundAction.REFUSE: Outcome.REJECTED,
    OutboundAction.GIVE_UP: Outcome.DELIVERY_LIMIT,
    OutboundAction.WITHDRAW: Outcome.DELIVERY_LIMIT,
    OutboundAction.END: Outcome.SESSION_ENDED,
    OutboundAction.END_RECEIVED: Outcome.SESSION_ENDED,
}

DEAD_LETTERED = set(OUTCOMES) - {OutboundAction.COMPLETE, OutboundAction.END_RECEIVED}


@pytest.mark.parametrize(("phase", "event"), OUTBOUND, ids=lambda member: member.name)
def test_each_outbound_row_is_what_happens(phase: OutboundPhase, event: OutboundEvent) -> None:
    over_limit = event in (OutboundEvent.RETRY_OVER_LIMIT, OutboundEvent.REPLAY_OVER_LIMIT)
    s = in_outbound_phase(phase, delivery_limit=1 if over_limit else 2)
    target, action = OUTBOUND[phase, event]
    if event is OutboundEvent.REPLAY_OVER_LIMIT:
        s.later(RETRY_S)  # the attempt had its time
    before, attempts = len(s.commands), s.attempts.get("a", 0)
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
        case OutboundEvent.SEND_QOS_1:
            s.submit("a", qos=1)
        case OutboundEvent.SEND_QOS_2:
            s.submit("a", qos=2)
        case OutboundEvent.RETRY_DUE | OutboundEvent.RETRY_OVER_LIMIT:
            s.after(RETRY_S)
        case OutboundEvent.REPLAY | OutboundEvent.REPLAY_OVER_LIMIT:
            s.connect(version=4)
        case OutboundEvent.CONNECTION_ENDED_EARLY:
            s.lose_connection()
        case OutboundEvent.CLIENT_CRASHED:
            s.lose_connection(unanswered=1)
        case OutboundEvent.FAST_SENT:
            s.fast_sent("a", 40_000, at=POSITION, previous=6, qos=2 if phase is OutboundPhase.AWAITING_PUBREC else 1)
            assert s.packet_ids == [40_000]
        case OutboundEvent.SESSION_ENDED:
            s.connect(version=4, clean_start=True)
    assert outbound_phase(s) is target
    done = s.commands[before:]
    published = [(c.qos, c.dup) for c in done if isinstance(c, SendPublish)]
    if action is OutboundAction.SEND_PUBLISH:
        assert published == [(1 if event is OutboundEvent.SEND_QOS_1 else 2, False)]
    else:
        assert published == ([(RESENDS[action], True)] if action in RESENDS else [])
    assert any(isinstance(c, SendPubRel) for c in done) == (action in PUBRELS)
    assert [c.receipt.outcome for c in done if isinstance(c, SendReceipt)] == ([OUTCOMES[action]] if action in OUTCOMES else [])
    assert len(s.dead_letters) == (action in DEAD_LETTERED)
    assert [c.packet_ids for c in done if isinstance(c, WithdrawPublish)] == ([(1,)] if action is OutboundAction.WITHDRAW else [])
    if event is OutboundEvent.CONNECTION_ENDED_EARLY:
        assert s.attempts["a"] == attempts - (action is OutboundAction.GIVE_ATTEMPT_BACK)
    elif event is OutboundEvent.CLIENT_CRASHED:
        assert s.crashes["a"] == (action is OutboundAction.COUNT_CRASH)
    else:
        assert s.session.summary().connected == (action is not OutboundAction.PROTOCOL_ERROR)


LATE = {
    (OutboundPhase.AWAITING_PUBACK, PubAckReceived, 0): OutboundPhase.ABSENT,
    (OutboundPhase.AWAITING_PUBREC, PubRecReceived, 0): OutboundPhase.AWAITING_PUBCOMP,
    (OutboundPhase.AWAITING_PUBCOMP, PubCompReceived, 0): OutboundPhase.ABSENT,
    (OutboundPhase.AWAITING_PUBCOMP, PubCompReceived, 0x92): OutboundPhase.ABSENT,
    (OutboundPhase.AWAITING_PUBCOMP, PubRecReceived, 0x92): OutboundPhase.ABSENT,
}
"""Acknowledgements from an earlier connection that take the exchange further; every other one changes nothing."""


@pytest.mark.parametrize("online", [True, False], ids=["online", "offline"])
@pytest.mark.parametrize("reason_code", [0, 0x92])
@pytest.mark.parametrize("kind", [PubAckReceived, PubRecReceived, PubCompReceived])
@pytest.mark.parametrize("phase", OutboundPhase, ids=lambda phase: phase.name)
def test_a_late_acknowledgement_counts_where_it_leads_further(
    phase: OutboundPhase, kind: type[PubAckReceived | PubRecReceived | PubCompReceived], reason_code: int, online: bool
) -> None:
    s = in_outbound_phase(phase).lose_connection()
    if online:
        s.connect(version=4)
    before, attempts = len(s.commands), dict(s.attempts)
    s.handle(kind(connection_id=1, packet_id=1, reason_code=reason_code))
    target = LATE.get((phase, kind, reason_code), phase)
    assert outbound_phase(s) is target
    assert s.outcomes == ({"a": Outcome.DELIVERED} if target is OutboundPhase.ABSENT and phase is not target else {})
    assert not any(isinstance(c, SendPublish | SendPubRel) for c in s.commands[before:])
    if target is phase:
        assert s.commands[before:] == []
        assert s.attempts == attempts


@pytest.mark.parametrize(("phase", "event"), INBOUND, ids=lambda member: member.name)
def test_each_inbound_row_is_what_happens(phase: InboundPhase, event: InboundEvent) -> None:
    s = Scenario(max_awaiting_rel=0).connect()
    if phase is not InboundPhase.ABSENT:
        s.publish(1, "a")
    if phase is InboundPhase.TOMBSTONE:
        s.after(300)
    awaiting = s.session.inbound.awaiting_rel
    assert awaiting.phase(1) is phase
    target, action = INBOUND[phase, event]
    before, rows = len(s.uplink), len(s.ledger)
    match event:
        case InboundEvent.PUBLISH:
            s.publish(1, "a")
        case InboundEvent.OTHER_CONTENT:
            s.publish(1, "b")
        case InboundEvent.LATE_REPETITION:
            s.publish(1, "a", dup=True)
        case InboundEvent.OVERTAKEN:
            _repeated_on_a_later_connection(s, phase)
            before, rows = len(s.uplink), len(s.ledger)
            s.publish(1, "a", connection_id=1)
        case InboundEvent.PUBREL:
            s.pubrel(1)
        case InboundEvent.TIMEOUT:
            s.after(300)
        case InboundEvent.SESSION_ENDED:
            s.connect(clean_start=True)
    assert s.session.inbound.awaiting_rel.phase(1) is target
    assert (len(s.uplink) > before) == (action is InboundAction.FORWARD)
    recorded = s.ledger[rows:]
    assert ("publication_released" in recorded) == (action is InboundAction.RELEASE)
    assert ("publication_repeated" in recorded) == (
        action is InboundAction.RECOGNISE
        or (event in (InboundEvent.PUBLISH, InboundEvent.OVERTAKEN) and action is InboundAction.IGNORE)
    )
    assert ("publication_abandoned" in recorded) == (action is InboundAction.ABANDON)


def _repeated_on_a_later_connection(s: Scenario, phase: InboundPhase) -> None:
    """The client has come back and sent "a" again under packet id 1, which is in this phase afterwards."""
    s.connect().publish(1, "a", dup=True)
    if phase is InboundPhase.ABSENT:
        s.pubrel(1)
    elif phase is InboundPhase.TOMBSTONE:
        s.after(299).publish(1, "a", dup=True).after(1)
    assert s.session.inbound.awaiting_rel.phase(1) is phase
