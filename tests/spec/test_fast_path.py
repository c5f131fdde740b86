"""docs/protocol.md, section 7, the session's side: grants, adoption of what a gateway has sent, and the fence."""

from dataclasses import replace
from typing import Any

import pytest

from state.commands import ClearRoute, OpenFastPath, RecordTransition, SendPublish, SetRoute, Transition, WithdrawPublish
from state.connection import PathState
from state.errors import SessionMisuse
from state.events import Capability, MessageReturned, PubAckReceived, PubRecReceived
from state.model import Outcome, Position, QoS, Subscription
from state.outbound.deduplication import DIGEST_BYTES, message_digest
from state.outbound.fast_path.grants import GRANT_AFTER, MAX_SUBSCRIPTION_BYTES, MAX_SUBSCRIPTIONS, MAX_UNREAD
from state.settings import Overflow, SessionSettings
from tests.scenarios.scenario import PARTITION, START_MS, Scenario, message

FAST = Capability.FAST_PATH
Y = 32_768
RETRY_S = 30


def at(offset: int, partition: int = 0) -> Position:
    return Position(partition, offset)


def opened(*, version: int = 4, **settings: Any) -> Scenario:
    """Connected, the path is open after offset 0, and nothing is under way."""
    s = Scenario(**settings).connect(version=version, capabilities=FAST).submit("first", at=at(0)).puback(1)
    assert s.sees() == ["CONNACK", "PUBLISH 1 first", "OPEN 0"]
    return s


def with_a_full_window(**settings: Any) -> Scenario:
    """The window's one slot is taken under packet id 2 by a message that was handled before the path opened."""
    s = Scenario(max_inflight=1, **settings).connect(capabilities=FAST).submit("first", at=at(0))
    s.sees()
    return s


def path_of(s: Scenario) -> PathState:
    assert s.session.connection is not None
    assert s.session.connection.fast_path is not None
    return s.session.connection.fast_path.state


def grant(s: Scenario) -> OpenFastPath:
    """The latest."""
    last: OpenFastPath = s.sent(OpenFastPath)[-1]
    return last


def positions(s: Scenario) -> list[tuple[str, Position | None]]:
    return [(publish.message_id, publish.position) for publish in s.sent(SendPublish)]


# --- grants -----------------------------------------------------------------------------------------------------------------


def test_the_first_message_of_a_client_is_slow_and_opens_the_path() -> None:
    s = Scenario().connect(capabilities=FAST)
    assert s.sees() == ["CONNACK"]
    assert s.submit("a", at=at(4)).sees() == ["PUBLISH 1 a", "OPEN 4"]
    assert s.last[-1] == grant(s), "the last command of its activation"


def test_a_client_whose_messages_are_known_has_its_path_open_as_soon_as_it_is_there() -> None:
    s = Scenario().submit("a", at=at(4)).connect(capabilities=FAST)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "OPEN 4"]


@pytest.mark.parametrize("reason", ["no capability", "switched off"])
def test_a_gateway_that_cannot_and_a_client_that_must_not_get_no_grant(reason: str) -> None:
    s = Scenario(fast_path=reason != "switched off").connect(capabilities=FAST if reason == "switched off" else 0)
    assert s.submit("a", at=at(4)).sees() == ["CONNACK", "PUBLISH 1 a"]
    assert s.sent(SetRoute) == []


def test_the_first_grant_says_all_that_a_gateway_needs() -> None:
    s = Scenario().connect(capabilities=FAST).subscribe("x/#", 1)
    s.submit("a", at=at(4), explicit_id=True)
    assert grant(s) == OpenFastPath(
        connection_id=1,
        partition=PARTITION,
        sequence=3,
        after=at(4),
        recent_ids=message_digest("a"),
        of_all=True,
        subscriptions=(Subscription(topic_filter="x/#", qos=QoS.AT_LEAST_ONCE),),
    )
    s.fast_sent("b", Y + 1, at=at(5), previous=4, explicit_id=True).lose_connection().connect(capabilities=FAST)
    assert grant(s) == replace_in(
        grant(s), after=at(5), adopted=-1, ids_in_use=(Y + 1,), last_id=Y + 1, recent_ids=b"".join(map(message_digest, "ab"))
    )


