"""protocol.md, section 7, the session's side: what a gateway has sent, and the session has not."""

import pytest

from state.commands import RecordTransition, Transition
from state.errors import SessionMisuse
from state.events import DeadlineReached, MessageArrived, MessageSubmitted, PubAckReceived, PubRecReceived
from state.model import Message, Outcome, numbered_partition
from tests.scenarios.scenario import START_MS, Scenario
from tests.spec.fast_path.scenes import FAST, RETRY_S, Y, at, grant, opened, positions, recreate_messages


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_gateway_sent_completes_like_any_other_message(qos: int) -> None:
    s = opened().later(1).fast_sent("a", Y, at=at(1), previous=0, qos=qos, sent_ms=START_MS + 300, accepted_ms=START_MS + 100)
    assert (s.packet_ids, s.attempts) == ([Y], {"a": 1})
    if qos == 1:
        s.puback(Y)
    else:
        s.pubrec(Y, pubrel_sent=True).pubcomp(Y)
    assert s.sees() == [], "the gateway has done it all"
    receipt = s.receipt("a")
    assert (receipt.outcome, receipt.fast_path, receipt.attempts) == (Outcome.DELIVERED, True, 1)
    assert (receipt.accepted_ms, receipt.first_sent_ms, receipt.outcome_ms) == (START_MS + 100, START_MS + 300, START_MS + 1_000)
    assert not s.receipt("first").fast_path


def test_the_ledger_says_that_it_went_by_the_fast_path_and_when() -> None:
    s = opened().later(1).fast_sent("a", Y, at=at(1), previous=0, sent_ms=START_MS + 300, accepted_ms=START_MS + 100).puback(Y)
    rows = [row for row in s.sent(RecordTransition) if row.message_id == "a"]
    assert [(row.transition, row.time_ms - START_MS, row.packet_id, row.attempt) for row in rows] == [
        (Transition.ACCEPTED, 100, None, 0),
        (Transition.FAST_SENT, 300, Y, 1),
        (Transition.FINISHED, 1_000, Y, 1),
    ]


def test_its_message_is_ignored_when_it_is_read() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0)
    before = len(s.commands)
    s.submit("a", at=at(1)).refuse("a", "never", at=at(1))
    assert s.commands[before:][0].outcome is Outcome.INVALID, "once: whatever else stands there is new"
    s = opened().fast_sent("a", Y, at=at(1), previous=0).submit("a", at=at(1))
    assert s.sees() == []
    assert s.packet_ids == [Y]


def test_the_record_of_an_adopted_message_is_not_even_read() -> None:
    def read() -> MessageSubmitted:
        raise AssertionError("the session has the message")

    s = opened().fast_sent("a", Y, at=at(1), previous=0)
    s.handle(MessageArrived(position=at(1), read=read))
    assert s.sees() == []
    message = Message(message_id="b", topic="t", payload=b"b")
    s.handle(MessageArrived(position=at(2), read=lambda: MessageSubmitted(message=message, position=at(2))))
    assert s.sees() == ["PUBLISH 2 b", "OPEN 2"]


def test_any_other_message_is_new_whatever_has_been_handled() -> None:
    """A router that had forgotten something would else lose a message."""
    s = opened().fast_sent("b", Y, at=at(5), previous=0).submit("a", at=at(3))
    assert s.sees() == ["PUBLISH 2 a", "OPEN 5"]
    assert s.submit("b", at=at(5)).sees() == []


def test_qos_0_is_over_when_the_session_hears_of_it() -> None:
    s = opened().later(1).fast_sent("a", 0, at=at(1), previous=0, qos=0, sent_ms=START_MS + 300, accepted_ms=START_MS + 100)
    assert (s.outcomes["a"], s.packet_ids, s.sees()) == (Outcome.SENT, [], [])
    assert (s.receipt("a").fast_path, s.receipt("a").first_sent_ms) == (True, START_MS + 300)
    assert s.submit("a", at=at(1)).sees() == []


