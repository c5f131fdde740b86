"""Every state × every event is a known transition or a declared error; no packet of a peer causes an internal error."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from state.errors import SessionMisuse
from state.transitions import (
    ABANDONED,
    INBOUND,
    OUTBOUND,
    AbandonedEvent,
    AbandonedPhase,
    InboundEvent,
    InboundPhase,
    OutboundAction,
    OutboundEvent,
    OutboundPhase,
    abandoned_step,
    inbound_step,
    late_outbound_step,
    outbound_step,
)

PEERS_OUT = {
    OutboundEvent.PUBACK,
    OutboundEvent.PUBACK_REFUSED,
    OutboundEvent.PUBREC,
    OutboundEvent.PUBREC_REFUSED,
    OutboundEvent.PUBCOMP,
}
"""Events that a peer sends. Every other event has a cause of our own."""

GIVEN_UP = (AbandonedEvent.GIVEN_UP_QOS_1, AbandonedEvent.GIVEN_UP_QOS_2)

BEGINS = {OutboundEvent.SEND_QOS_1, OutboundEvent.SEND_QOS_2}

DECLARED_OUT = {
    # Nobody retries, gives up or ends what does not exist …
    *((OutboundPhase.ABSENT, event) for event in set(OutboundEvent) - PEERS_OUT - BEGINS),
    # … or begins what has begun.
    *((phase, event) for phase in set(OutboundPhase) - {OutboundPhase.ABSENT} for event in BEGINS),
    # What the client has received under the session's own packet id was not sent by a gateway under another one.
    (OutboundPhase.AWAITING_PUBCOMP, OutboundEvent.FAST_SENT),
    # No limit holds for a PUBREL.
    (OutboundPhase.AWAITING_PUBCOMP, OutboundEvent.RETRY_OVER_LIMIT),
    (OutboundPhase.AWAITING_PUBCOMP, OutboundEvent.REPLAY_OVER_LIMIT),
}

DECLARED_OWED = {
    # What is not owed is the window's business, and cannot end …
    *((AbandonedPhase.ABSENT, event) for event in set(AbandonedEvent) - set(GIVEN_UP)),
    # … what is owed cannot be given up again …
    *((phase, event) for phase in set(AbandonedPhase) - {AbandonedPhase.ABSENT} for event in GIVEN_UP),
    # … and a PUBACK is owed on one connection only, where it takes a slot.
    *(
        (AbandonedPhase.AWAITING_PUBACK, event)
        for event in (AbandonedEvent.REPLAY, AbandonedEvent.DISPLACED, AbandonedEvent.SESSION_ENDED)
    ),
}

DECLARED_IN = {
    (InboundPhase.ABSENT, InboundEvent.LATE_REPETITION),  # only a tombstone can tell that a repetition is late
    (InboundPhase.AWAITING_PUBREL, InboundEvent.LATE_REPETITION),
    (InboundPhase.ABSENT, InboundEvent.OTHER_CONTENT),  # other than that of an id that awaits PUBREL
    (InboundPhase.TOMBSTONE, InboundEvent.OTHER_CONTENT),
    (InboundPhase.ABSENT, InboundEvent.TIMEOUT),
    (InboundPhase.TOMBSTONE, InboundEvent.TIMEOUT),
    (InboundPhase.ABSENT, InboundEvent.SESSION_ENDED),
}


TABLES = (
    (OutboundPhase, OutboundEvent, outbound_step, OUTBOUND, DECLARED_OUT),
    (InboundPhase, InboundEvent, inbound_step, INBOUND, DECLARED_IN),
    (AbandonedPhase, AbandonedEvent, abandoned_step, ABANDONED, DECLARED_OWED),
)


@pytest.mark.parametrize(
    ("phase", "event", "step", "table", "declared"),
    [(*pair, *rest) for phases, events, *rest in TABLES for pair in product(phases, events)],
)
def test_every_pair_is_a_transition_or_a_declared_error(
    phase: Any, event: Any, step: Callable[..., Any], table: dict[Any, Any], declared: set[Any]
) -> None:
    if (phase, event) in declared:
        with pytest.raises(SessionMisuse, match=f"{event.name} .* {phase.name}"):
            step(phase, event)
    else:
        assert step(phase, event) == table[phase, event]


def test_no_answer_to_what_is_owed_is_an_error_of_ours() -> None:
    for phase, event in product(set(AbandonedPhase) - {AbandonedPhase.ABSENT}, PEERS_OUT):
        abandoned_step(phase, AbandonedEvent[event.name])


def test_no_outbound_pair_that_a_peer_can_cause_is_an_error_of_ours() -> None:
    assert not {(phase, event) for phase, event in DECLARED_OUT if event in PEERS_OUT}
    for phase, event in product(OutboundPhase, PEERS_OUT):
        outbound_step(phase, event)


@pytest.mark.parametrize(("phase", "event"), list(product(OutboundPhase, sorted(PEERS_OUT, key=lambda event: event.name))))
def test_a_late_acknowledgement_takes_the_step_of_the_table_or_none(phase: OutboundPhase, event: OutboundEvent) -> None:
    if OUTBOUND[phase, event][1] in (OutboundAction.RELEASE, OutboundAction.COMPLETE):
        assert late_outbound_step(phase, event) == OUTBOUND[phase, event]
    else:
        assert late_outbound_step(phase, event) == (phase, OutboundAction.IGNORE)


def test_no_row_leads_from_after_pubrec_back_to_a_publish() -> None:
    """[MQTT-4.3.3-6]"""
    for (phase, event), (target, action) in OUTBOUND.items():
        if phase is OutboundPhase.AWAITING_PUBCOMP:
            assert target in (OutboundPhase.AWAITING_PUBCOMP, OutboundPhase.ABSENT), (phase, event)
            assert action not in (OutboundAction.RESEND_QOS_1, OutboundAction.RESEND_QOS_2), (phase, event)


def test_no_refusal_is_answered_by_pubrel() -> None:
    """[MQTT-4.3.3-4] [MQTT-4.4.0-2]"""
    for (phase, event), (_, action) in OUTBOUND.items():
        if event is OutboundEvent.PUBREC_REFUSED:
            assert action not in (OutboundAction.RELEASE, OutboundAction.ANSWER_PUBREL, OutboundAction.ANSWER_UNKNOWN_PUBREC), (
                phase
            )