def replace_in(granted: OpenFastPath, **fields: Any) -> OpenFastPath:
    values = {name: getattr(granted, name) for name in granted.__struct_fields__}
    return OpenFastPath(**{**values, **fields})


def test_ids_that_are_kept_for_an_owed_answer_are_not_free() -> None:
    s = opened(delivery_limit=1).fast_sent("a", Y + 7, at=at(1), previous=0, qos=2)
    s.after(RETRY_S)
    assert s.outcomes["a"] is Outcome.DELIVERY_LIMIT
    assert s.submit("b", at=at(2)).sees()[-1] == "OPEN 2"
    assert grant(s).ids_in_use == (Y + 7,)


def test_a_grant_is_renewed_when_there_is_something_new_and_not_in_every_activation() -> None:
    s = opened()
    assert s.fast_sent("a", Y, at=at(1), previous=0).puback(Y).submit("a", at=at(1)).after(5).sees() == []
    assert s.submit("b", at=at(2)).sees() == ["PUBLISH 2 b", "OPEN 2"]
    assert (grant(s).adopted, grant(s).of_all, grant(s).subscriptions) == (1, False, None)


def test_many_fast_sends_renew_it_so_that_the_gateway_can_forget_them() -> None:
    s = opened()
    for offset in range(1, GRANT_AFTER + 1):
        s.fast_sent(f"m{offset}", Y + offset, at=at(offset), previous=offset - 1).puback(Y + offset)
        assert s.sees() == ([f"OPEN {offset}"] if offset == GRANT_AFTER else [])
    assert (grant(s).adopted, grant(s).last_id, grant(s).ids_in_use) == (GRANT_AFTER, Y + GRANT_AFTER, (Y + GRANT_AFTER,))
    assert s.fast_sent("next", Y, at=at(GRANT_AFTER + 1), previous=GRANT_AFTER).sees() == []


def test_changed_subscriptions_renew_it_and_the_same_once_more_do_not() -> None:
    s = opened()
    assert s.subscribe("x", 1).sees() == ["OPEN 0"]
    assert grant(s).subscriptions == (Subscription(topic_filter="x", qos=QoS.AT_LEAST_ONCE),)
    assert s.subscribe("x", 1).unsubscribe("y").sees() == []
    assert s.unsubscribe("x").sees() == ["OPEN 0"]
    assert grant(s).subscriptions == ()


def test_ids_of_messages_that_came_back_as_dead_letters_are_told() -> None:
    s = opened()
    s.handle(MessageReturned(message=message("back")))
    assert (grant(s).recent_ids, grant(s).of_all) == (message_digest("back"), False)
    s.handle(MessageReturned(message=message("back")))
    assert s.sees() == ["PUBLISH 2 back", "OPEN 0"], "the second is a repetition, and no news"


