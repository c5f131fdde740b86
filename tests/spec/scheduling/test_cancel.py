"""docs/guides/scheduling.md: what was not sent is taken back."""

import pytest

from state.commands import RecordTransition
from state.model import Outcome
from tests.scenarios.scenario import Scenario
from tests.spec.fast_path.scenes import Y, at, opened
from tests.spec.scheduling.test_deliver_at import due


def refusals(s: Scenario) -> list[tuple[str | None, str]]:
    rows = s.sent(RecordTransition)
    return [(row.message_id, row.detail) for row in rows if row.transition.value == "cancel_refused"]


@pytest.mark.promise("scheduling")
def test_a_message_in_the_queue_is_taken_back() -> None:
    s = Scenario().submit("a", "b").cancel("a")
    assert (s.queued, s.outcomes, s.dead_letters) == (["b"], {"a": Outcome.CANCELLED}, [])
    assert s.receipt("a").detail == "a backend has cancelled it"
    assert s.receipt("a").final
    assert refusals(s) == []


def test_a_message_that_waits_for_its_time_is_taken_back() -> None:
    s = Scenario().submit("a", headers=due(10)).cancel("a")
    assert (s.outcomes, s.session.is_empty) == ({"a": Outcome.CANCELLED}, True)


def test_what_was_sent_stays() -> None:
    s = Scenario().connect().submit("a").cancel("a")
    assert (s.packet_ids, refusals(s)) == ([1], [("a", "too late: it was sent")])
    assert s.puback(1).outcomes == {"a": Outcome.DELIVERED}


def test_a_cancellation_of_an_unknown_message_is_a_row_of_the_ledger() -> None:
    s = Scenario().cancel("a")
    assert refusals(s) == [("a", "no message with this id waits for the client")]
    assert (s.ledger, s.session.is_empty) == (["cancel_refused"], True)


def test_a_copy_of_a_cancellation_is_harmless() -> None:
    s = Scenario().submit("a", explicit_id=True).cancel("a", at=at(1)).cancel("a", at=at(2))
    assert (s.outcomes, len(refusals(s))) == ({"a": Outcome.CANCELLED}, 1)
    assert s.submit("a", explicit_id=True).queued == [], "its id stays remembered"


def test_all_messages_with_the_id_are_taken_back() -> None:
    s = Scenario().submit("a", "a", "b").cancel("a")
    assert (s.queued, [receipt.message_id for receipt in s.receipts]) == (["b"], ["a", "a"])


def test_what_a_gateway_may_be_sending_is_decided_on_when_the_path_is_closed() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    s.sees()
    assert s.cancel("b", at=at(4)).puback(2).sees() == ["CLOSE PATH"], "nothing leaves the queue before"
    assert (s.queued, refusals(s)) == (["b", "c"], [])
    assert s.path_closed().sees() == ["PUBLISH 3 c", "OPEN 4"]
    assert s.outcomes["b"] is Outcome.CANCELLED


def test_what_a_gateway_has_sent_meanwhile_stays() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).cancel("b", at=at(3))
    s.fast_sent("b", Y, at=at(2), previous=1).path_closed()
    assert refusals(s) == [("b", "too late: it was sent")]
    assert s.puback(Y).outcomes["b"] is Outcome.DELIVERED


def test_the_end_of_the_connection_decides_too() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).cancel("b", at=at(3)).lose_connection()
    assert s.outcomes["b"] is Outcome.CANCELLED
    assert s.queued == []


def test_the_end_of_the_session_ends_what_waits_for_that() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).cancel("b", at=at(3)).disconnect(expiry_s=0)
    assert s.outcomes["b"] is Outcome.SESSION_ENDED
    assert not s.session.outbound.cancels


def test_a_cancellation_has_a_position_like_any_message() -> None:
    s = opened().cancel("x", at=at(1))
    assert s.sees() == ["OPEN 1"]
