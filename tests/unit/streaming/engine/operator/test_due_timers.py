"""Due sessions are called or postponed: docs/decisions/0018."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupState

from streaming.engine.operator import session_operator
from streaming.engine.operator.due_timers import CALLED_OF, FIRST_MS, MESSAGES_AS_ONE, STEP_MS, DueTimers
from streaming.engine.operator.session_operator import SessionOperator, TaskOperator
from tests.unit.streaming.engine.operator.operator_host import NOW, SETTINGS, Host, group_state
from tests.unit.streaming.engine.operator.test_state_row import ROW


def due(late_ms: int = 0, *, queued: int = 1, inflight: int = 0) -> GroupState:
    row = ROW._replace(next_deadline_ms=NOW - late_ms, queued=queued, inflight=inflight)
    return group_state(tuple(row), timed_out=True)


def timers(limit: int, states: Iterable[GroupState]) -> list[int | None]:
    """Returns when each is called again, in milliseconds from now; None = now."""
    timers = DueTimers(limit)
    return [state._timeout_timestamp - NOW if timers.postpone(state) else None for state in states]


def test_timers_beyond_the_limit_are_spread_over_the_following_seconds() -> None:
    places = [FIRST_MS + number * STEP_MS // 4 for number in range(8)]
    assert timers(4, [due() for _ in range(12)]) == [None] * 4 + places


def test_of_those_beyond_the_limit_every_tenth_is_called() -> None:
    found = timers(1, [due() for _ in range(1 + 3 * CALLED_OF)])
    assert [number for number, place in enumerate(found) if place is None] == [0, 10, 20, 30]
    places = [place for place in found if place is not None]
    assert places == [FIRST_MS + number * STEP_MS for number in range(27)]


def test_few_timers_are_not_postponed() -> None:
    assert timers(10, [due() for _ in range(10)]) == [None] * 10


def test_without_a_limit_no_timer_is_postponed() -> None:
    assert timers(0, [due(queued=100) for _ in range(1_000)]) == [None] * 1_000


def test_the_messages_of_a_session_count() -> None:
    half = 5 * MESSAGES_AS_ONE
    greedy = [due(queued=half, inflight=half) for _ in range(4)]
    assert timers(20, greedy) == [None, None, FIRST_MS, FIRST_MS + 11 * STEP_MS // 20]
    assert timers(20, [due(queued=MESSAGES_AS_ONE - 1) for _ in range(20)]) == [None] * 20


def test_one_that_is_greater_than_the_limit_is_called_nevertheless() -> None:
    assert timers(1, [due(queued=1_000)]) == [None]


def test_those_that_are_much_later_have_a_limit_of_their_own() -> None:
    fresh, late, latest = ([due(late_ms) for _ in range(3)] for late_ms in (1, 5_000, 60_000))
    assert timers(3, fresh + late + latest + fresh[:2]) == [None] * 9 + [FIRST_MS, FIRST_MS + STEP_MS // 3]


def test_a_postponed_session_keeps_its_row() -> None:
    timers = DueTimers(1)
    state = due(7)
    before = tuple(state.get)
    assert [timers.postpone(due(7)), timers.postpone(state)] == [False, True]
    assert (tuple(state.get), state._updated, state._timeout_timestamp) == (before, False, NOW + FIRST_MS)


def test_a_row_without_a_deadline_and_a_group_without_a_row_are_called() -> None:
    assert timers(1, [group_state(tuple(ROW._replace(next_deadline_ms=None))), group_state(timed_out=True)]) == [None, None]


@dataclass
class Demand:
    """Clients who are due again `period_ms` after each call, in a partition that can call few of them a second."""

    clients: int
    period_ms: int
    limit: int
    now_ms: int = NOW
    deadlines: list[int] = field(default_factory=list)
    timers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadlines = [NOW] * self.clients
        self.timers = [NOW] * self.clients

    def micro_batch(self) -> list[int]:
        """The clients that it calls, in the order in which Spark comes to them, which is always the same."""
        called, timers = [], DueTimers(self.limit)
        for client in range(self.clients):
            if self.timers[client] > self.now_ms:
                continue
            row = ROW._replace(inflight=0, next_deadline_ms=self.deadlines[client])
            state = group_state(tuple(row), now_ms=self.now_ms, timed_out=True)
            if timers.postpone(state):
                self.timers[client] = state._timeout_timestamp
            else:
                called.append(client)
                self.deadlines[client] = self.timers[client] = self.now_ms + self.period_ms
        self.now_ms += STEP_MS
        return called


def test_no_session_starves_under_overload() -> None:
    demand = Demand(clients=200, period_ms=STEP_MS, limit=5)
    last = dict.fromkeys(range(demand.clients), 0)
    longest = 0
    for number in range(1, 600):
        called = demand.micro_batch()
        # So many powers of two are there in the seconds that anybody waits.
        assert len(called) <= 8 * demand.limit + demand.clients / CALLED_OF
        for client in called:
            longest = max(longest, number - last[client])
            last[client] = number
    longest = max([longest, *(600 - number for number in last.values())])
    assert longest <= 2 * demand.clients / demand.limit


@pytest.mark.parametrize("late_ms", [0, 3_600_000])
def test_after_a_standstill_all_timers_are_called_in_shares(late_ms: int) -> None:
    demand = Demand(clients=200, period_ms=3_600_000, limit=5, now_ms=NOW + late_ms)
    called = [demand.micro_batch() for _ in range(demand.clients // demand.limit + 1)]
    assert sorted(client for batch in called for client in batch) == list(range(demand.clients))
    assert max(map(len, called)) == len(called[0]) == demand.limit + (demand.clients - demand.limit) // CALLED_OF


def in_task(host: Host, timers: DueTimers) -> TaskOperator:
    return TaskOperator(host.operator, timers)


def test_a_postponed_session_writes_no_record_on_either_path() -> None:
    host = Host(replace(SETTINGS, max_timers_per_partition=1))
    host.run(host.connected(), host.message())
    value, now_ms = host.value, host.timer_ms
    spent = DueTimers(1)
    spent.postpone(group_state(value, now_ms=now_ms, timed_out=True))
    task = in_task(host, spent)
    lean, stock = (group_state(value, now_ms=now_ms, timed_out=True) for _ in range(2))
    assert task.activate(("c",), iter(()), lean) == []
    assert list(task(("c",), iter(()), stock)) == []
    for state, place_ms in (lean, FIRST_MS), (stock, FIRST_MS + STEP_MS):
        assert (tuple(state.get), state._timeout_timestamp) == (value, now_ms + place_ms)

    called = group_state(value, now_ms=now_ms, timed_out=True)
    assert in_task(host, DueTimers(1)).activate(("c",), iter(()), called) != []


def test_a_session_with_records_is_called_whatever_else_is_due() -> None:
    host = Host()
    host.run(host.connected(), host.message())
    spent = DueTimers(1)
    spent.postpone(due())
    frame = pd.DataFrame({"client_id": "c", "record": [host.message(b"new")]})
    state = group_state(host.value, now_ms=host.timer_ms)
    (answer,) = in_task(host, spent)(("c",), iter([frame]), state)
    assert answer["topic"].tolist() == ["inflight.commands", "inflight.ledger"]
    assert state._updated


def test_every_task_of_a_worker_begins_with_the_whole_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_operator.gc, "freeze", lambda: None)
    monkeypatch.setattr(session_operator.gc, "set_threshold", lambda *numbers: None)
    pickled = pickle.dumps(SessionOperator(replace(SETTINGS, max_timers_per_partition=1)))
    host = Host()
    host.run(host.connected(), host.message())
    for _ in range(2):
        task = pickle.loads(pickled)
        assert task.operator is pickle.loads(pickled).operator
        answers = [
            task.activate(("c",), iter(()), group_state(host.value, now_ms=host.timer_ms, timed_out=True)) for _ in range(2)
        ]
        assert [bool(answer) for answer in answers] == [True, False]