def test_all_remembered_ids_are_told_anew_when_the_gateway_may_have_more_than_the_session() -> None:
    s = opened(deduplication_window=2)
    told = []
    for offset, name in enumerate("abcd", start=1):
        s.submit(name, at=at(offset), explicit_id=True)
        told.append((grant(s).of_all, len(grant(s).recent_ids) // DIGEST_BYTES))
    assert told == [(False, 1), (False, 1), (True, 2), (False, 1)]


@pytest.mark.parametrize("filters", [MAX_SUBSCRIPTIONS + 1, 1])
def test_subscriptions_that_are_too_many_or_too_long_close_the_path(filters: int) -> None:
    s = opened()
    with s.micro_batch():
        for number in range(filters):
            s.subscribe(f"{number}/" + "x" * (0 if filters > 1 else MAX_SUBSCRIPTION_BYTES), 0)
    assert s.sees() == ["CLOSE PATH"]
    assert s.path_closed().submit("a", at=at(1)).sees() == ["PUBLISH 2 a"]
    with s.micro_batch():
        for number in range(filters):
            s.unsubscribe(f"{number}/" + "x" * (0 if filters > 1 else MAX_SUBSCRIPTION_BYTES))
    assert s.sees() == ["OPEN 1"]


def test_what_waits_in_the_queue_closes_the_path_once_and_it_opens_when_the_queue_is_empty() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    assert s.sees() == ["PUBLISH 2 a", "OPEN 1", "CLOSE PATH"]
    assert s.puback(2).puback(3).sees() == ["PUBLISH 3 b", "PUBLISH 4 c"], "an open path is not granted while it closes"
    assert s.path_closed().sees() == ["OPEN 3"]
    assert grant(s).of_all


def test_a_path_that_has_closed_stays_closed_while_messages_wait() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).path_closed()
    assert s.sees() == ["PUBLISH 2 a", "OPEN 1", "CLOSE PATH"]
    assert s.puback(2).sees() == ["PUBLISH 3 b", "OPEN 2"]


def test_a_device_that_asks_for_a_pause_gets_nothing_by_the_fast_path_either() -> None:
    s = opened().submit("a", at=at(1), expires_at_ms=START_MS + 100)
    s.sees()
    s.puback(2, reason_code=0x97)
    assert s.sees() == ["CLOSE PATH"]
    s.later(0.2).path_closed()
    assert (s.outcomes["a"], s.queued) == (Outcome.EXPIRED, [])
    assert s.sees() == [], "the queue is empty, but the wait is not over"
    assert s.later(1).submit("b", at=at(2)).sees() == ["PUBLISH 3 b", "OPEN 2"]


def test_an_answer_to_a_question_that_was_not_asked_means_nothing() -> None:
    s = opened().path_closed()
    assert (path_of(s), s.sees()) == (PathState.OPEN, [])
    s = opened(max_inflight=1).submit("a", "b", at=at(1)).path_closed(connection_id=7)
    assert path_of(s) is PathState.CLOSING
    assert Scenario().connect().path_closed().sees() == ["CONNACK"]


def test_the_path_can_be_switched_off_and_on_in_the_middle() -> None:
    s = opened()
    on, s.settings = s.settings, replace(s.settings, fast_path=False)
    s.session.settings = s.session.outbound.settings = s.settings
    assert s.fast_sent("a", Y, at=at(1), previous=0).sees() == ["CLOSE PATH"]
    assert s.path_closed().puback(Y).submit("b", at=at(2)).sees() == ["PUBLISH 2 b"]
    s.settings = on
    s.session.settings = s.session.outbound.settings = s.settings
    assert s.puback(2).sees() == ["OPEN 2"]
    assert s.outcomes == dict.fromkeys(("first", "a", "b"), Outcome.DELIVERED)


def test_routers_are_told_about_a_connection_once_and_when_it_is_over() -> None:
    s = opened(max_inflight=1).submit("a", "b", at=at(1)).path_closed().puback(2).puback(3)
    assert s.sent(SetRoute) == [SetRoute(connection_id=1, partition=PARTITION)]
    assert len(s.sent(ClearRoute)) == 0
    s.connect(capabilities=FAST)
    assert [type(c) for c in s.last if isinstance(c, SetRoute | ClearRoute)] == [ClearRoute, SetRoute]
    s.disconnect()
    assert len(s.sent(ClearRoute)) == 2
    assert Scenario().connect(capabilities=FAST).lose_connection().sent(ClearRoute) == []


def test_a_client_whose_messages_come_from_another_partition_has_its_path_closed_and_opened_anew() -> None:
    s = opened().fast_sent("a", Y, at=at(50), previous=0).submit("b", at=at(3, partition=1))
    assert s.sees() == ["PUBLISH 2 b", "CLOSE PATH"]
    s.path_closed()
    assert (grant(s).after, grant(s).adopted) == (at(3, partition=1), -1)
    s.fast_sent("c", Y + 1, at=at(4, partition=1), previous=3)
    with s.micro_batch():
        s.fast_sent("d", Y + 2, at=at(51), previous=50).submit("e", at=at(5, partition=1))
    assert grant(s).adopted == 4, "offsets of two partitions are not compared"


def test_messages_that_are_adopted_and_not_read_cannot_grow_without_limit() -> None:
    s = opened(max_inflight=0)
    with s.micro_batch():
        for offset in range(1, MAX_UNREAD + 2):
            s.fast_sent("m", 0, at=at(offset), previous=offset - 1, qos=0)
    assert s.sees() == ["CLOSE PATH"]
    assert s.submit("m", at=at(1)).path_closed().sees() == [f"OPEN {MAX_UNREAD + 1}"]


@pytest.mark.parametrize("what", ["refused", "duplicate", "expired"])
def test_whatever_becomes_of_a_message_it_was_handled(what: str) -> None:
    s = opened().submit("a", at=at(1), explicit_id=True)
    if what == "refused":
        s.refuse("b", "no topic", at=at(2))
    elif what == "duplicate":
        s.submit("a", at=at(2), explicit_id=True)
    else:
        s.submit("b", at=at(2), expires_at_ms=START_MS).path_closed()
    assert grant(s).after == at(2)


# --- adoption ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_gateway_has_sent_is_in_the_window_and_completes_like_any_other(qos: int) -> None:
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
def test_the_clock_of_a_gateway_makes_no_message_older_than_it_is_or_younger_than_now(sent_ms: int, first_sent_ms: int) -> None:
    s = opened().later(1)
    s.fast_sent("a", Y, at=at(1), previous=0, sent_ms=START_MS + sent_ms, accepted_ms=START_MS + 100).puback(Y)
    assert s.receipt("a").first_sent_ms == START_MS + first_sent_ms


def test_an_engine_that_was_away_waits_for_the_answer_before_it_sends_again() -> None:
    s = opened(version=5).later(600).fast_sent("a", Y, at=at(1), previous=0, sent_ms=START_MS, accepted_ms=START_MS)
    assert s.sees() == []
    assert s.puback(Y).outcomes["a"] is Outcome.DELIVERED


def test_one_behind_another_that_is_missing_was_never_written_and_is_ignored() -> None:
    """Else that one, which is read as a message later, would come after it; and if it is older than what was handled, never."""
    s = opened().fast_sent("b", Y + 1, at=at(2), previous=1)
    assert s.packet_ids == []
    s.lose_connection().submit("a", at=at(1)).submit("b", at=at(2)).connect(capabilities=FAST)
    assert s.sees() == ["CONNACK present", "PUBLISH 2 a", "PUBLISH 3 b", "OPEN 2"]


def test_one_that_the_session_has_sent_itself_keeps_its_place_under_the_gateways_id() -> None:
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
    assert s.puback(2, Y).sees() == ["PUBLISH 3 c"]


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


def test_after_the_loss_of_the_connection_it_still_counts_and_the_attempt_is_given_back() -> None:
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


def test_when_a_later_connection_was_accepted_it_does_not_count_and_its_message_is_new() -> None:
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


def test_each_publish_names_its_position_until_the_session_has_read_its_fast_sent() -> None:
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


def test_a_late_acknowledgement_from_before_the_packet_id_was_used_is_about_another_message() -> None:
    s = opened().fast_sent("a", Y, at=at(1), previous=0).puback(Y).connect(capabilities=FAST)
    s.fast_sent("b", Y, at=at(2), previous=1)
    s.puback(Y, connection_id=1)
    assert s.packet_ids == [Y]
    s.lose_connection().connect(capabilities=FAST).puback(Y, connection_id=2)
    assert s.outcomes["b"] is Outcome.DELIVERED


def test_a_session_is_not_forgotten_while_a_message_is_adopted_and_not_read() -> None:
    """Else it would be read as new."""
    s = Scenario().connect(expiry_s=0, clean_start=True, capabilities=FAST).submit("first", at=at(0))
    s.fast_sent("a", Y, at=at(1), previous=0).lose_connection()
    assert s.outcomes["a"] is Outcome.SESSION_ENDED
    assert not s.session.is_empty
    s.submit("a", at=at(1))
    assert s.session.is_empty
    assert s.connect(capabilities=FAST).sees()[-1] == "CONNACK", "forgotten: the next message is the first"
    assert s.submit("b", at=at(2)).sees() == ["PUBLISH 2 b", "OPEN 2"]


def test_a_gateway_that_uses_a_packet_id_twice_is_an_error_that_changes_nothing() -> None:
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


def test_a_fast_send_on_a_connection_that_had_no_grant_is_adopted_all_the_same() -> None:
    """Of a gateway that is wrong; what it has sent, it has sent."""
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


def test_an_adopted_message_that_is_refused_waits_among_the_others_in_its_old_place() -> None:
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
    assert s.lose_connection().connect().sees() == [
        "CONNACK present",
        "PUBLISH 2 a DUP",
        "PUBLISH 3 b DUP",
        f"PUBLISH {Y} c DUP",
    ]


def test_gateways_go_on_with_packet_ids_over_sessions_too() -> None:
    s = opened().fast_sent("a", Y + 5, at=at(1), previous=0).connect(clean_start=True, capabilities=FAST)
    assert (grant(s).last_id, grant(s).ids_in_use) == (Y + 5, ())


# --- the fence --------------------------------------------------------------------------------------------------------------


def test_what_a_gateway_may_be_sending_does_not_expire_before_the_path_is_closed() -> None:
    s = opened().submit("a", at=at(1), expires_at_ms=START_MS)
    assert (s.sees(), s.queued, s.outcomes.get("a")) == (["CLOSE PATH"], ["a"], None)
    assert s.path_closed().sees() == ["OPEN 1"]
    assert s.outcomes["a"] is Outcome.EXPIRED
    assert len(s.dead_letters) == 1


def test_and_it_does_not_if_it_was_sent() -> None:
    s = opened().submit("a", at=at(1), expires_at_ms=START_MS).fast_sent("a", Y, at=at(1), previous=0).path_closed()
    assert (s.packet_ids, s.queued, s.dead_letters) == ([Y], [], [])
    assert s.puback(Y).outcomes["a"] is Outcome.DELIVERED


def test_the_end_of_the_connection_ends_the_fence_too() -> None:
    s = opened().submit("a", at=at(1), expires_at_ms=START_MS).lose_connection()
    assert s.outcomes["a"] is Outcome.EXPIRED


def test_one_that_expires_in_the_queue_waits_too_and_nothing_passes_it() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2), expires_at_ms=START_MS + 1_000).submit("c", at=at(3))
    s.sees()
    assert s.later(2).puback(2).sees() == []
    assert (s.queued, s.outcomes.get("b")) == (["b", "c"], None)
    assert s.submit("x", qos=0, at=at(4)).sees() == []
    assert s.path_closed().sees() == ["PUBLISH 3 c", "PUBLISH qos0 x", "OPEN 4"]
    assert s.outcomes["b"] is Outcome.EXPIRED


