"""docs/guides/scheduling.md: the newest message with a collapse key replaces what waits with it."""

from state.events import MessageReturned
from state.model import Outcome
from state.settings import Overflow
from tests.scenarios.scenario import START_MS, Scenario, message
from tests.spec.fast_path.scenes import FAST, Y, at, opened

K, L = (("collapse-key", b"k"),), (("collapse-key", b"l"),)


def test_a_newer_message_takes_the_place_of_the_one_that_waits() -> None:
    s = Scenario().submit("a").submit("k1", headers=K).submit("b").submit("l1", headers=L).submit("k2", "k3", headers=K)
    assert s.queued == ["a", "k3", "b", "l1"]
    assert s.outcomes == {"k1": Outcome.REPLACED, "k2": Outcome.REPLACED}
    assert s.receipt("k1").detail == "by k2, which has the same collapse-key"
    assert s.receipt("k1").destinations == ()
    assert s.dead_letters == []
    assert s.connect().sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH 2 k3", "PUBLISH 3 b", "PUBLISH 4 l1"]


def test_what_is_in_flight_is_not_replaced() -> None:
    s = Scenario(max_inflight=1).connect().submit("k1", headers=K).submit("a").submit("k2", headers=K)
    assert (s.packet_ids, s.queued, s.outcomes) == ([1], ["a", "k2"], {})
    assert s.puback(1, 2, 3).outcomes == dict.fromkeys(("k1", "a", "k2"), Outcome.DELIVERED)


def test_an_earlier_one_that_is_refused_never_follows_the_newest() -> None:
    s = Scenario(max_inflight=2).connect(version=5).submit("k1", "k2", headers=K)
    s.puback(1, reason_code=0x97)
    assert s.queued == ["k1"]
    s.submit("b").submit("k3", headers=K)
    assert s.queued == ["b", "k3"], "k2 is in flight, and may return"
    assert s.outcomes == {"k1": Outcome.REPLACED}
    s.puback(2, reason_code=0x97)
    assert (s.queued, s.outcomes.get("k2")) == (["k2", "b", "k3"], None), "without positions it might be a dead letter"
    s.submit("k4", headers=K)
    assert s.queued == ["k4", "b"], "nothing is in flight, and it replaces both"


def test_an_earlier_one_that_is_refused_ends_if_a_newer_one_waits() -> None:
    s = Scenario(max_inflight=1).connect(version=5).submit("k1", at=at(1), headers=K).submit("k2", at=at(2), headers=K)
    assert (s.queued, s.outcomes) == (["k2"], {})
    s.puback(1, reason_code=0x97)
    assert (s.queued, s.outcomes) == (["k2"], {"k1": Outcome.REPLACED})


def test_a_dead_letter_beside_a_newer_message_stays_for_ever() -> None:
    s = Scenario().submit("k1", at=at(1), headers=K)
    s.handle(MessageReturned(message=message("old", headers=K, accepted_ms=START_MS), return_id="r"))
    assert s.submit("a", at=at(2)).queued == ["k1", "old", "a"]
    assert s.submit("k2", at=at(3), headers=K).queued == ["k2", "a"]


def test_one_that_waits_again_after_a_refusal_is_replaced() -> None:
    s = Scenario().connect(version=5).submit("k1", headers=K).puback(1, reason_code=0x97).submit("k2", headers=K)
    assert (s.queued, s.outcomes) == (["k2"], {"k1": Outcome.REPLACED})


def test_a_message_without_a_wait_replaces_what_waits() -> None:
    s = Scenario(max_inflight=1).connect().submit("a").submit("k1", headers=K).submit("k2", qos=0, headers=K)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH qos0 k2"]
    assert (s.queued, s.outcomes) == ([], {"k2": Outcome.SENT, "k1": Outcome.REPLACED})


def test_a_message_that_is_not_accepted_replaces_nothing() -> None:
    s = Scenario(mqueue_store_qos0=False, max_mqueue_bytes=150, overflow=Overflow.REJECT).submit("k1", headers=K).submit("a")
    s.submit("k2", qos=0, headers=K).submit("k3", headers=K, expires_at_ms=START_MS).submit("k4", headers=K, payload=b"x" * 150)
    assert s.queued == ["k1", "a"]
    assert s.outcomes == {"k2": Outcome.OFFLINE, "k3": Outcome.EXPIRED, "k4": Outcome.MAXLEN}


def test_a_replaced_message_makes_room() -> None:
    s = Scenario(max_mqueue_len=2).submit("k1", headers=K).submit("a").submit("k2", headers=K)
    assert (s.queued, s.outcomes) == (["k2", "a"], {"k1": Outcome.REPLACED})


def test_a_dead_letter_that_returns_replaces_nothing() -> None:
    s = Scenario().submit("k1", headers=K)
    s.handle(MessageReturned(message=message("old", headers=K, accepted_ms=START_MS), return_id="r"))
    assert s.queued == ["k1", "old"]
    assert s.submit("k2", headers=K).queued == ["k2"]


def test_a_repetition_of_a_replaced_message_is_recognised() -> None:
    s = Scenario().submit("k1", "k2", headers=K, explicit_id=True).submit("k1", headers=K, explicit_id=True)
    assert (s.queued, s.outcomes) == (["k2"], {"k1": Outcome.REPLACED})


def test_routed_messages_replace_each_other() -> None:
    s = Scenario(routing=True, routed_receipts=True).connect().subscribe("t", 1, version=1).lose_connection()
    s.route("k1", mark=1, entry=(1, 1), headers=K).route("k2", mark=2, entry=(1, 1), share="$share/g/t", headers=K)
    assert (s.queued, s.outcomes) == (["k2"], {"k1": Outcome.REPLACED})


def test_what_a_gateway_may_be_sending_counts_as_in_flight() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("k1", at=at(2), headers=K).submit("b", at=at(3))
    s.submit("k2", at=at(4), headers=K)
    assert (s.queued, s.outcomes) == (["k1", "b", "k2"], {"first": Outcome.DELIVERED})
    assert "CLOSE PATH" in s.sees(), "it stays open while others wait, and would do so for ever"
    s.path_closed()
    assert (s.queued, s.outcomes["k1"]) == (["b", "k2"], Outcome.REPLACED)
    s.submit("k3", at=at(5), headers=K)
    assert (s.queued, s.outcomes["k2"]) == (["b", "k3"], Outcome.REPLACED)


def test_what_a_gateway_has_sent_meanwhile_is_not_replaced() -> None:
    s = opened(max_inflight=1).submit("a", at=at(1)).submit("k1", at=at(2), headers=K).submit("k2", at=at(3), headers=K)
    s.fast_sent("k1", Y, at=at(2), previous=1, headers=K).path_closed()
    assert (s.queued, s.packet_ids) == (["k2"], [2, Y])
    assert "k1" not in s.outcomes


def test_one_that_was_sent_by_the_fast_path_replaces_what_waits() -> None:
    s = Scenario().connect(version=5, capabilities=FAST).submit("k1", at=at(0), headers=K).puback(1, reason_code=0x97)
    assert s.queued == ["k1"]
    s.fast_sent("b", Y, at=at(1), previous=0).fast_sent("k2", Y + 1, at=at(2), previous=1, headers=K)
    assert (s.queued, s.packet_ids, s.outcomes) == ([], [Y, Y + 1], {"k1": Outcome.REPLACED})
