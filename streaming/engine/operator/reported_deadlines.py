"""Tells the driver when each session that a micro-batch has called is to be called next, in an accumulator of Spark.

A task that is executed again reports the same once more. Deadlines are milliseconds since 1970 by the clock of the sessions.

The work of a call is 1, plus 1 for every `MESSAGES_AS_ONE` messages that the session holds.
"""

from typing import Final, TypeAlias

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from state.model import ClientId
from streaming.engine.operator.state_row import StateRow

MESSAGES_AS_ONE: Final = 8
"""A message that expires, with its receipt and dead letter, costs a quarter of a session's call; a waiting one much less."""

Timer: TypeAlias = tuple[int, int]
"""The deadline of a session, and the work of calling it."""
Reports: TypeAlias = dict[ClientId, Timer | None]
"""The timers of called sessions; None = the session has no deadline, or is gone."""


def report_of(row: StateRow | None) -> Timer | None:
    """Returns the timer of a session with this row; None = no session is stored."""
    if row is None or row.next_deadline_ms is None:
        return None
    return row.next_deadline_ms, work_of(row.inflight + row.queued)


def work_of(messages: int) -> int:
    """Returns the work of calling a session that holds so many messages."""
    return 1 + messages // MESSAGES_AS_ONE


class _Newest(AccumulatorParam[Reports]):
    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802 - Spark's name
        value1.update(value2)
        return value1


class ReportedDeadlines:
    """The driver's side. accumulator: tasks add their reports to it."""

    def __init__(self, context: SparkContext) -> None:
        self.accumulator: Accumulator[Reports] = context.accumulator({}, _Newest())

    def pop(self) -> Reports:
        """Returns the reports since the last call. Call it between two micro-batches: a running one adds reports."""
        reports, self.accumulator.value = self.accumulator.value, {}
        return reports
