"""A task tells the driver the earliest deadline; tests/spark/test_pacing.py has the way between them."""

from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam

from streaming.engine.operator.due_timers import FIRST_MS, DueTimers
from streaming.engine.operator.earliest_deadline import NEVER_MS, EarliestDeadline
from streaming.engine.operator.session_operator import TaskOperator
from tests.unit.streaming.engine.operator.operator_host import NOW, Host, group_state
from tests.unit.streaming.engine.operator.test_due_timers import due


class Context:
    """Makes accumulators as a SparkContext does."""

    def accumulator(self, value: int, param: AccumulatorParam[int]) -> Accumulator[int]:
        return Accumulator(1 << 40, value, param)


def earliest() -> Any:
    return EarliestDeadline(Context())  # type: ignore[arg-type]


def test_the_driver_gets_the_earliest_deadline_once() -> None:
    deadlines = earliest()
    assert deadlines.pop_ms() == NEVER_MS
    for deadline_ms in 7, 5, 9:
        deadlines.accumulator += deadline_ms
    assert [deadlines.pop_ms(), deadlines.pop_ms()] == [5, NEVER_MS]


def test_a_task_tells_the_earliest_deadline_that_it_has_stored() -> None:
    host, deadlines = Host(), earliest()
    host.run(host.connected(), host.message())
    task = TaskOperator(host.operator, DueTimers(0), deadlines.accumulator)
    state = group_state(host.value, now_ms=host.timer_ms, timed_out=True)
    task.activate(("c",), iter(()), state)
    assert deadlines.pop_ms() == state._timeout_timestamp > host.timer_ms
    task.activate(("d",), iter(()), group_state(now_ms=NOW))
    assert deadlines.pop_ms() == NEVER_MS


def test_a_postponed_session_has_its_new_timer_as_deadline() -> None:
    spent, deadlines = DueTimers(1), earliest()
    spent.postpone(due())
    TaskOperator(Host().operator, spent, deadlines.accumulator).activate(("c",), iter(()), due())
    assert deadlines.pop_ms() == NOW + FIRST_MS
