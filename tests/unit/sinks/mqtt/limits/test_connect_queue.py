import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.limits.adaptive_rate import AdaptiveRateLimiter
from sinks.mqtt.limits.connect_queue import ConnectQueue, Turn
from sinks.mqtt.settings import DeviceLimits

ANSWER_TIMEOUT_MS = 30_000


class Timer(asyncio.TimerHandle):
    def __init__(self, when_s: float, callback: Callable[[], object]) -> None:
        self.when_s = when_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Testbed:
    """A queue, its event loop and the devices whose turn has come after they waited."""

    __test__ = False

    def __init__(self, limiter: AdaptiveRateLimiter | None = None, **limits: Any) -> None:
        self.now_ms = 0
        self.timers: list[Timer] = []
        self.turns: list[str] = []
        self.devices: dict[str, Device] = {}
        self.on_turn: Callable[[str], None] = self.turns.append
        self.queue = ConnectQueue(DeviceLimits(**limits), self, answer_timeout_ms=ANSWER_TIMEOUT_MS, limiter=limiter)

    def answer_quickly(self, count: int = 200) -> None:
        """The engine has answered many CONNECTs at once."""
        for number in range(10_000, 10_000 + count):
            self.queue.announced(number)
            self.queue.answered(number)

    def time(self) -> float:
        return self.now_ms / 1_000

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def enter(self, name: str, host: str | None = None) -> Turn:
        self.devices[name] = Device(self, name)
        return self.queue.enter(self.devices[name], host)

    def leave(self, name: str) -> None:
        self.queue.leave(self.devices[name])

    def pass_ms(self, duration_ms: int) -> list[str]:
        """Passes time. Returns the devices whose turn has come."""
        until_ms, before = self.now_ms + duration_ms, len(self.turns)
        while True:
            self.timers = [timer for timer in self.timers if not timer.is_cancelled]
            due = min(self.timers, key=lambda timer: timer.when_s, default=None)
            if due is None or due.when_s * 1_000 > until_ms:
                break
            self.timers.remove(due)
            self.now_ms = max(self.now_ms, round(due.when_s * 1_000))
            due.callback()
        self.now_ms = until_ms
        return self.turns[before:]


class Device:
    def __init__(self, testbed: Testbed, name: str) -> None:
        self.testbed = testbed
        self.name = name

    def turn_has_come(self) -> None:
        self.testbed.on_turn(self.name)


def test_too_many_at_once_wait_for_the_rate() -> None:
    connects = Testbed(max_connect_rate=10)
    assert [connects.enter(f"c{number}") for number in range(4)] == [Turn.NOW, *[Turn.LATER] * 3]
    assert connects.pass_ms(99) == []
    assert connects.pass_ms(4) == ["c1"]
    assert connects.pass_ms(104) == ["c2"]
    assert connects.enter("late") is Turn.LATER, "it does not overtake those that wait"
    assert connects.pass_ms(1_000) == ["c3", "late"]
    assert not connects.timers


def test_while_low_rate_devices_wait_the_rate_is_an_eighth() -> None:
    limiter = AdaptiveRateLimiter(DeviceLimits(max_delay_ms=5))
    connects = Testbed(limiter, max_connect_rate=1_000, max_unanswered_connects=1_000_000)

    def handled_in_a_second() -> int:
        names = [f"{connects.now_ms}-{number}" for number in range(2_000)]
        at_once = [connects.enter(name) for name in names].count(Turn.NOW)
        handled = at_once + len(connects.pass_ms(1_000))
        for name in names:
            connects.leave(name)
        return handled

    for _ in range(30):
        limiter.appended(1)
        limiter.confirmed(1.0)
        limiter.observe_lag(6.0)
    connects.pass_ms(10_000)
    assert 100 < handled_in_a_second() <= 140
    for _ in range(600):
        limiter.observe_lag(0.0)
    connects.pass_ms(10_000)
    assert 900 < handled_in_a_second() <= 1_100


def test_hosts_take_turns() -> None:
    connects = Testbed(max_connect_rate=10)
    connects.enter("now", "flood")
    for number in range(50):
        assert connects.enter(f"flood-{number}", "flood") is Turn.LATER
    assert connects.enter("good", "good") is Turn.LATER
    assert connects.pass_ms(420) == ["flood-0", "good", "flood-1", "flood-2"]


def test_a_host_may_have_as_many_waiting_as_there_is_room_left() -> None:
    connects = Testbed(max_connect_rate=10, max_waiting_connects=8)
    connects.enter("now", "flood")
    turns = [connects.enter(f"flood-{number}", "flood") for number in range(6)]
    assert turns == [Turn.LATER] * 4 + [Turn.NEVER] * 2
    assert [connects.enter(f"second-{number}", "second") for number in range(3)] == [Turn.LATER, Turn.LATER, Turn.NEVER]
    assert connects.enter("good", "good") is Turn.LATER
    assert connects.enter("no host", None) is Turn.LATER
    assert connects.enter("full", "another") is Turn.NEVER


@pytest.mark.promise("connect-given-up")
def test_a_connection_that_leaves_is_forgotten_and_makes_room() -> None:
    connects = Testbed(max_connect_rate=10, max_waiting_connects=2)
    connects.enter("now", "a")
    assert connects.enter("first", "b") is Turn.LATER
    assert connects.enter("second", "b") is Turn.NEVER
    connects.leave("first")
    connects.leave("first")
    assert connects.enter("third", "b") is Turn.LATER
    assert connects.pass_ms(1_000) == ["third"]


