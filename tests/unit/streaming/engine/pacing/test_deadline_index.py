"""streaming.engine.pacing.deadline_index: its rules one by one, then all of them against a dict of deadlines."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from state.model import ClientId
from streaming.engine.operator.reported_deadlines import Reports, Timer
from streaming.engine.pacing.deadline_index import HORIZON_MS, SLOT_MS, DeadlineIndex

NOW = 1_000_000
"""The beginning of a slot."""
DUE = NOW + 1_000
"""The beginning of a slot, too: what has a deadline there is due at the end of the slot."""


def indexed(limit: int = 0, **timers: Timer | None) -> DeadlineIndex:
    index = DeadlineIndex(limit)
    index.report(timers, NOW)
    return index


def test_rule_1_the_newest_report_has_the_deadline() -> None:
    index = indexed(earlier=(DUE, 1), later=(DUE, 1), gone=(DUE, 1), heavier=(DUE, 1))
    index.report({"earlier": (DUE - 500, 1), "later": (DUE + 500, 1), "gone": None, "heavier": (DUE, 7)}, NOW)
    assert len(index) == 3
    assert index.pop_due(DUE - 500 + SLOT_MS) == {"earlier": (DUE - 500, 1)}
    assert index.pop_due(DUE + SLOT_MS) == {"heavier": (DUE, 7)}
    assert index.pop_due(DUE + 500 + SLOT_MS) == {"later": (DUE + 500, 1)}


def test_rule_1_a_report_between_a_call_and_its_return_stays() -> None:
    """Kafka has not taken a call, and meanwhile other records have called the session."""
    index = indexed(later=(DUE, 1), far=(DUE, 1), gone=(DUE, 1), silent=(DUE, 1))
    due = index.pop_due(DUE + SLOT_MS)
    index.report({"later": (DUE + 500, 1), "far": (DUE + 2 * HORIZON_MS, 1), "gone": None}, DUE + SLOT_MS)
    index.put_back(due, DUE + SLOT_MS)
    assert index.pop_due(DUE + SLOT_MS) == {"silent": (DUE, 1)}
    assert index.pop_due(DUE + 500 + SLOT_MS) == {"later": (DUE + 500, 1)}


def test_rule_2_a_stored_deadline_counts_only_without_a_report() -> None:
    index = indexed(before=(DUE, 1))
    index.begin_restore()
    index.report({"since": (DUE + 500, 1), "gone": None}, NOW)
    index.restore([(client_id, (DUE - 500, 3)) for client_id in ("before", "since", "gone", "unknown")], NOW)
    assert index.pop_due(DUE - 500 + SLOT_MS) == {"before": (DUE - 500, 3), "unknown": (DUE - 500, 3)}
    assert index.pop_due(DUE + 500 + SLOT_MS) == {"since": (DUE + 500, 1)}


def test_rule_2_a_session_that_is_not_stored_keeps_its_deadline() -> None:
    index = indexed(reported=(DUE, 1))
    index.begin_restore()
    index.restore([], NOW)
    assert index.pop_due(DUE + SLOT_MS) == {"reported": (DUE, 1)}


def test_rule_3_a_deadline_beyond_the_horizon_is_not_held() -> None:
    last_ms = NOW + HORIZON_MS
    index = indexed(last=(last_ms, 1), beyond=(last_ms + 1, 1), moved=(DUE, 1))
    index.report({"moved": (last_ms + 1, 1)}, NOW)
    index.restore([("stored", (last_ms + 1, 1))], NOW)
    assert len(index) == 1
    assert index.pop_due(last_ms + 1 + SLOT_MS) == {"last": (last_ms, 1)}


def test_rule_3_a_far_deadline_comes_with_a_later_restore() -> None:
    index = indexed(far=(NOW + HORIZON_MS + 1, 1))
    index.begin_restore()
    index.restore([("far", (NOW + HORIZON_MS + 1, 1))], NOW + 1)
    assert index.pop_due(NOW + HORIZON_MS + 1 + SLOT_MS) == {"far": (NOW + HORIZON_MS + 1, 1)}


def test_rule_4_a_due_session_is_called_once_until_it_reports() -> None:
    index = indexed(session=(DUE, 1))
    assert index.pop_due(DUE + SLOT_MS) == {"session": (DUE, 1)}
    assert (len(index), index.next_ms(), index.pop_due(DUE + HORIZON_MS)) == (0, None, {})
    index.report({"session": (DUE, 2)}, DUE + SLOT_MS)
    assert index.pop_due(DUE + SLOT_MS) == {"session": (DUE, 2)}


def test_rule_4_a_session_is_called_once_though_its_deadline_came_back() -> None:
    """It has stood twice in the list of its slot then."""
    index = indexed(session=(DUE, 1))
    index.report({"session": (DUE + 500, 1)}, NOW)
    index.report({"session": (DUE + 1, 1)}, NOW)
    assert index.pop_due(DUE + SLOT_MS) == {"session": (DUE + 1, 1)}
    assert index.pop_due(DUE + HORIZON_MS) == {}


def test_rule_4_a_restore_calls_no_session_again_while_it_may_report() -> None:
    index = indexed(session=(DUE, 1))
    now_ms = DUE + SLOT_MS
    index.pop_due(now_ms)
    index.begin_restore()
    index.restore([("session", (DUE, 1))], now_ms)
    assert index.pop_due(now_ms) == {}
    index.begin_restore()
    index.restore([("session", (DUE, 1))], now_ms)
    assert index.pop_due(now_ms) == {"session": (DUE, 1)}, "its call is lost, as it did not report until the second one"


@pytest.mark.promise("many-timers")
def test_rule_5_unreported_calls_have_at_most_the_limit_of_work() -> None:
    index = indexed(5, third=(DUE + 2 * SLOT_MS, 1), first=(DUE, 2), second=(DUE + SLOT_MS, 3))
    now_ms = DUE + HORIZON_MS
    assert [*index.pop_due(now_ms)] == ["first", "second"]
    assert (index.next_ms(), index.pop_due(now_ms), len(index)) == (None, {}, 1)
    index.report({"first": None}, now_ms)
    assert (index.next_ms() or now_ms + 1) <= now_ms
    assert [*index.pop_due(now_ms)] == ["third"]


def test_rule_5_a_session_with_more_work_than_the_limit_is_called() -> None:
    index = indexed(5, heavy=(DUE, 50), light=(DUE + SLOT_MS, 1))
    assert [*index.pop_due(DUE + HORIZON_MS)] == ["heavy"]
    assert index.pop_due(DUE + HORIZON_MS) == {}


def test_rule_5_without_a_limit_all_due_sessions_are_called() -> None:
    timers = {f"session-{number}": (DUE, 1_000) for number in range(1_000)}
    assert indexed(0, **timers).pop_due(DUE + SLOT_MS) == timers


def test_rule_5_a_call_that_was_put_back_leaves_its_work() -> None:
    index = indexed(1, first=(DUE, 1), second=(DUE + SLOT_MS, 1))
    now_ms = DUE + HORIZON_MS
    index.put_back(index.pop_due(now_ms), now_ms)
    assert index.next_ms() == DUE + SLOT_MS
    assert [*index.pop_due(now_ms)] == ["first"]


def test_rule_5_a_lost_call_leaves_its_work_at_the_next_restore() -> None:
    index = indexed(1, lost=(DUE, 1), second=(DUE + SLOT_MS, 1))
    now_ms = DUE + HORIZON_MS
    index.pop_due(now_ms)
    index.begin_restore()
    assert index.pop_due(now_ms) == {}
    index.restore([], now_ms)
    assert [*index.pop_due(now_ms)] == ["second"]


def test_a_timer_is_never_early_and_late_by_a_slot_at_most() -> None:
    for deadline_ms in range(DUE, DUE + SLOT_MS):
        index = indexed(session=(deadline_ms, 1))
        assert (index.pop_due(deadline_ms), index.pop_due(deadline_ms + SLOT_MS)) == ({}, {"session": (deadline_ms, 1)})


def test_the_next_time_is_the_end_of_the_earliest_slot() -> None:
    assert DeadlineIndex().next_ms() is None
    index = indexed(second=(DUE + SLOT_MS, 1), first=(DUE + 7, 1))
    assert index.next_ms() == DUE + SLOT_MS
    assert index.pop_due(DUE + SLOT_MS - 1) == {}
    assert [*index.pop_due(DUE + SLOT_MS)] == ["first"]
    assert index.next_ms() == DUE + 2 * SLOT_MS


CLIENTS = [f"client-{number}" for number in range(8)]
"""Few clients, so that reports, restores and calls of the same one meet."""
NEAR_MS, MOST_WORK = 4 * SLOT_MS, 4
from_now_ms = st.integers(-NEAR_MS, NEAR_MS) | st.integers(-NEAR_MS, NEAR_MS) | st.integers(HORIZON_MS - 1, HORIZON_MS + NEAR_MS)
timers = st.tuples(from_now_ms, st.integers(1, MOST_WORK))
stored_timers = st.dictionaries(st.sampled_from(CLIENTS), timers)
reported_timers = st.dictionaries(st.sampled_from(CLIENTS), st.none() | timers)


def slot_end_ms(timer: Timer) -> int:
    return (timer[0] // SLOT_MS + 1) * SLOT_MS


class DeadlineModel(RuleBasedStateMachine):
    """latest: the deadlines that count. called: work of unreported calls. popped: what may be put back."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW
        self.latest: dict[ClientId, Timer] = {}
        self.called: dict[ClientId, int] = {}
        self.popped: dict[ClientId, Timer] = {}
        self.reported: set[ClientId] = set()

    @initialize(limit=st.sampled_from([0, 1, 3, 8]))
    def start(self, limit: int) -> None:
        self.limit, self.index = limit, DeadlineIndex(limit)

    @rule(reports=reported_timers)
    def report(self, reports: Reports) -> None:
        found = {client_id: timer and self.at(timer) for client_id, timer in reports.items()}
        for client_id, timer in found.items():
            self.called.pop(client_id, None)
            self.reported.add(client_id)
            self.set(client_id, timer)
        self.index.report(found, self.now_ms)

    @rule()
    def begin_restore(self) -> None:
        self.reported.clear()
        self.index.begin_restore()

    @rule(stored=stored_timers)
    def restore(self, stored: Mapping[ClientId, Timer]) -> None:
        found = {client_id: self.at(timer) for client_id, timer in stored.items()}
        for client_id in found.keys() - self.reported - self.called.keys():
            self.set(client_id, found[client_id])
        self.called.clear()
        self.popped.clear()
        self.index.restore(found.items(), self.now_ms)

    @rule()
    def put_back(self) -> None:
        for client_id in self.popped.keys() & self.called.keys():
            del self.called[client_id]
            self.latest[client_id] = self.popped[client_id]
        self.index.put_back(self.popped, self.now_ms)
        self.popped = {}

    @rule(passed_ms=st.integers(0, 3 * SLOT_MS) | st.just(HORIZON_MS))
    def pop_due(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        due = {client_id: timer for client_id, timer in self.latest.items() if slot_end_ms(timer) <= self.now_ms}
        popped = self.index.pop_due(self.now_ms)
        assert popped.items() <= due.items(), "never before its deadline, never twice"
        assert all(timer[0] < self.now_ms for timer in popped.values())
        self.check_order(popped.values(), [due[client_id] for client_id in due.keys() - popped.keys()])
        for client_id, timer in popped.items():
            assert self.is_free(), "the limit holds it back"
            del self.latest[client_id]
            self.called[client_id] = timer[1]
        assert self.is_free() <= (popped == due), "all that are due, unless the limit holds them back"
        assert not self.limit or sum(self.called.values()) < self.limit + MOST_WORK
        next_ms = self.index.next_ms()
        assert next_ms is None or next_ms > self.now_ms, "a caller that waits until then does not spin"
        self.popped |= popped

    @invariant()
    def next_is_not_too_late(self) -> None:
        next_ms = self.index.next_ms()
        if not self.is_free():
            assert next_ms is None
        elif self.latest:
            assert next_ms is not None
            assert next_ms <= min(map(slot_end_ms, self.latest.values()))

    @invariant()
    def the_same_sessions_are_held(self) -> None:
        assert len(self.index) == len(self.latest)

    def check_order(self, popped: Iterable[Timer], held_back: Iterable[Timer]) -> None:
        ends_ms = [slot_end_ms(timer) for timer in popped]
        assert ends_ms == sorted(ends_ms)
        assert not ends_ms or all(slot_end_ms(timer) >= ends_ms[-1] for timer in held_back)

    def is_free(self) -> bool:
        return not self.limit or sum(self.called.values()) < self.limit

    def at(self, timer: Timer) -> Timer:
        return self.now_ms + timer[0], timer[1]

    def set(self, client_id: ClientId, timer: Timer | None) -> None:
        self.latest.pop(client_id, None)
        if timer is not None and timer[0] <= self.now_ms + HORIZON_MS:
            self.latest[client_id] = timer


test_any_history_calls_the_sessions_that_a_dict_of_deadlines_calls = DeadlineModel.TestCase
