"""docs/guides/scheduling.md: session.max_send_rate, messages a second for a client."""

import pytest

from state.events import DeadlineReached
from state.model import Outcome
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings
from tests.scenarios.scenario import CLIENT, Scenario
from tests.spec.fast_path.scenes import FAST, at, opened

NAMES = [f"m{number}" for number in range(9)]


def count(s: Scenario) -> int:
    return sum(line.startswith("PUBLISH") for line in s.sees())


def test_a_device_that_comes_back_gets_a_second_of_messages_at_once() -> None:
    s = Scenario(max_send_rate=4).submit(*NAMES).connect()
    assert count(s) == 4
    assert s.session.next_deadline_ms() == s.now_ms + 500, "half a second of messages at a time"
    assert count(s.after(0.499)) == 0
    assert count(s.after(0.001)) == 2
    assert count(s.after(0.5)) == 2
    assert s.queued == ["m8"]
    assert s.session.next_deadline_ms() == s.now_ms + 250, "the last one need not wait for another"
    assert count(s.after(0.25)) == 1


def test_each_message_counts_whatever_its_qos() -> None:
    s = Scenario(max_send_rate=2).connect().submit("a").submit("b", qos=0).submit("c", qos=0).submit("d", qos=2)
    assert (count(s), s.queued) == (2, ["c", "d"])
    assert count(s.after(0.5)) == 1
    assert count(s.after(0.5)) == 1


def test_qos_0_without_a_slot_still_waits_for_the_rate() -> None:
    s = Scenario(max_send_rate=2, max_inflight=1).connect().submit("a", "b").submit("x", "y", qos=0)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH qos0 x"]
    assert s.queued == ["b", "y"]
    assert s.session.next_deadline_ms() == s.now_ms + 500
    assert s.after(0.5).sees() == ["PUBLISH qos0 y"]
    assert s.session.next_deadline_ms() == s.now_ms + 29_500, "b waits for the slot"


def test_qos_0_that_is_not_stored_is_dropped_beyond_the_rate() -> None:
    s = Scenario(max_send_rate=1, mqueue_store_qos0=False).connect().submit("a", "b", qos=0)
    assert s.outcomes == {"a": Outcome.SENT, "b": Outcome.OFFLINE}
    assert s.receipt("b").detail == "the client's max_send_rate is used up, and mqueue_store_qos0 is off"


def test_a_pause_saves_no_more_than_a_second() -> None:
    s = Scenario(max_send_rate=3).connect().submit("a").puback(1).after(1_000).submit(*NAMES)
    assert count(s) == 1 + 3


def test_resends_and_replays_do_not_count() -> None:
    s = Scenario(max_send_rate=2).connect().submit("a", "b").lose_connection().connect()
    assert count(s) == 4
    assert count(s.submit("c")) == 0
    assert count(s.after(0.5)) == 1


def test_a_backoff_that_ends_later_than_the_rate_counts() -> None:
    s = Scenario(max_send_rate=2).connect(version=5).submit("a", "b").puback(1, reason_code=0x97)
    assert s.session.next_deadline_ms() == s.now_ms + 1_000
    s.after(0.9).submit("c")
    assert count(s) == 2
    assert s.after(0.1).queued == []


def test_a_rate_that_ends_later_than_the_backoff_counts() -> None:
    s = Scenario(max_send_rate=1).connect(version=5).submit("a").puback(1, reason_code=0x97).submit("b")
    s.after(0.999)
    assert (count(s), s.queued) == (1, ["a", "b"])
    assert count(s.after(0.001)) == 1
    assert s.session.next_deadline_ms() == s.now_ms + 1_000


def test_the_fast_path_stays_closed() -> None:
    s = Scenario(max_send_rate=100).connect(capabilities=FAST).submit("a", at=at(0)).puback(1)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]


def test_a_rate_that_is_set_later_closes_the_path() -> None:
    s = opened()
    s.session = decode_session(encode_session(s.session), client_id=CLIENT, settings=SessionSettings(max_send_rate=5))
    s.settings = s.session.settings
    s.handle(DeadlineReached())
    assert s.sees() == ["CLOSE PATH"]
    assert s.submit("a", at=at(1)).path_closed().sees() == ["PUBLISH 2 a"]


@pytest.mark.parametrize(("rate", "sent_at_once"), [(1, 1), (5, 4), (100, 4), (0, 9)])
def test_another_rate_continues_with_what_is_left(rate: int, sent_at_once: int) -> None:
    s = Scenario(max_send_rate=5).connect().submit("a")
    s.settings = SessionSettings(max_send_rate=rate)
    s.session = decode_session(encode_session(s.session), client_id=CLIENT, settings=s.settings)
    s.sees()
    assert count(s.submit(*NAMES)) == sent_at_once