def test_what_comes_too_late_together_with_the_end_of_the_path_holds_nothing_back() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2))
    s.sees()
    with s.micro_batch():
        s.submit("c", at=at(3), expires_at_ms=START_MS).path_closed().puback(2)
    assert (s.sees(), s.outcomes["c"]) == (["PUBLISH 3 b", "OPEN 3"], Outcome.EXPIRED)


def test_what_is_adopted_after_all_holds_nothing_back_either() -> None:
    s = opened()
    with s.micro_batch():
        s.submit("a", at=at(1), expires_at_ms=START_MS).fast_sent("a", Y, at=at(1), previous=0)
    assert (s.sees(), s.packet_ids) == (["OPEN 1"], [Y])


def test_a_connection_that_is_closed_because_it_stalls_ends_what_has_waited() -> None:
    s = opened(version=5, max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2), expires_at_ms=START_MS + 1_000)
    s.sees()
    assert s.later(RETRY_S).submit("c").sees() == ["CLOSE 0x83"]
    assert (s.queued, s.outcomes["b"]) == (["c"], Outcome.EXPIRED)


def test_a_path_that_closes_needs_no_timer_for_what_waits_for_it() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2), expires_at_ms=START_MS + 1_000)
    assert s.session.next_deadline_ms() is None
    s.path_closed()
    assert s.session.next_deadline_ms() == START_MS + 1_000