@pytest.mark.parametrize(("sent_ms", "first_sent_ms"), [(5, 100), (300, 300), (5_000, 1_000)])
def test_the_clock_of_a_gateway_makes_no_message_older_or_younger(sent_ms: int, first_sent_ms: int) -> None:
    s = opened().later(1)
    s.fast_sent("a", Y, at=at(1), previous=0, sent_ms=START_MS + sent_ms, accepted_ms=START_MS + 100).puback(Y)
    assert s.receipt("a").first_sent_ms == START_MS + first_sent_ms


def test_an_engine_that_was_away_waits_before_it_sends_again() -> None:
    s = opened(version=5).later(600).fast_sent("a", Y, at=at(1), previous=0, sent_ms=START_MS, accepted_ms=START_MS)
    assert s.sees() == []
    assert s.puback(Y).outcomes["a"] is Outcome.DELIVERED


def test_a_fast_send_behind_a_missing_one_is_ignored() -> None:
    """If it were adopted, the missing message would come after it, or never if it is older than the handled position."""
    s = opened().fast_sent("b", Y + 1, at=at(2), previous=1)
    assert s.packet_ids == []
    s.lose_connection().submit("a", at=at(1)).submit("b", at=at(2)).connect(capabilities=FAST)
    assert s.sees() == ["CONNACK present", "PUBLISH 2 a", "PUBLISH 3 b", "OPEN 2"]


def test_what_the_session_sent_too_keeps_its_place_under_the_new_id() -> None:
    s = opened().submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    s.fast_sent("b", Y, at=at(2), previous=1)
    assert s.packet_ids == [2, Y, 4]
    assert s.attempts == {"a": 1, "b": 1, "c": 1}
    s.puback(3)
    assert s.packet_ids == [2, Y, 4], "the id that the gateway has dropped is nobody's"
    s.puback(Y)
    assert (s.receipt("b").fast_path, s.receipt("b").outcome) == (True, Outcome.DELIVERED)
    s.lose_connection()
    s.sees()
    assert s.connect().sees() == ["CONNACK present", "PUBLISH 2 a DUP", "PUBLISH 4 c DUP"]


@pytest.mark.parametrize(("slow", "fast"), [(1, 2), (2, 1)])
def test_it_goes_on_with_the_qos_with_which_it_was_sent(slow: int, fast: int) -> None:
    s = opened().submit("a", at=at(1), qos=slow).submit("b", at=at(2), qos=slow)
    s.fast_sent("a", Y, at=at(1), previous=0, qos=fast)
    assert s.packet_ids == [Y, 3]
    s.puback(Y) if fast == 1 else s.pubrec(Y).pubcomp(Y)
    assert s.outcomes["a"] is Outcome.DELIVERED


def test_at_qos_0_it_leaves_the_window_and_its_slot_is_free() -> None:
    s = opened(max_inflight=1, prefetch=1).submit("a", at=at(1)).submit("b", at=at(2)).later(20)
    s.sees()
    s.fast_sent("a", 0, at=at(1), previous=0, qos=0)
    assert (s.packet_ids, s.outcomes["a"]) == ([3], Outcome.SENT)
    assert s.after(RETRY_S - 1).sees() == [], "the clock of the next one begins with the slot"
    s = opened().submit("a", at=at(1)).lose_connection().fast_sent("a", 0, at=at(1), previous=0, qos=0)
    assert (s.packet_ids, s.outcomes["a"]) == ([], Outcome.SENT)


def test_one_that_waits_in_the_queue_becomes_the_youngest_of_the_window() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    s.sees()
    s.fast_sent("b", Y, at=at(2), previous=1)
    assert (s.packet_ids, s.queued, s.attempts["b"]) == ([2, Y], ["c"], 1)
    assert s.puback(2, Y).sees() == ["OPEN 2", "PUBLISH 3 c", "OPEN 3"]


def test_one_behind_a_missing_one_that_waits_in_the_queue_is_left_alone() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    s.fast_sent("c", Y, at=at(3), previous=2).fast_sent("d", Y, at=at(4), previous=3)
    assert (s.packet_ids, s.queued) == ([2], ["b", "c"])
    s.fast_sent("b", Y, at=at(2), previous=1).fast_sent("c", Y + 1, at=at(3), previous=2)
    assert (s.packet_ids, s.queued) == ([2, Y, Y + 1], [])


