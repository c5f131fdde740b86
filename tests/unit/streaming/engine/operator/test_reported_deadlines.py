"""streaming.engine.operator.reported_deadlines: what tasks report, and what the driver reads, without Spark."""

import pickle
from typing import cast

import pytest
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from streaming.engine.operator.reported_deadlines import MESSAGES_AS_ONE, ReportedDeadlines, Reports, report_of, work_of
from streaming.engine.operator.state_row import STATE_ROW_VERSION, StateRow

ROW = StateRow(
    version=STATE_ROW_VERSION,
    connected=True,
    inflight=0,
    queued=0,
    queued_bytes=0,
    oldest_unacked_ms=None,
    next_deadline_ms=7,
    blob=b"",
)


class StandInContext:
    """Makes the accumulator of a driver, whose number no other one has."""

    def accumulator(self, value: Reports, accum_param: AccumulatorParam[Reports]) -> Accumulator[Reports]:
        return Accumulator(id(self), value, accum_param)


def reported_deadlines() -> ReportedDeadlines:
    return ReportedDeadlines(cast(SparkContext, StandInContext()))


def run_task(accumulator: Accumulator[Reports], *reports: Reports) -> None:
    """Does what Spark does: the task adds to a zero value of its own, which the driver merges when the task has ended."""
    param = pickle.loads(pickle.dumps(accumulator.accum_param))
    in_task = param.zero(accumulator.value)
    for report in reports:
        in_task = param.addInPlace(in_task, report)
    accumulator += in_task


def test_a_session_without_a_row_or_a_deadline_has_no_timer() -> None:
    assert report_of(None) is None
    assert report_of(ROW._replace(next_deadline_ms=None, queued=100)) is None


def test_a_deadline_of_zero_is_a_deadline() -> None:
    assert report_of(ROW._replace(next_deadline_ms=0)) == (0, 1)


@pytest.mark.parametrize(("inflight", "queued"), [(0, 3 * MESSAGES_AS_ONE), (3 * MESSAGES_AS_ONE, 0), (MESSAGES_AS_ONE - 1, 17)])
def test_a_timer_has_the_work_of_all_messages_of_its_session(inflight: int, queued: int) -> None:
    row = ROW._replace(inflight=inflight, queued=queued, next_deadline_ms=1 << 62)
    assert report_of(row) == (1 << 62, 1 + (inflight + queued) // MESSAGES_AS_ONE)


def test_a_call_is_1_and_each_full_group_of_messages_is_1_more() -> None:
    groups = range(4)
    assert [work_of(group * MESSAGES_AS_ONE) for group in groups] == [1, 2, 3, 4]
    assert [work_of((group + 1) * MESSAGES_AS_ONE - 1) for group in groups] == [1, 2, 3, 4]


def test_the_newest_report_of_a_session_wins() -> None:
    reported = reported_deadlines()
    run_task(reported.accumulator, {"a": (9, 1), "b": (9, 1), "c": None}, {"a": (5, 2)})
    run_task(reported.accumulator, {"b": None, "c": (7, 1)})
    assert reported.pop() == {"a": (5, 2), "b": None, "c": (7, 1)}


def test_a_task_that_is_executed_again_changes_nothing() -> None:
    reported = reported_deadlines()
    for _ in range(2):
        run_task(reported.accumulator, {"a": (5, 1)}, {"b": None})
    assert reported.pop() == {"a": (5, 1), "b": None}


def test_a_task_begins_without_the_reports_of_others() -> None:
    """Otherwise its end would report again what has been popped meanwhile."""
    reported = reported_deadlines()
    run_task(reported.accumulator, {"a": (5, 1)})
    param = reported.accumulator.accum_param
    in_task = param.addInPlace(param.zero(reported.accumulator.value), {"b": (6, 1)})
    assert in_task == {"b": (6, 1)}
    assert reported.pop() == {"a": (5, 1)}


def test_reports_are_popped_once_and_later_ones_leave_them_alone() -> None:
    reported = reported_deadlines()
    assert reported.pop() == {}
    run_task(reported.accumulator, {"a": (5, 1)})
    popped = reported.pop()
    run_task(reported.accumulator, {"a": None})
    assert popped == {"a": (5, 1)}
    assert (reported.pop(), reported.pop()) == ({"a": None}, {})
