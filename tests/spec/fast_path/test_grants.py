"""protocol.md, section 7, the session's side: when a gateway may send, and what it is told."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from state.commands import ClearRoute, CloseFastPath, OpenFastPath, SetRoute
from state.connection import PathState
from state.events import MessageReturned
from state.model import Outcome, QoS, Subscription
from state.outbound.deduplication import DIGEST_BYTES, message_digest
from state.outbound.fast_path.grants import GRANT_AFTER, MAX_SUBSCRIPTION_BYTES, MAX_SUBSCRIPTIONS, MAX_UNREAD
from tests.scenarios.scenario import PARTITION, START_MS, Scenario, message
from tests.spec.fast_path.scenes import FAST, RETRY_S, Y, at, grant, opened, path_of


def test_the_first_message_of_a_client_is_slow_and_opens_the_path() -> None:
    s = Scenario().connect(capabilities=FAST)
    assert s.sees() == ["CONNACK"]
    assert s.submit("a", at=at(4)).sees() == ["PUBLISH 1 a", "OPEN 4"]
    assert s.last[-1] == grant(s), "the last command of its activation"


def test_a_known_client_has_its_path_open_as_soon_as_it_connects() -> None:
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
        is_snapshot=True,
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


def test_a_grant_is_renewed_only_when_there_is_something_new() -> None:
    s = opened()
    assert s.fast_sent("a", Y, at=at(1), previous=0).puback(Y).submit("a", at=at(1)).after(5).sees() == []
    assert s.submit("b", at=at(2)).sees() == ["PUBLISH 2 b", "OPEN 2"]
    assert (grant(s).adopted, grant(s).is_snapshot, grant(s).subscriptions) == (1, False, None)


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
    assert (grant(s).recent_ids, grant(s).is_snapshot) == (message_digest("back"), False)
    s.handle(MessageReturned(message=message("back")))
    assert s.sees() == ["PUBLISH 2 back", "OPEN 0"], "the second is a repetition, and no news"


def test_all_ids_are_sent_anew_when_the_gateway_may_have_more() -> None:
    s = opened(deduplication_window=2)
    told = []
    for offset, name in enumerate("abcd", start=1):
        s.submit(name, at=at(offset), explicit_id=True)
        told.append((grant(s).is_snapshot, len(grant(s).recent_ids) // DIGEST_BYTES))
    assert told == [(False, 1), (False, 1), (True, 2), (False, 1)]


@pytest.mark.parametrize("filters", [MAX_SUBSCRIPTIONS + 1, 1])
def test_subscriptions_that_are_too_many_or_too_long_close_the_path(filters: int) -> None:
    s = opened()
    with s.micro_batch():
        for number in range(filters):
            s.subscribe(f"{number}/" + "x" * (0 if filters > 1 else MAX_SUBSCRIPTION_BYTES), 0)
    assert s.sees() == ["CLOSE PATH"]
    assert s.sent(CloseFastPath) == [CloseFastPath(connection_id=1, partition=PARTITION, sequence=4)]
    assert s.path_closed().submit("a", at=at(1)).sees() == ["PUBLISH 2 a"]
    with s.micro_batch():
        for number in range(filters):
            s.unsubscribe(f"{number}/" + "x" * (0 if filters > 1 else MAX_SUBSCRIPTION_BYTES))
    assert s.sees() == ["OPEN 1"]


def test_the_gateway_may_send_the_newest_messages_of_the_queue() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(4))
    assert s.sees() == ["PUBLISH 2 a", "OPEN 1", "OPEN 1", "OPEN 1"]
    assert (grant(s).after, grant(s).queued_to) == (at(1), 4)
    assert s.puback(2).sees() == ["PUBLISH 3 b", "OPEN 2"], "what the session sends breaks the chain of the gateway"
    s.fast_sent("c", Y, at=at(4), previous=2)
    assert (s.sees(), s.queued, s.packet_ids) == (["OPEN 4"], [], [3, Y])
    assert grant(s).queued_to == -1
    assert s.puback(3, Y).submit("d", at=at(5)).sees() == ["PUBLISH 4 d", "OPEN 5"]


def test_what_waits_may_be_sent_by_a_later_connection_too() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).lose_connection()
    s.submit("c", at=at(3)).connect(clean_start=False, capabilities=FAST)
    assert s.sees()[-1] == "OPEN 1"
    assert (grant(s).after, grant(s).queued_to, grant(s).is_snapshot) == (at(1), 3, True)


@pytest.mark.parametrize(
    "wait",
    [
        lambda s: s.submit("b", at=at(2)).submit("x", at=at(3), qos=0),
        lambda s: s.submit("b", at=at(2)).submit("x", at=at(3), priority=5).puback(2),
        lambda s: s.submit("b"),
        lambda s: s.submit("b", at=at(2, 1)),
        lambda s: s.submit("b", at=at(2, 1)).submit("x", at=at(3)),
        lambda s: s.fast_sent("x", Y, at=at(2), previous=1).puback(2, reason_code=0x83),
    ],
    ids=["QoS 0 passed", "a priority passed", "no position", "other partition", "two partitions", "sent before"],
)
def test_the_path_closes_while_other_messages_wait(wait: Callable[[Scenario], Scenario]) -> None:
    """The gateway would send a message again that has left the queue, or one before another."""
    s = opened(version=5, max_inflight=1).submit("a", at=at(1))
    s.sees()
    wait(s)
    assert s.queued
    assert s.sees()[-1] == "CLOSE PATH"


def test_the_path_closes_once_and_opens_when_the_queue_is_empty() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b").submit("c")
    assert s.sees() == ["PUBLISH 2 a", "OPEN 1", "CLOSE PATH"]
    assert s.puback(2).puback(3).sees() == ["PUBLISH 3 b", "PUBLISH 4 c"], "an open path is not granted while it closes"
    assert s.path_closed().sees() == ["OPEN 1"]
    assert grant(s).is_snapshot


def test_a_path_that_has_closed_stays_closed_while_messages_wait() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b").path_closed()
    assert s.sees() == ["PUBLISH 2 a", "OPEN 1", "CLOSE PATH"]
    assert s.puback(2).sees() == ["PUBLISH 3 b", "OPEN 1"]


def test_a_queue_over_its_limit_closes_the_path() -> None:
    s = opened(max_inflight=1, max_mqueue_len=2)
    for offset, name in enumerate("abcd", start=1):
        s.submit(name, at=at(offset))
    assert s.sees()[-1] == "CLOSE PATH"
    assert s.path_closed().sees() == ["OPEN 2"]
    assert (s.queued, s.outcomes["b"]) == (["c", "d"], Outcome.MAXLEN)


def test_a_device_that_asks_for_a_pause_has_no_fast_path() -> None:
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


def test_messages_from_another_partition_open_the_path_anew() -> None:
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
