"""protocol.md, section 2: rows and receipts have the time at which an answer was logged; timers count from the micro-batch."""

import pytest

from state.commands import RecordTransition, Transition
from state.model import Outcome
from tests.scenarios.scenario import START_MS, Scenario
from tests.spec.fast_path.scenes import Y, at, opened

LOGGED_MS = START_MS + 6
"""When an answer was logged. The micro-batch that reads it is a second later than the one that sent the message."""


def sent(qos: int = 1, **settings: object) -> Scenario:
    return Scenario(**settings).connect(version=5).submit("a", qos=qos).later(1)


def times(s: Scenario, transition: Transition) -> list[int]:
    """Milliseconds after the start."""
    return [row.time_ms - START_MS for row in s.sent(RecordTransition) if row.transition is transition]


def test_a_message_is_delivered_when_its_puback_was_logged() -> None:
    s = sent().puback(1, logged_ms=LOGGED_MS)
    receipt = s.receipt("a")
    assert (receipt.outcome, receipt.outcome_ms, receipt.recorded_ms) == (Outcome.DELIVERED, LOGGED_MS, s.now_ms)
    assert times(s, Transition.FINISHED) == [6]


def test_each_answer_of_qos_2_has_the_time_of_its_own_record() -> None:
    s = sent(qos=2).pubrec(1, pubrel_sent=True, logged_ms=LOGGED_MS).later(1).pubcomp(1, logged_ms=START_MS + 1_009)
    assert (times(s, Transition.PUBREC), times(s, Transition.FINISHED)) == ([6], [1_009])
    assert (s.receipt("a").outcome_ms, s.receipt("a").recorded_ms) == (START_MS + 1_009, START_MS + 2_000)


@pytest.mark.parametrize(("logged", "outcome"), [(-500, 0), (1, 1), (1_000, 1_000), (7_000, 1_000), (-START_MS, 1_000)])
def test_no_answer_is_older_than_the_sending_or_younger_than_now(logged: int, outcome: int) -> None:
    """The last one is 0: the host does not know the time."""
    assert sent().puback(1, logged_ms=START_MS + logged).receipt("a").outcome_ms == START_MS + outcome


def test_a_message_is_never_delivered_before_kafka_has_it() -> None:
    s = opened().later(1).fast_sent("a", Y, at=at(1), previous=0, sent_ms=START_MS, accepted_ms=START_MS + 100)
    assert s.puback(Y, logged_ms=START_MS + 50).receipt("a").outcome_ms == START_MS + 100


def test_a_fast_send_of_qos_0_is_over_when_it_was_logged() -> None:
    s = opened().later(1)
    s.fast_sent("a", 0, at=at(1), previous=0, qos=0, sent_ms=START_MS + 300, accepted_ms=START_MS, logged_ms=START_MS + 303)
    receipt = s.receipt("a")
    assert (receipt.outcome, receipt.first_sent_ms, receipt.outcome_ms) == (Outcome.SENT, START_MS + 300, START_MS + 303)
    assert receipt.recorded_ms == s.now_ms


def test_a_refusal_has_the_time_of_its_record_and_its_dead_letter_now() -> None:
    s = sent().puback(1, reason_code=0x87, logged_ms=LOGGED_MS)
    assert (times(s, Transition.REFUSED), times(s, Transition.FINISHED), times(s, Transition.DEAD_LETTERED)) == (
        [6],
        [6],
        [1_000],
    )
    assert (s.receipt("a").outcome, s.receipt("a").outcome_ms) == (Outcome.REJECTED, LOGGED_MS)


def test_the_next_attempt_counts_from_the_time_of_its_row() -> None:
    at_once = Scenario().connect(version=5).submit("a").later(0.006).puback(1, reason_code=0x97)
    late = sent().puback(1, reason_code=0x97, logged_ms=LOGGED_MS)
    details = [[row.detail for row in each.sent(RecordTransition) if row.detail] for each in (at_once, late)]
    assert details[0] == details[1] != []
    assert times(late, Transition.REFUSED) == [6]


def test_an_answer_on_an_earlier_connection_has_its_own_time() -> None:
    s = sent().lose_connection().later(1).connect(version=5).later(1).puback(1, connection_id=1, logged_ms=LOGGED_MS)
    assert (s.receipt("a").outcome, s.receipt("a").outcome_ms) == (Outcome.DELIVERED, LOGGED_MS)
    assert s.receipt("a").recorded_ms == s.now_ms


def test_an_answer_to_nothing_and_a_release_have_their_times() -> None:
    s = Scenario().connect().publish(7, "up").later(1).puback(9, logged_ms=LOGGED_MS).pubrel(7, logged_ms=LOGGED_MS + 1)
    assert (times(s, Transition.UNKNOWN_ACKNOWLEDGEMENT), times(s, Transition.PUBLICATION_RELEASED)) == ([6], [7])


def test_the_wait_for_pubcomp_counts_from_the_micro_batch() -> None:
    waits = []
    for logged_ms in (0, LOGGED_MS):
        s = Scenario(retry_interval_ms=10_000).connect().submit("a", qos=2).later(1).pubrec(1, logged_ms=logged_ms)
        waits.append(s.session.next_deadline_ms())
    assert waits[0] == waits[1] == START_MS + 11_000
