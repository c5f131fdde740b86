import pytest

from streaming.history.message_fates import Whereabouts, fates
from streaming.history.trace import TraceStep

T0 = 1_790_000_000_000
AT = "2026-09-21 14:13:20.000"


def step(name: str, client_id: str = "gate-1", outcome: str | None = None, detail: str = "") -> TraceStep:
    return TraceStep(time_ms=T0, client_id=client_id, step=name, outcome=outcome, detail=detail)


@pytest.mark.parametrize(
    ("steps", "whereabouts", "sentence"),
    [
        (["submitted"], Whereabouts.UNREAD, f"Kafka has it for gate-1 since {AT}, and no session has read it yet"),
        (["submitted", "accepted", "queued"], Whereabouts.QUEUE, f"waits in gate-1's queue since {AT}"),
        (["sent", "resent", "connected"], Whereabouts.WIRE, f"was sent to gate-1 at {AT} and is not acknowledged yet"),
        (["sent", "pubrec"], Whereabouts.HANDSHAKE, "gate-1 has it; its QoS 2 handshake is not over"),
        (["sent", "refused"], Whereabouts.QUEUE, f"waits in gate-1's queue since {AT}"),
    ],
)
def test_the_newest_step_says_where_a_message_is(steps: list[str], whereabouts: Whereabouts, sentence: str) -> None:
    (fate,) = fates([step(name) for name in steps])
    assert (fate.client_id, fate.whereabouts, fate.sentence) == ("gate-1", whereabouts, sentence)


def test_a_message_for_later_says_for_when() -> None:
    (fate,) = fates([step("accepted"), step("scheduled", detail="for 2030-01-31T08:00:00Z")])
    assert fate.sentence == f"waits in gate-1's session since {AT}, for 2030-01-31T08:00:00Z"
    assert not fate.whereabouts.is_with_session, "its connection changes nothing"
    (fate,) = fates([step("scheduled"), step("queued")])
    assert fate.whereabouts is Whereabouts.QUEUE
    (fate,) = fates([step("sent"), step("cancel_refused")])
    assert fate.whereabouts is Whereabouts.WIRE


def test_a_message_that_ended_says_as_what_for_each_client() -> None:
    steps = [
        step("sent"), step("finished", outcome="delivered"),
        step("sent", "b"), step("finished", "b", "expired"), step("dead_lettered", "b"), step("dead letter", "b"),
    ]  # fmt: skip
    assert [fate.sentence for fate in fates(steps)] == [
        f"ended as delivered for gate-1 at {AT}",
        f"ended as expired for b at {AT}; it is a dead letter",
    ]
    assert not any(fate.whereabouts.is_with_session for fate in fates(steps))


def test_a_dropped_repetition_leaves_the_message_where_it_is() -> None:
    took, again = [step("submitted"), step("accepted"), step("sent")], [step("submitted"), step("finished", outcome="duplicate")]
    (fate,) = fates([*took, step("finished", outcome="delivered"), *again])
    assert fate.sentence == f"ended as delivered for gate-1 at {AT}; a repetition of it was dropped, at {AT}"
    (fate,) = fates([*took, *again, *again])
    assert fate.sentence.startswith(f"was sent to gate-1 at {AT} and is not acknowledged yet; 2 repetitions of it were dropped")
    assert fate.whereabouts is Whereabouts.WIRE
    (fate,) = fates([*took, *again, step("submitted")])
    assert fate.whereabouts is Whereabouts.UNREAD, "nobody knows yet whether it is a repetition"


def test_a_repetition_of_what_is_forgotten_says_why_it_was_dropped() -> None:
    (fate,) = fates([step("submitted"), step("finished", outcome="duplicate")])
    assert fate.sentence == f"was dropped for gate-1 at {AT}: the session had taken a message with this id before"
    assert fate.whereabouts is Whereabouts.ENDED


def test_a_publication_that_nobody_got_says_so() -> None:
    (fate,) = fates([step("published", "pump")])
    assert fate.client_id == ""
    assert "no client has it" in fate.sentence
    (fate,) = fates([step("published", "pump"), step("submitted"), step("routed_nowhere")])
    assert (fate.client_id, fate.whereabouts) == ("gate-1", Whereabouts.NOWHERE)
