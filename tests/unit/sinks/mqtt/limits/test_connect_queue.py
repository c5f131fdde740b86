"""sinks.mqtt.limits.connect_queue"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.limits.adaptive_rate import FairShare
from sinks.mqtt.limits.connect_queue import ConnectQueue, Turn
from sinks.mqtt.limits.settings import DeviceLimits

ANSWER_TIMEOUT_MS = 30_000


def queue(**limits: Any) -> ConnectQueue[str]:
    return ConnectQueue(DeviceLimits(**limits), answer_timeout_ms=ANSWER_TIMEOUT_MS, now_ms=0)


def all_next(connects: ConnectQueue[str], now_ms: int) -> list[str]:
    return list(iter(lambda: connects.next(now_ms), None))  # type: ignore[arg-type]


def test_who_comes_alone_does_not_wait() -> None:
    connects = queue(max_connect_rate=10)
    assert [connects.ask(f"c{second}", "a", second * 1_000) for second in range(20)] == [Turn.NOW] * 20
    assert connects.next_ms(0) is None


def test_too_many_at_once_wait_for_the_rate() -> None:
    connects = queue(max_connect_rate=10)
    assert [connects.ask(f"c{number}", None, 0) for number in range(4)] == [Turn.NOW, *[Turn.LATER] * 3]
    assert all_next(connects, 0) == []
    next_ms = connects.next_ms(0)
    assert next_ms is not None
    assert 100 <= next_ms <= 101
    assert all_next(connects, next_ms) == ["c1"]
    assert all_next(connects, 1_000) == ["c2"]
    assert connects.ask("late", None, 1_000) is Turn.LATER, "nobody overtakes those that wait"
    assert all_next(connects, 2_000) == ["c3"]
    assert all_next(connects, 3_000) == ["late"]
    assert connects.next_ms(3_000) is None


def test_while_devices_wait_connects_come_in_an_eighth_as_fast() -> None:
    limits = DeviceLimits(max_connect_rate=1_000, max_delay_ms=5)
    fair = FairShare(limits)
    connects: ConnectQueue[int] = ConnectQueue(limits, answer_timeout_ms=ANSWER_TIMEOUT_MS, now_ms=0, fair=fair)

    def taken_in_a_second(from_ms: int) -> int:
        for number in range(2_000):
            connects.ask(from_ms + number, None, from_ms)
        taken = sum(1 for ms in range(from_ms, from_ms + 1_000) for _ in iter(lambda: connects.next(ms), None))  # noqa: B023
        for number in range(2_000):
            connects.leave(from_ms + number)
        return taken

    for _ in range(30):
        fair.handed_over(1)
        fair.waited(1.0)
        fair.beat(6.0)
    assert 115 < taken_in_a_second(10_000) <= 140
    for _ in range(600):
        fair.beat(0.0)
    assert 900 < taken_in_a_second(20_000) <= 1_100


def test_hosts_take_turns() -> None:
    connects = queue(max_connect_rate=10)
    connects.ask("now", "flood", 0)
    for number in range(50):
        assert connects.ask(f"flood-{number}", "flood", 0) is Turn.LATER
    assert connects.ask("good", "good", 0) is Turn.LATER
    assert [connects.next(1_000 * second) for second in range(1, 5)] == ["flood-0", "good", "flood-1", "flood-2"]


def test_a_host_may_have_as_many_waiting_as_there_is_room_left() -> None:
    connects = queue(max_connect_rate=10, max_waiting_connects=8)
    connects.ask("now", "flood", 0)
    turns = [connects.ask(f"flood-{number}", "flood", 0) for number in range(6)]
    assert turns == [Turn.LATER] * 4 + [Turn.NEVER] * 2
    assert [connects.ask(f"second-{number}", "second", 0) for number in range(3)] == [Turn.LATER, Turn.LATER, Turn.NEVER]
    assert connects.ask("good", "good", 0) is Turn.LATER
    assert connects.ask("no host", None, 0) is Turn.LATER
    assert connects.ask("full", "another", 0) is Turn.NEVER


def test_who_leaves_is_forgotten_and_makes_room() -> None:
    connects = queue(max_connect_rate=10, max_waiting_connects=2)
    connects.ask("now", "a", 0)
    assert connects.ask("first", "b", 0) is Turn.LATER
    assert connects.ask("second", "b", 0) is Turn.NEVER
    connects.leave("first")
    connects.leave("first")
    assert connects.ask("third", "b", 0) is Turn.LATER
    assert all_next(connects, 1_000) == ["third"]


def test_others_wait_while_the_engine_does_not_answer() -> None:
    connects = queue(max_unanswered_connects=2)
    for connection_id in (1, 2):
        assert connects.ask(f"c{connection_id}", "a", 0) is Turn.NOW
        connects.told(connection_id, 0)
    assert connects.ask("third", "a", 0) is Turn.LATER
    assert all_next(connects, 29_000) == []
    assert connects.next_ms(29_000) == ANSWER_TIMEOUT_MS
    assert connects.answered(2)
    assert not connects.answered(2)
    assert all_next(connects, 29_000) == ["third"]


def test_a_connect_of_a_closed_socket_counts_until_answered_or_old() -> None:
    """Else devices that give up and come back would make the engine hear of each attempt."""
    connects = queue(max_unanswered_connects=1)
    assert connects.ask("first", "a", 0) is Turn.NOW
    connects.told(1, 0)
    connects.leave("first")
    assert connects.ask("again", "a", 10_000) is Turn.LATER
    connects.leave("again")
    assert connects.ask("and again", "a", 20_000) is Turn.LATER
    assert all_next(connects, ANSWER_TIMEOUT_MS) == ["and again"]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abcd"), st.sampled_from(("ask", "leave", "answer"))), max_size=200)
)
def test_each_has_one_turn_and_never_more_wait_than_allowed(steps: list[tuple[int, str, str]]) -> None:
    connects = queue(max_connect_rate=20, max_waiting_connects=5, max_unanswered_connects=3)
    now_ms, waiting, gone, turns, unanswered = 0, set[str](), set[str](), list[str](), list[int]()

    def has_turn(name: str) -> None:
        turns.append(name)
        unanswered.append(len(turns))
        connects.told(len(turns), now_ms)

    for number, (gap_ms, host, step) in enumerate(steps):
        now_ms += gap_ms
        if step == "leave" and waiting:
            name = min(waiting)
            waiting.discard(name)
            gone.add(name)
            connects.leave(name)
        elif step == "answer" and unanswered:
            connects.answered(unanswered.pop(0))
        elif step == "ask":
            name = f"{host}{number}"
            turn = connects.ask(name, host, now_ms)
            if turn is Turn.NOW:
                assert not waiting
                has_turn(name)
            elif turn is Turn.LATER:
                waiting.add(name)
        while (due := connects.next(now_ms)) is not None:
            assert due in waiting
            waiting.discard(due)
            has_turn(due)
        assert len(waiting) <= 5
        assert len(unanswered) <= 3
    assert len(turns) == len(set(turns))
    assert not gone & set(turns)
