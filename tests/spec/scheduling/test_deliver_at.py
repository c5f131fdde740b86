"""docs/guides/scheduling.md: a message with deliver-at waits aside until it is due."""

import pytest

from state.dead_letters.policy import Policy
from state.events import DeadlineReached, MessageReturned
from state.model import Outcome
from tests.scenarios.scenario import START_MS, Scenario, message
from tests.spec.fast_path.scenes import at, opened

HOUR_S = 3_600


def due(seconds: float, *others: tuple[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    return (("deliver-at", b"%d" % (START_MS + round(seconds * 1_000))), *others)


def scheduled(s: Scenario) -> list[str]:
    return [waiting.message_id for waiting in s.session.outbound.scheduled]


@pytest.mark.promise("scheduling")
def test_a_message_is_sent_when_it_is_due_and_not_before() -> None:
    s = Scenario().connect().submit("later", headers=due(10)).submit("now")
    assert s.sees() == ["CONNACK", "PUBLISH 1 now"]
    assert (scheduled(s), s.queued, s.ledger[-4:]) == (["later"], [], ["accepted", "scheduled", "accepted", "sent"])
    assert s.session.next_deadline_ms() == START_MS + 10_000
    assert s.after(9.999).sees() == []
    assert s.after(0.001).sees() == ["PUBLISH 2 later"]
    assert (scheduled(s), s.puback(2).outcomes["later"]) == ([], Outcome.DELIVERED)


def test_messages_become_due_in_the_order_of_their_times() -> None:
    s = Scenario().submit("c", headers=due(3)).submit("a", headers=due(1)).submit("b1", "b2", headers=due(2))
    assert s.later(5).connect().sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH 2 b1", "PUBLISH 3 b2", "PUBLISH 4 c"]


@pytest.mark.parametrize("seconds", [0, -100])
def test_a_time_that_has_come_is_no_wait(seconds: int) -> None:
    s = Scenario().connect().submit("a", headers=due(seconds))
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]


def test_a_message_for_an_offline_client_enters_the_queue_when_due() -> None:
    s = Scenario().connect().lose_connection().submit("later", headers=due(10)).submit("now").after(20)
    assert s.queued == ["now", "later"]
    assert s.connect().sees()[-2:] == ["PUBLISH 1 now", "PUBLISH 2 later"]


def test_the_end_of_the_session_ends_what_waits_aside() -> None:
    s = Scenario().connect(expiry_s=60).submit("later", headers=due(100)).lose_connection().after(60)
    assert s.outcomes == {"later": Outcome.SESSION_ENDED}
    assert s.dead_letters == [("later", Outcome.SESSION_ENDED)]
    assert s.session.is_empty


def test_a_session_that_ended_before_the_time_keeps_nothing() -> None:
    """The engine was away, and both times have come."""
    s = Scenario().connect(expiry_s=60).submit("later", headers=due(100)).lose_connection().later(200)
    s.handle(DeadlineReached())
    assert (s.outcomes, s.session.is_empty) == ({"later": Outcome.SESSION_ENDED}, True)


@pytest.mark.parametrize("how", ["clean start", "purge", "disconnect"])
def test_whatever_ends_a_session_ends_what_waits_aside(how: str) -> None:
    s = Scenario().connect().submit("later", headers=due(100))
    if how == "disconnect":
        s.disconnect(expiry_s=0)
    elif how == "purge":
        s.lose_connection().purge()
    else:
        s.connect(clean_start=True)
    assert s.outcomes == {"later": Outcome.SESSION_ENDED}


def test_the_queue_of_an_unknown_client_ends_without_what_waits_aside() -> None:
    s = Scenario().submit("now").submit("later", headers=due(10 * HOUR_S))
    assert not s.session.is_empty
    assert s.after(2 * HOUR_S).outcomes == {"now": Outcome.SESSION_ENDED}
    assert (scheduled(s), s.session.is_empty) == (["later"], False)
    assert s.after(8 * HOUR_S).queued == ["later"]
    assert s.after(2 * HOUR_S - 1).queued == ["later"], "the time of its queue begins when it is due"
    assert s.after(1).outcomes["later"] is Outcome.SESSION_ENDED
    assert s.session.is_empty


def test_expiration_counts_from_the_record_and_not_from_the_time() -> None:
    s = Scenario().submit("a", headers=due(10), expiration_ms=30_000, expires_at_ms=START_MS + 30_000).after(29.999)
    assert s.queued == ["a"]
    assert s.after(0.001).outcomes == {"a": Outcome.EXPIRED}


def test_one_that_expired_while_the_engine_was_away_is_not_sent() -> None:
    s = Scenario().connect().submit("a", headers=due(10), expiration_ms=30_000, expires_at_ms=START_MS + 30_000).later(30)
    s.handle(DeadlineReached())
    assert (s.sees(), s.outcomes) == (["CONNACK"], {"a": Outcome.EXPIRED})


@pytest.mark.parametrize(("ttl_ms", "ends_s"), [(5_000, 15), (0, 10)])
def test_the_time_to_live_of_a_policy_begins_when_it_is_due(ttl_ms: int, ends_s: int) -> None:
    s = Scenario(policy=Policy(message_ttl_ms=ttl_ms)).submit("a", headers=due(10)).after(ends_s - 0.001)
    assert s.outcomes == {}
    assert s.after(0.001).outcomes == {"a": Outcome.EXPIRED}


def test_a_time_to_live_of_0_lets_a_due_message_go_at_once() -> None:
    s = Scenario(policy=Policy(message_ttl_ms=0)).connect().submit("a", headers=due(10)).after(11)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]


