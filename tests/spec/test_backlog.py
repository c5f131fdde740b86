"""The limits of the queue (state/outbound/backlog.py): the large one is for a client that keeps up, the small ones for others."""

from typing import Any

import pytest

from state.commands import ClearThrottle, SetThrottle
from state.model import Outcome
from state.settings import Overflow
from tests.scenarios.scenario import Scenario
from tests.spec.fast_path.scenes import at, opened

PROGRESS_S = 30
CONFIRMED_S = 5


def busy(**settings: Any) -> Scenario:
    """A connected client with a full window, whose small limit is two messages."""
    defaults: dict[str, Any] = {"max_inflight": 1, "max_mqueue_len": 2, "max_mqueue_bytes": 20, "max_backlog_bytes": 1_000}
    return Scenario(**defaults | settings).connect().submit("on-the-wire")


def dropped(s: Scenario) -> list[str]:
    return [name for name, outcome in s.outcomes.items() if outcome is Outcome.MAXLEN]


def test_nothing_is_dropped_for_a_client_that_acknowledges() -> None:
    s = busy().submit(*"abcdef")
    for packet_id in range(1, 8):
        s.after(PROGRESS_S - 1).puback(packet_id)
    assert (dropped(s), s.queued) == ([], [])


def test_the_limit_of_a_client_that_keeps_up_is_of_bytes() -> None:
    s = busy(max_backlog_bytes=30).submit("a", "b", "c", payload=b"123456789")
    assert (dropped(s), s.queued) == ([], ["a", "b", "c"])
    assert dropped(s.submit("d", payload=b"1")) == ["a"]


def test_without_a_limit_for_such_clients_the_small_one_holds() -> None:
    assert dropped(busy(max_backlog_bytes=0).submit("a", "b", "c")) == ["a"]


def test_the_small_limit_holds_for_a_client_that_is_away() -> None:
    assert dropped(Scenario(max_mqueue_len=2, max_backlog_bytes=1_000).submit("a", "b", "c")) == ["a"]


def test_no_limit_of_the_queue_is_none_for_a_client_that_keeps_up() -> None:
    assert dropped(busy(max_mqueue_len=0, max_backlog_bytes=1).submit(*"abcdef", payload=b"x" * 100)) == []
    assert dropped(busy(max_mqueue_bytes=0, max_backlog_bytes=1).submit(*"abcdef", payload=b"x" * 100)) == []


@pytest.mark.parametrize(("overflow", "kept"), [(Overflow.DROP_OLDEST, ["c", "d"]), (Overflow.REJECT, ["a", "b"])])
def test_a_client_that_stands_still_has_the_small_limit(overflow: Overflow, kept: list[str]) -> None:
    s = busy(overflow=overflow, retry_interval_ms=3_600_000).submit(*"abcd").after(PROGRESS_S)
    assert s.queued == ["a", "b", "c", "d"], "its acknowledgements may be in the log behind what was read"
    assert s.session.keeps_up
    s.after(CONFIRMED_S)
    assert not s.session.keeps_up
    assert s.queued == kept
    assert "stood still" in s.receipt(dropped(s)[0]).detail


def test_an_acknowledgement_between_the_two_looks_is_progress() -> None:
    s = busy(retry_interval_ms=3_600_000).submit(*"abcd").after(PROGRESS_S).puback(1).after(PROGRESS_S - 1)
    assert (dropped(s), s.queued) == ([], ["b", "c", "d"])


def test_a_client_that_goes_away_has_the_time_to_come_back() -> None:
    s = busy().submit(*"abcd").lose_connection()
    assert s.after(PROGRESS_S).queued == ["a", "b", "c", "d"]
    assert s.connect().after(PROGRESS_S).puback(1).queued == ["b", "c", "d"]
    s.lose_connection().after(PROGRESS_S).after(CONFIRMED_S)
    assert s.queued == ["c", "d"]


def test_a_client_that_stood_still_and_acknowledges_keeps_up_again() -> None:
    s = busy(retry_interval_ms=3_600_000).submit(*"abcd").after(PROGRESS_S).after(CONFIRMED_S)
    s.puback(1).submit(*"efgh")
    assert s.queued == ["d", "e", "f", "g", "h"]


def test_backends_wait_for_a_client_that_keeps_up_at_an_eighth() -> None:
    s = busy().submit("a", payload=b"x" * 98)
    assert not s.sent(SetThrottle)
    s.submit("b")
    assert [throttle.is_progressing for throttle in s.sent(SetThrottle)] == [True]
    s.puback(1)
    assert len(s.sent(ClearThrottle)) == 1


