"""Tells the driver how large the queues of clients are that keep up (state/outbound/backlog.py), in an accumulator of Spark.

1. A called session reports its queue if that is larger than `LARGE_BYTES`, and 0 if the stored queue was that large and the
   session's queue is not, or its client does not keep up. A task that is executed again reports the same once more.
2. After a start of the engine the driver learns the queues of the checkpoint from the first calls of their sessions. A client
   that keeps up has a deadline, so its session is called within `session.progress_timeout`. Until then the sum is too small.
"""

import threading
from typing import Final, TypeAlias

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from state.model import ClientId
from state.setting import MIB
from streaming.engine.operator.state_row import StateRow

LARGE_BYTES: Final = MIB
"""A smaller queue is not counted: a million of them are the business of `throttle.state_high`."""
_lock: Final = threading.Lock()
"""Spark's thread adds while the driver sums."""

Backlogs: TypeAlias = dict[ClientId, int]
"""The queues of clients in bytes; 0 = not large."""
BacklogsAccumulator: TypeAlias = Accumulator[Backlogs]


def backlog_of(row: StateRow | None, *, stored_bytes: int, keeps_up: bool) -> int | None:
    """Returns the report of a call (rule 1); None = there is nothing to report.

    Args:
        row: The session after the call; None = no session is stored.
        stored_bytes: The queue before the call.
        keeps_up: The client keeps up after the call.
    """
    if keeps_up and row is not None and row.queued_bytes > LARGE_BYTES:
        return row.queued_bytes
    return 0 if stored_bytes > LARGE_BYTES else None


class _NewestBacklogs(AccumulatorParam[Backlogs]):
    def zero(self, value: Backlogs) -> Backlogs:
        return {}

    def addInPlace(self, value1: Backlogs, value2: Backlogs) -> Backlogs:  # noqa: N802 - Spark's name
        with _lock:
            value1.update(value2)
        return value1


class ReportedBacklogs:
    """The driver's side. accumulator: tasks add their reports to it."""

    def __init__(self, context: SparkContext) -> None:
        self._newest: Backlogs = {}
        self.accumulator: BacklogsAccumulator = context.accumulator(self._newest, _NewestBacklogs())

    def total_bytes(self) -> int:
        """Returns the size of all reported queues together. A running micro-batch may add at the same time."""
        newest = self._newest
        with _lock:
            for client_id in [client_id for client_id, size_bytes in newest.items() if not size_bytes]:
                del newest[client_id]
            return sum(newest.values())

    def forget(self) -> None:
        """Forgets all queues. Call it if a micro-batch is executed again with other records."""
        with _lock:
            self._newest.clear()