def test_one_behind_a_refused_one_that_waits_again_is_adopted() -> None:
    s = opened(version=5).submit("a", at=at(1)).puback(2, reason_code=0x97)
    s.fast_sent("b", Y, at=at(2), previous=1)
    assert (s.packet_ids, s.queued) == ([Y], ["a"])


def test_one_that_waits_again_and_was_sent_meanwhile_counts_both_attempts() -> None:
    s = opened(version=5).submit("a", at=at(1)).puback(2, reason_code=0x97)
    s.fast_sent("a", Y, at=at(1), previous=0)
    assert (s.packet_ids, s.queued, s.attempts["a"]) == ([Y], [], 2)


def test_one_that_waits_in_the_queue_and_was_sent_at_qos_0_is_over() -> None:
    s = opened().lose_connection().submit("a", at=at(1), qos=0).submit("b", at=at(2))
    s.fast_sent("a", 0, at=at(1), previous=0, qos=0).fast_sent("b", 0, at=at(2), previous=1, qos=0)
    assert (s.queued, s.packet_ids) == ([], [])
    assert s.outcomes == {"first": Outcome.DELIVERED, "a": Outcome.SENT, "b": Outcome.SENT}


def test_one_that_has_left_the_session_is_left_alone() -> None:
    s = opened().submit("a", at=at(1)).puback(2).fast_sent("a", Y, at=at(1), previous=0)
    assert (s.packet_ids, s.outcomes["a"]) == ([], Outcome.DELIVERED)
    s.submit("b", at=at(2))
    assert grant(s).last_id == Y


def test_a_record_that_kafka_has_twice_is_adopted_once() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0).fast_sent("a", Y, at=at(1), previous=0)
    assert s.packet_ids == [Y]
    s.puback(Y).fast_sent("a", Y, at=at(1), previous=0)
    assert (s.packet_ids, s.outcomes["a"]) == ([], Outcome.DELIVERED)


def test_a_fast_send_counts_after_the_loss_of_its_connection() -> None:
    """A frozen gateway may wake up and write to a device that never left."""
    s = opened().lose_connection().fast_sent("a", Y, at=at(1), previous=0)
    assert (s.packet_ids, s.attempts) == ([Y], {"a": 0})
    s.submit("a", at=at(1))
    s.sees()
    assert s.connect().sees() == ["CONNACK present", f"PUBLISH {Y} a DUP"]
    s.handle(PubAckReceived(connection_id=1, packet_id=Y))
    assert s.outcomes["a"] is Outcome.DELIVERED


def test_what_the_loss_has_given_back_is_not_given_back_twice() -> None:
    s = opened().submit("a", at=at(1)).lose_connection().fast_sent("a", Y, at=at(1), previous=0)
    assert s.attempts == {"a": 0}


def test_a_fast_send_does_not_count_after_a_later_connection() -> None:
    s = opened().connect(capabilities=FAST).fast_sent("a", Y, at=at(1), previous=0, connection_id=1)
    assert s.packet_ids == []
    s.sees()
    assert s.submit("a", at=at(1)).sees() == ["PUBLISH 2 a", "OPEN 1"]


def test_when_the_session_has_ended_it_does_not_count() -> None:
    s = Scenario().connect(expiry_s=0, clean_start=True, capabilities=FAST).submit("first", at=at(0)).lose_connection()
    s.fast_sent("a", Y, at=at(1), previous=0)
    assert s.session.is_empty


def test_a_refused_connection_that_is_older_changes_nothing() -> None:
    s = Scenario().connect(connection_id=7, capabilities=FAST).submit("first", at=at(0)).puback(1)
    s.connect(connection_id=5, clean_start=True, capabilities=FAST).fast_sent("a", Y, at=at(1), previous=0, connection_id=7)
    assert s.packet_ids == [Y]