def test_others_wait_while_the_engine_does_not_answer() -> None:
    connects = Testbed(max_unanswered_connects=2)
    for connection_id in (1, 2):
        assert connects.enter(f"c{connection_id}", "a") is Turn.NOW
        connects.queue.announced(connection_id)
    assert connects.enter("third", "a") is Turn.LATER
    assert connects.pass_ms(29_000) == []
    connects.queue.answered(3)
    assert connects.pass_ms(10) == []
    connects.queue.answered(2)
    connects.queue.answered(2)
    assert connects.pass_ms(2) == ["third"]


def test_a_connect_of_a_closed_socket_counts_until_answered_or_old() -> None:
    """Otherwise the engine would read a CONNECT for every attempt of a device that gives up and reconnects."""
    connects = Testbed(max_unanswered_connects=1)
    connects.answer_quickly()
    assert connects.enter("first", "a") is Turn.NOW
    connects.queue.announced(1)
    connects.leave("first")
    connects.pass_ms(10_000)
    assert connects.enter("again", "a") is Turn.LATER
    connects.leave("again")
    connects.pass_ms(10_000)
    assert connects.enter("and again", "a") is Turn.LATER
    assert connects.pass_ms(9_999) == []
    assert connects.pass_ms(3) == ["and again"]


def test_higher_limits_hold_for_waiting_connects_at_once() -> None:
    connects = Testbed(max_connect_rate=1, max_waiting_connects=1)
    assert [connects.enter(name) for name in ("first", "second", "third")] == [Turn.NOW, Turn.LATER, Turn.NEVER]
    connects.queue.reconfigure(DeviceLimits(max_connect_rate=1_000))
    assert connects.pass_ms(2) == ["second"]
    assert connects.enter("third") is Turn.NOW


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abcd"), st.sampled_from(("enter", "leave", "answer"))), max_size=200)
)
def test_each_has_one_turn_and_limits_hold(steps: list[tuple[int, str, str]]) -> None:
    connects = Testbed(max_connect_rate=20, max_waiting_connects=5, max_unanswered_connects=3)
    waiting, gone, turns, unanswered = set[str](), set[str](), list[str](), list[int]()

    def has_turn(name: str) -> None:
        turns.append(name)
        unanswered.append(len(turns))
        connects.queue.announced(len(turns))

    def has_turn_after_waiting(name: str) -> None:
        waiting.remove(name)
        has_turn(name)

    connects.on_turn = has_turn_after_waiting
    for number, (gap_ms, host, step) in enumerate(steps):
        connects.pass_ms(gap_ms)
        if step == "leave" and waiting:
            name = min(waiting)
            waiting.discard(name)
            gone.add(name)
            connects.leave(name)
        elif step == "answer" and unanswered:
            connects.queue.answered(unanswered.pop(0))
        elif step == "enter":
            name = f"{host}{number}"
            turn = connects.enter(name, host)
            if turn is Turn.NOW:
                assert not waiting
                has_turn(name)
            elif turn is Turn.LATER:
                waiting.add(name)
        assert len(waiting) <= 5
        assert len(unanswered) <= 3
    assert len(turns) == len(set(turns))
    assert not gone & set(turns)


def test_the_patience_is_twice_the_slowest_answer_but_not_less_than_the_time_out() -> None:
    connects = Testbed()
    connects.answer_quickly()
    assert connects.queue.patience_ms == ANSWER_TIMEOUT_MS
    connects.queue.announced(2)
    connects.pass_ms(ANSWER_TIMEOUT_MS - 1)
    connects.queue.answered(2)
    assert connects.queue.patience_ms == 2 * (ANSWER_TIMEOUT_MS - 1)


def test_an_engine_that_has_answered_nobody_yet_gets_twice_the_time_out() -> None:
    assert Testbed().queue.patience_ms == 2 * ANSWER_TIMEOUT_MS


def test_an_engine_that_needs_longer_than_the_time_out_gets_more_time() -> None:
    """Refused devices that connect again would otherwise never be answered in time."""
    connects = Testbed(max_unanswered_connects=1)
    connects.answer_quickly()
    connects.queue.announced(1)
    connects.pass_ms(ANSWER_TIMEOUT_MS)
    assert connects.enter("other") is Turn.NOW, "the first one does not count any more"
    connects.pass_ms(10_000)
    connects.queue.answered(1)
    assert connects.queue.patience_ms == 2 * (ANSWER_TIMEOUT_MS + 10_000)
    connects.queue.announced(2)
    assert connects.enter("third") is Turn.LATER
    assert connects.pass_ms(2 * ANSWER_TIMEOUT_MS) == []
    assert connects.pass_ms(20_001) == ["third"]


def test_a_faster_engine_shortens_the_patience_again() -> None:
    connects = Testbed()
    connects.queue.announced(0)
    connects.pass_ms(200_000)
    connects.queue.answered(0)
    assert connects.queue.patience_ms == 300_000, "five minutes at most"
    connects.answer_quickly()
    assert connects.queue.patience_ms == ANSWER_TIMEOUT_MS


def test_an_answer_that_never_comes_is_forgotten_after_five_minutes() -> None:
    connects = Testbed()
    connects.answer_quickly()
    connects.queue.announced(1)
    connects.pass_ms(ANSWER_TIMEOUT_MS)
    assert connects.enter("other") is Turn.NOW
    connects.pass_ms(300_000)
    assert connects.enter("third") is Turn.NOW
    connects.queue.answered(1)
    assert connects.queue.patience_ms == ANSWER_TIMEOUT_MS