def test_what_no_gateway_can_be_sending_ends_at_once() -> None:
    s = opened().submit("returned", expires_at_ms=START_MS)
    assert s.outcomes["returned"] is Outcome.EXPIRED
    s = opened(max_inflight=1).submit("a", "b", at=at(0)).submit("c", at=at(0), expires_at_ms=START_MS + 1_000)
    s.later(2).puback(2)
    assert s.outcomes["c"] is Outcome.EXPIRED, "it is not behind what was granted"
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(1, 1), expires_at_ms=START_MS)
    assert s.outcomes["b"] is Outcome.EXPIRED, "from another partition"


def test_among_several_that_expire_only_those_wait_that_may_be_on_their_way() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2), expires_at_ms=START_MS + 1_000)
    s.submit("returned", expires_at_ms=START_MS + 1_000).later(2).puback(2)
    assert (s.queued, s.outcomes["returned"]) == (["b"], Outcome.EXPIRED)


@pytest.mark.parametrize(
    ("overflow", "left"), [(Overflow.DROP_OLDEST, ["c", "high"]), (Overflow.REJECT, ["b", "c"])], ids=lambda value: str(value)
)
def test_a_full_queue_grows_until_the_path_is_closed_and_is_cut_then(overflow: Overflow, left: list[str]) -> None:
    s = opened(max_inflight=1, max_mqueue_len=2, overflow=overflow).submit("a", at=at(1)).submit("b", at=at(2))
    s.submit("c", at=at(3)).submit("x", at=at(4), qos=0, expires_at_ms=START_MS)
    s.submit("high", at=at(5), priority=9)
    assert sorted(s.queued) == ["b", "c", "high", "x"]
    assert list(s.outcomes) == ["first"]
    s.path_closed()
    assert sorted(s.queued) == left
    assert s.outcomes["x"] is Outcome.EXPIRED
    assert [name for name, outcome in s.outcomes.items() if outcome is Outcome.MAXLEN] == sorted({"b", "c", "high"} - set(left))


