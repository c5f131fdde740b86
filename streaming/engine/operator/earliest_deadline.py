"""Tells the driver the earliest deadline of the sessions that a micro-batch has called, in an accumulator of Spark.

The accumulator keeps the minimum, so a task that is executed again changes nothing. Deadlines are milliseconds since 1970 by the
clock of the sessions.
"""

from typing import Final

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

NEVER_MS: Final = 1 << 62
"""The value while there is no deadline."""


class _Minimum(AccumulatorParam[int]):
    def zero(self, value: int) -> int:
        return NEVER_MS

    def addInPlace(self, value1: int, value2: int) -> int:  # noqa: N802 - Spark's name
        return min(value1, value2)


class EarliestDeadline:
    """The driver's side. Pickled as its accumulator, to which each task adds the deadlines that it sets."""

    def __init__(self, context: SparkContext) -> None:
        self.accumulator: Accumulator[int] = context.accumulator(NEVER_MS, _Minimum())

    def pop_ms(self) -> int:
        """Returns the earliest deadline since the last call. Call it between two micro-batches."""
        earliest_ms, self.accumulator.value = self.accumulator.value, NEVER_MS
        return earliest_ms