def test_a_publish_names_its_position_until_its_fast_sent_is_read() -> None:
    s = opened(max_inflight=2).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3)).path_closed()
    s.after(RETRY_S)
    assert positions(s)[1:] == [("a", at(1)), ("b", at(2)), ("a", at(1)), ("b", at(2))]
    s.lose_connection().connect(capabilities=FAST)
    assert positions(s)[5:] == [("a", at(1)), ("b", at(2))], "on a later connection, too"
    s.puback(2)
    assert positions(s)[7:] == [("c", at(3))], "and from the queue"


def test_a_publish_of_what_was_adopted_has_none() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0).submit("b", at=at(2)).fast_sent("b", Y + 1, at=at(2), previous=1)
    s.after(RETRY_S)
    assert positions(s)[1:] == [("b", at(2)), ("a", None), ("b", None)]
    s.puback(Y, reason_code=0x80)
    assert positions(s)[4:] == [("a", None)], "refused, and sent anew under an id of the session"
    assert s.packet_ids == [Y + 1, 3]


def test_a_late_acknowledgement_may_be_about_an_older_message() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0).puback(Y).connect(capabilities=FAST)
    s.fast_sent("b", Y, at=at(2), previous=1)
    s.puback(Y, connection_id=1)
    assert s.packet_ids == [Y]
    s.lose_connection().connect(capabilities=FAST).puback(Y, connection_id=2)
    assert s.outcomes["b"] is Outcome.DELIVERED


def test_a_session_stays_while_an_adopted_message_is_not_read() -> None:
    """If the session ended, the message would be read as new."""
    s = Scenario().connect(expiry_s=0, clean_start=True, capabilities=FAST).submit("first", at=at(0))
    s.fast_sent("a", Y, at=at(1), previous=0).lose_connection()
    assert s.outcomes["a"] is Outcome.SESSION_ENDED
    assert not s.session.is_empty
    s.submit("a", at=at(1))
    assert s.session.is_empty
    assert s.connect(capabilities=FAST).sees()[-1] == "CONNACK", "forgotten: the next message is the first"
    assert s.submit("b", at=at(2)).sees() == ["PUBLISH 2 b", "OPEN 2"]


def test_a_packet_id_used_twice_is_an_error_that_changes_nothing() -> None:
    s = opened(delivery_limit=1).fast_sent("a", Y, at=at(1), previous=0).submit("b", at=at(2))
    for position, previous in ((at(2), 1), (at(3), 2)):
        with pytest.raises(SessionMisuse, match="for two messages"):
            s.fast_sent("b", Y, at=position, previous=previous)
    assert s.packet_ids == [Y, 2]


def test_the_id_of_an_adopted_message_is_remembered() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0, explicit_id=True).fast_sent("b", Y + 1, at=at(2), previous=1)
    s.submit("a", at=at(3), explicit_id=True).submit("b", at=at(4), explicit_id=True)
    assert s.sees() == ["OPEN 3", "PUBLISH 2 b", "OPEN 4"]
    s.fast_sent("b", Y + 2, at=at(5), previous=4, explicit_id=True)
    assert len(s.session.outbound.recent_ids.digests) == 2, "taken before the gateway was told"


def test_a_fast_send_without_a_grant_is_adopted_all_the_same() -> None:
    """The gateway is wrong, but what it has sent is sent."""
    s = Scenario().connect().submit("first", at=at(0)).fast_sent("a", Y, at=at(1), previous=0)
    assert s.packet_ids == [1, Y]
    s = Scenario().connect(capabilities=FAST).fast_sent("a", Y, at=at(1), previous=-1)
    assert s.packet_ids == [Y]


def test_a_late_pubrec_withdraws_the_replay_of_an_adopted_message() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0, qos=2).lose_connection().connect(capabilities=FAST)
    s.sees()
    s.handle(PubRecReceived(connection_id=1, packet_id=Y))
    assert s.sees() == [f"WITHDRAW ({Y},)"]
    assert s.lose_connection().connect().sees() == ["CONNACK present", f"PUBREL {Y}"]