def test_the_cut_keeps_one_message_whatever_its_size() -> None:
    s = opened(max_inflight=1, max_mqueue_bytes=10).submit("a", at=at(1)).submit("b", at=at(2), payload=b"x" * 50)
    s.submit("c", at=at(3), payload=b"x" * 50).submit("d", at=at(4))
    assert s.queued == ["b", "c", "d"]
    s.path_closed()
    assert s.queued == ["d"]
    s = opened(max_inflight=1, max_mqueue_bytes=10, overflow=Overflow.REJECT).submit("a", at=at(1)).submit("b", at=at(2))
    s.submit("c", at=at(3), payload=b"x" * 50).path_closed()
    assert s.queued == ["b"]


def test_freed_slots_are_filled_before_the_cut() -> None:
    s = opened(max_inflight=1, max_mqueue_len=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    with s.micro_batch():
        s.path_closed().puback(2)
    assert (s.packet_ids, s.queued) == ([3], ["c"])
    assert Outcome.MAXLEN not in s.outcomes.values()


def test_a_queue_that_was_never_over_its_limit_is_not_cut() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", "c", "d", at=at(2))
    s.settings = replace(s.settings, max_mqueue_len=1)
    s.session.settings = s.settings
    s.session.outbound.queue.max_len = 1
    s.path_closed()
    assert s.queued == ["b", "c", "d"]


def test_the_end_of_the_connection_cuts_the_queue_too() -> None:
    s = opened(max_inflight=1, max_mqueue_len=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    assert s.lose_connection().queued == ["c"]


def test_a_message_that_has_used_up_its_attempts_is_not_given_up_before_the_path_is_closed() -> None:
    s = opened(delivery_limit=1).submit("a", at=at(1))
    s.sees()
    assert s.after(RETRY_S).sees() == ["CLOSE PATH"]
    assert s.session.next_deadline_ms() is None
    assert s.path_closed().sees() == ["WITHDRAW (2,)", "OPEN 1"]
    assert s.outcomes["a"] is Outcome.DELIVERY_LIMIT
    s = opened(delivery_limit=1).submit("a", at=at(1)).after(RETRY_S).fast_sent("a", Y, at=at(1), previous=0).path_closed()
    assert (s.packet_ids, s.outcomes.get("a")) == ([Y], None)
    assert s.sent(WithdrawPublish) == []


def test_on_a_new_connection_it_is_given_up_in_place_of_its_replay() -> None:
    s = opened(delivery_limit=1).submit("a", at=at(1)).later(RETRY_S).lose_connection()
    assert s.outcomes.get("a") is None
    s.connect(capabilities=FAST)
    assert s.outcomes["a"] is Outcome.DELIVERY_LIMIT, "nothing was granted on it yet"


def test_nor_is_one_that_was_refused_and_waits_in_the_queue() -> None:
    s = opened(delivery_limit=1).submit("a", at=at(1)).puback(2, reason_code=0x80)
    assert (s.queued, s.outcomes.get("a")) == (["a"], None)
    s.path_closed()
    assert s.outcomes["a"] is Outcome.DELIVERY_LIMIT


def test_a_refusal_for_good_needs_no_fence_because_the_device_had_it_under_the_sessions_own_id() -> None:
    s = opened().submit("a", at=at(1)).puback(2, reason_code=0x87)
    assert s.outcomes["a"] is Outcome.REJECTED


def test_a_pubrel_is_repeated_whatever_the_path_does() -> None:
    s = opened(delivery_limit=1).submit("a", at=at(1), qos=2).pubrec(2)
    s.sees()
    assert s.after(RETRY_S).sees() == ["PUBREL 2"]


def test_what_the_client_cannot_take_is_judged_by_the_gateway_in_the_same_way_and_needs_no_fence() -> None:
    s = Scenario().connect(version=5, maximum_packet_size_bytes=50, capabilities=FAST).submit("first", at=at(0))
    s.submit("a", at=at(1), payload=b"x" * 100)
    assert s.outcomes["a"] is Outcome.TOO_LARGE


def test_a_clean_start_ends_the_session_and_its_path_at_once() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2))
    s.sees()
    assert s.connect(clean_start=True, capabilities=FAST).sees() == ["CLOSE 0x8E", "CONNACK", "OPEN 2"]
    assert (s.outcomes["a"], s.outcomes["b"]) == (Outcome.SESSION_ENDED, Outcome.SESSION_ENDED)
    s.fast_sent("late", Y, at=at(3), previous=2, connection_id=1)
    assert s.packet_ids == []


def test_settings_of_today_are_those_of_a_session() -> None:
    assert SessionSettings().fast_path, "it is on unless somebody switches it off"
