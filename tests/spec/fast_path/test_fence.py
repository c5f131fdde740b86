"""protocol.md, section 7, the session's side: what may be on its way is not dropped."""

from dataclasses import replace

import pytest

from state.commands import WithdrawPublish
from state.connection import PathState
from state.model import Outcome
from state.settings import Overflow, RetryMqtt5, SessionSettings
from tests.scenarios.scenario import START_MS, Scenario
from tests.spec.fast_path.scenes import FAST, RETRY_S, Y, at, opened, path_of


def test_what_may_be_on_its_way_does_not_expire_before_the_path_closes() -> None:
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
    assert s.later(2).puback(2).sees() == ["CLOSE PATH"]
    assert (s.queued, s.outcomes.get("b")) == (["b", "c"], None)
    assert s.submit("x", qos=0, at=at(4)).sees() == []
    assert s.path_closed().sees() == ["PUBLISH 3 c", "PUBLISH qos0 x", "OPEN 4"]
    assert s.outcomes["b"] is Outcome.EXPIRED


def test_a_message_without_time_does_not_pass_one_behind_the_fence() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2), expires_at_ms=START_MS + 1_000).later(2).puback(2)
    s.submit("x", qos=0, at=at(3)).sees()
    assert s.submit("y", qos=0, expiration_ms=0, expires_at_ms=s.now_ms).sees() == []
    assert (s.queued, s.outcomes["y"]) == (["b", "x"], Outcome.EXPIRED)


def test_a_late_message_with_the_end_of_the_path_holds_nothing_back() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2), expires_at_ms=START_MS + 1_000).later(2).puback(2)
    assert s.sees()[-1] == "CLOSE PATH"
    with s.micro_batch():
        s.submit("c", at=at(3), expires_at_ms=START_MS).submit("d", at=at(4)).path_closed()
    assert (s.sees(), s.outcomes["c"]) == (["PUBLISH 3 d", "OPEN 4"], Outcome.EXPIRED)


def test_what_is_adopted_after_all_holds_nothing_back_either() -> None:
    s = opened()
    with s.micro_batch():
        s.submit("a", at=at(1), expires_at_ms=START_MS).fast_sent("a", Y, at=at(1), previous=0)
    assert (s.sees(), s.packet_ids) == (["OPEN 1"], [Y])


def test_a_connection_that_stalls_is_closed_when_its_path_is() -> None:
    s = opened(version=5, max_inflight=1, retry_mqtt5=RetryMqtt5.RECONNECT).submit("a", at=at(1))
    s.submit("b", at=at(2), expires_at_ms=START_MS + 1_000)
    s.sees()
    assert s.later(RETRY_S).submit("c").sees() == ["CLOSE PATH"]
    assert (s.queued, s.outcomes.get("b")) == (["b", "c"], None)
    assert s.path_closed().sees() == ["CLOSE 0x83"]
    assert (s.queued, s.outcomes["b"]) == (["c"], Outcome.EXPIRED)


def test_and_what_its_gateway_sends_before_that_has_been_sent() -> None:
    s = opened(version=5, mqueue_store_qos0=False, retry_mqtt5=RetryMqtt5.RECONNECT).submit("a", at=at(1))
    s.sees()
    assert s.after(RETRY_S).sees() == ["CLOSE PATH"]
    s.fast_sent("b", 0, qos=0, at=at(2), previous=1)
    assert s.path_closed().sees() == ["CLOSE 0x83"]
    assert s.submit("b", qos=0, at=at(2)).outcomes == {"first": Outcome.DELIVERED, "b": Outcome.SENT}


def test_a_path_that_closes_needs_no_timer_for_what_waits_for_it() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2), expires_at_ms=START_MS + 1_000)
    assert s.session.next_deadline_ms() == START_MS + 1_000
    s.later(2).submit("c").sees()
    assert (path_of(s), s.session.next_deadline_ms()) == (PathState.CLOSING, None)


def test_what_no_gateway_can_be_sending_ends_at_once() -> None:
    s = opened().submit("returned", expires_at_ms=START_MS)
    assert s.outcomes["returned"] is Outcome.EXPIRED
    s = opened(max_inflight=1).submit("a", "b", at=at(0)).submit("c", at=at(0), expires_at_ms=START_MS + 1_000)
    s.later(2).puback(2)
    assert s.outcomes["c"] is Outcome.EXPIRED, "it is not behind what was granted"
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(1, 1), expires_at_ms=START_MS)
    assert s.outcomes["b"] is Outcome.EXPIRED, "from another partition"


def test_of_expired_messages_only_those_on_their_way_wait() -> None:
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
    if overflow is Overflow.DROP_OLDEST:
        assert s.receipt("b").detail == "dropped from a full queue when the fast path was closed"


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
    s.session.settings = s.session.outbound.settings = s.settings
    s.path_closed()
    assert s.queued == ["b", "c", "d"]


def test_the_end_of_the_connection_cuts_the_queue_too() -> None:
    s = opened(max_inflight=1, max_mqueue_len=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3))
    assert s.lose_connection().queued == ["c"]


def test_the_last_attempt_is_given_up_after_the_path_is_closed() -> None:
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


def test_a_refusal_for_good_needs_no_fence() -> None:
    s = opened().submit("a", at=at(1)).puback(2, reason_code=0x87)
    assert s.outcomes["a"] is Outcome.REJECTED


def test_a_pubrel_is_repeated_whatever_the_path_does() -> None:
    s = opened(delivery_limit=1).submit("a", at=at(1), qos=2).pubrec(2)
    s.sees()
    assert s.after(RETRY_S).sees() == ["PUBREL 2"]


def test_what_the_client_cannot_take_needs_no_fence() -> None:
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