def test_subscriptions_lower_the_qos_when_it_is_due() -> None:
    s = Scenario().connect().submit("a", qos=2, headers=due(10)).subscribe("t", 0).after(10)
    assert s.sees() == ["CONNACK", "PUBLISH qos0 a"]


@pytest.mark.parametrize("limits", [{"max_mqueue_len": 2}, {"max_mqueue_bytes": 150}])
def test_what_waits_aside_has_the_limits_of_the_queue_for_itself(limits: dict[str, int]) -> None:
    s = Scenario(**limits).submit("a", "b", headers=due(10)).submit("c").submit("d", headers=due(5))
    assert (scheduled(s), s.queued, s.outcomes) == (["a", "b"], ["c"], {"d": Outcome.MAXLEN})
    assert s.receipt("d").detail == "too many messages wait for their deliver-at"
    assert s.dead_letters == [("d", Outcome.MAXLEN)]


@pytest.mark.parametrize("limits", [{"max_mqueue_len": 0, "max_mqueue_bytes": 1}, {"max_mqueue_bytes": 1}])
def test_a_single_message_may_wait_aside_whatever_its_size(limits: dict[str, int]) -> None:
    assert scheduled(Scenario(**limits).submit("a", headers=due(10))) == ["a"]


def test_without_a_limit_of_messages_there_is_none_of_bytes() -> None:
    assert scheduled(Scenario(max_mqueue_len=0, max_mqueue_bytes=1).submit("a", "b", headers=due(10))) == ["a", "b"]


def test_a_refused_message_may_come_again() -> None:
    s = Scenario(max_mqueue_len=1).submit("a", "b", headers=due(10), explicit_id=True).after(10)
    s.submit("b", headers=due(20), explicit_id=True)
    assert [receipt.outcome for receipt in s.receipts] == [Outcome.MAXLEN]
    assert scheduled(s) == ["b"]


def test_a_repetition_of_one_that_waits_aside_is_recognised() -> None:
    s = Scenario().submit("a", "a", headers=due(10), explicit_id=True)
    assert (scheduled(s), s.ledger[-1]) == (["a"], "finished")


def test_a_newer_one_replaces_one_with_the_same_key_that_waits_aside() -> None:
    key = ("collapse-key", b"k")
    s = Scenario(max_mqueue_len=2).submit("k1", headers=due(10, key)).submit("a", headers=due(10)).submit("now", headers=(key,))
    assert (scheduled(s), s.queued) == (["k1", "a"], ["now"])
    s.submit("k2", headers=due(5, key))
    assert (scheduled(s), s.outcomes) == (["k2", "a"], {"k1": Outcome.REPLACED})
    assert s.receipt("k1").detail == "by k2, which has the same collapse-key"
    assert s.after(5).queued == ["k2"]
    assert s.outcomes["now"] is Outcome.REPLACED


def test_one_without_room_replaces_nothing_aside() -> None:
    key = ("collapse-key", b"k")
    s = Scenario(max_mqueue_bytes=50).submit("k1", headers=due(10, key)).submit("k2", headers=due(10, key), payload=b"x" * 99)
    assert (scheduled(s), s.outcomes) == (["k2"], {"k1": Outcome.REPLACED}), "one may have any size"
    s = Scenario(max_mqueue_bytes=300).submit("k1", headers=due(10, key)).submit("a", headers=due(10))
    s.submit("k2", headers=due(10, key), payload=b"x" * 300)
    assert (sorted(scheduled(s)), s.outcomes) == (["a", "k1"], {"k2": Outcome.MAXLEN})


def test_a_dead_letter_that_returns_is_not_delayed_again() -> None:
    s = Scenario()
    s.handle(MessageReturned(message=message("a", headers=due(10), accepted_ms=START_MS), return_id="r"))
    assert (scheduled(s), s.queued) == ([], ["a"])


def test_a_shared_message_goes_back_to_its_group_with_its_time() -> None:
    s = Scenario(routing=True).connect(expiry_s=60).subscribe("$share/g/t", 1, version=1)
    s.route("a", mark=1, entry=(1, 1), share="$share/g/t", headers=due(100)).lose_connection().after(60)
    (returned,) = (command for command in s.commands if type(command).__name__ == "ReturnToGroup")
    assert returned.message.headers == due(100)


def test_the_fast_path_is_open_while_something_waits_aside() -> None:
    s = opened().submit("later", at=at(1), headers=due(10))
    assert s.sees() == ["OPEN 1"]
    assert s.after(10).sees() == ["PUBLISH 2 later"]


def test_a_message_that_is_due_while_the_path_closes_waits_in_the_queue() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("b", at=at(2)).submit("later", at=at(3), headers=due(10))
    s.sees()
    assert s.after(10).queued == ["b", "later"]
    assert s.path_closed().puback(2).sees() == ["PUBLISH 3 b"]