def test_backends_are_refused_when_the_client_stands_still() -> None:
    s = busy(retry_interval_ms=3_600_000, max_mqueue_bytes=150).submit("a", payload=b"x" * 130)
    began_ms = s.now_ms
    s.after(PROGRESS_S).after(CONFIRMED_S)
    told = [(throttle.is_progressing, throttle.since_ms) for throttle in s.sent(SetThrottle)]
    assert told == [(True, began_ms), (False, began_ms)]
    s.puback(1)
    assert len(s.sent(ClearThrottle)) == 1


def test_what_a_gateway_may_be_sending_is_dropped_when_it_has_stopped() -> None:
    s = opened(max_inflight=1, max_mqueue_len=1, max_backlog_bytes=1_000, retry_interval_ms=3_600_000)
    s.submit("a", at=at(1)).submit("b", at=at(2)).submit("c", at=at(3)).submit("d", at=at(4))
    s.sees()
    s.after(PROGRESS_S).after(CONFIRMED_S)
    assert (s.sees(), s.queued) == (["CLOSE PATH"], ["b", "c", "d"])
    assert (s.path_closed().queued, dropped(s)) == (["d"], ["b", "c"])


def test_a_queue_within_the_small_limit_keeps_the_path_open() -> None:
    s = opened(max_inflight=1, max_mqueue_len=2, max_backlog_bytes=1_000, retry_interval_ms=3_600_000)
    s.submit("a", at=at(1)).submit("b", at=at(2))
    s.sees()
    assert (s.after(PROGRESS_S).after(CONFIRMED_S).sees(), s.queued) == ([], ["b"])


def test_messages_read_behind_the_end_of_the_connection_find_the_large_limit() -> None:
    """They may have been sent while the client was connected."""
    s = Scenario(max_inflight=1, max_mqueue_len=2, max_backlog_bytes=1_000).connect()
    with s.micro_batch():
        s.lose_connection().submit(*"abcd")
    assert (dropped(s), s.queued) == ([], ["a", "b", "c", "d"])
    assert s.after(PROGRESS_S + CONFIRMED_S).queued == ["c", "d"]


def test_a_client_that_is_away_for_longer_has_the_small_limit_at_once() -> None:
    s = Scenario(max_inflight=1, max_mqueue_len=2, max_backlog_bytes=1_000).connect().lose_connection()
    assert s.later(PROGRESS_S - 1).submit(*"abcd").queued == ["a", "b", "c", "d"]
    s = Scenario(max_inflight=1, max_mqueue_len=2, max_backlog_bytes=1_000).connect().lose_connection()
    assert s.later(PROGRESS_S).submit(*"abcd").queued == ["c", "d"]


def test_the_queue_of_an_ended_session_has_the_small_limit() -> None:
    s = busy().lose_connection().connect(clean_start=True, expiry_s=0).lose_connection()
    with s.micro_batch():
        s.submit(*"abcd")
    assert s.queued == ["c", "d"]


def test_an_acknowledgement_that_changes_nothing_is_no_progress() -> None:
    s = busy(retry_interval_ms=3_600_000).submit(*"abcd").later(PROGRESS_S - 1).puback(99)
    assert s.after(CONFIRMED_S + 2).queued == ["c", "d"]


def test_a_repeated_pubrec_is_no_progress_and_the_first_one_is() -> None:
    for repeated, still in ((False, False), (True, True)):
        s = busy(retry_interval_ms=3_600_000, await_rel_timeout_ms=86_400_000)
        s.puback(1).submit("two", qos=2).submit(*"abcd")
        if repeated:
            s.pubrec(2)
        s.later(PROGRESS_S - 1).pubrec(2)
        assert (len(s.after(PROGRESS_S - 1).queued) == 2) is still


@pytest.mark.parametrize(("reason_code", "still"), [(0x97, True), (0x99, False)])
def test_a_refusal_is_progress_if_it_ends_the_message(reason_code: int, still: bool) -> None:
    s = Scenario(max_inflight=1, max_mqueue_len=2, max_mqueue_bytes=20, max_backlog_bytes=1_000, retry_interval_ms=3_600_000)
    s.connect(version=5).submit("on-the-wire").submit(*"abcd").later(PROGRESS_S - 1).puback(1, reason_code=reason_code)
    assert (len(s.after(CONFIRMED_S + 2).queued) <= 2) is still