def test_a_refused_adopted_message_waits_in_its_old_place() -> None:
    s = opened(max_inflight=2).fast_sent("a", Y, at=at(1), previous=0).submit("a", at=at(1))
    s.submit("b", at=at(2)).submit("c", at=at(3)).submit("high", at=at(4), priority=9)
    s.puback(Y, reason_code=0x97)
    assert s.queued == ["high", "a", "c"]
    assert s.path_closed().after(1).sees()[-1] == "PUBLISH 3 high", "when the wait is over"
    assert s.puback(2).puback(3).sees() == ["PUBLISH 4 a", "PUBLISH 5 c", "OPEN 4"]


def test_what_is_in_the_window_when_the_gateway_sends_more_is_older() -> None:
    s = opened(max_inflight=1, prefetch=2).submit("a", at=at(1)).submit("b", at=at(2)).fast_sent("c", Y, at=at(3), previous=2)
    assert s.packet_ids == [2, 3, Y]
    s.sees()
    assert s.lose_connection().connect().sees() == ["CONNACK present", "PUBLISH 2 a DUP", "PUBLISH 3 b DUP", f"PUBLISH {Y} c DUP"]


def test_gateways_go_on_with_packet_ids_over_sessions_too() -> None:
    s = opened().fast_sent("a", Y + 5, at=at(1), previous=0).connect(clean_start=True, capabilities=FAST)
    assert (grant(s).last_id, grant(s).ids_in_use) == (Y + 5, ())


def test_no_message_of_a_recreated_topic_is_taken_for_an_old_one() -> None:
    """The offsets begin again. Message a of the old topic is adopted and never read, and b comes at its offset."""
    s = opened().fast_sent("a", Y, at=at(1), previous=0)
    recreate_messages(s)
    new = numbered_partition(0, 1)
    s.submit("b", at=at(1, new))
    assert s.sees() == ["PUBLISH 2 b", "CLOSE PATH"], "the grant is for the old topic"
    s.puback(2).path_closed()
    assert s.sees() == ["OPEN 1"]
    assert grant(s).after == at(1, new)
    s.fast_sent("c", Y + 1, at=at(2, new), previous=1).puback(Y).puback(Y + 1)
    assert {s.outcomes[name] for name in "abc"} == {Outcome.DELIVERED}


def test_a_session_is_not_kept_for_a_message_that_nobody_will_read() -> None:
    s = opened(version=5).fast_sent("a", Y, at=at(1), previous=0).puback(Y)
    s.disconnect(expiry_s=0)
    assert not s.session.is_empty
    recreate_messages(s)
    s.handle(DeadlineReached())
    assert s.session.is_empty


def test_what_was_sent_of_the_old_topic_is_adopted_after_it_is_gone() -> None:
    s = opened()
    recreate_messages(s)
    s.submit("b", at=at(0, numbered_partition(0, 1))).fast_sent("a", Y, at=at(1), previous=0)
    assert s.packet_ids == [2, Y]
    assert not s.session.outbound.positions.unread


def test_an_adopted_message_is_ignored_when_one_before_it_is_gone_from_the_log() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0).fast_sent("b", Y + 1, at=at(2), previous=1)
    s.submit("b", at=at(2))
    assert (s.packet_ids, list(s.session.outbound.positions.unread)) == ([Y, Y + 1], [])


def test_a_message_of_another_partition_in_the_queue_is_not_missing() -> None:
    s = opened(max_inflight=1).submit("slot", at=at(1)).submit("other", at=at(5, 2)).submit("returned")
    s.fast_sent("a", Y, at=at(2), previous=1)
    assert s.packet_ids == [2, Y]


def test_a_missing_message_is_found_behind_a_later_one() -> None:
    """One that has waited for its client's CONNECT stands in the queue behind messages that came later."""
    s = opened(max_inflight=1).submit("slot", at=at(1)).submit("later", at=at(5)).submit("earlier", at=at(3))
    s.fast_sent("later", Y, at=at(5), previous=3)
    assert (s.packet_ids, s.queued) == ([2], ["later", "earlier"]), "the append of 3 has failed"
