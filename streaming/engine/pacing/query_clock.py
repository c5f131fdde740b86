"""Puts a `Pace` between the micro-batches of a running query.

Theory of operation. Spark's `ProcessingTimeExecutor` runs a micro-batch, asks its clock to wait until the next multiple of the
trigger interval, and goes on. The clock is an interface of three methods; a query that PySpark has started has the system's. Here
it is replaced, after the first micro-batch, by one that is written in Python: Py4J calls it back on the query's own thread, as it
does for `foreachBatch`. Nothing else of Spark is touched, and nothing about a micro-batch changes but its start.

The field has no setter: it is set by reflection. Where that does not work, because another version of Spark has it elsewhere, the
query keeps the system's clock and Spark's trigger, and the log says so.
"""

import json
import threading
import time
from typing import Final

import structlog
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.streaming.query import StreamingQuery

from streaming.engine.pacing.pace import LastBatch, Pace

_log: Final = structlog.get_logger(__name__)
_FIELD: Final = "clock"
_LONGEST_HOLD_S: Final = 60.0


class QueryClock:
    """org.apache.spark.util.Clock of one query. Never raises: an exception would end the query."""

    def __init__(self, query: StreamingQuery, pace: Pace) -> None:
        self._query = query
        self._pace = pace
        self._ticked = threading.Event()
        self._is_holding = False
        self._released = threading.Event()
        self.is_held = False
        """The query's thread is between two micro-batches and stays there until `release`."""

    def hold(self) -> None:
        """Begin no more micro-batches. For another thread, which ends the present pause."""
        self._is_holding = True

    def release(self) -> None:
        """The end of `hold`. The query has to be stopped by then, or it goes on."""
        self._released.set()

    def has_ticked(self) -> bool:
        """Whether a micro-batch has ended since this was last asked. For another thread."""
        ticked = self._ticked.is_set()
        self._ticked.clear()
        return ticked

    def getTimeMillis(self) -> int:  # noqa: N802 - Spark's name
        return time.time_ns() // 1_000_000

    def nanoTime(self) -> int:  # noqa: N802 - Spark's name
        return time.monotonic_ns()

    def waitTillTime(self, target_ms: int) -> int:  # noqa: N802 - Spark's name
        """Waits as long as the pace says. target_ms: where the next trigger interval begins. Returns the time."""
        self._ticked.set()
        try:
            wait_ms = target_ms - self.getTimeMillis()
            self._pace.pause(last_batch(self._query), now_ms() + wait_ms, now_ms)
        except Exception as error:  # noqa: BLE001 - the query must not die of its pause
            _log.warning("pause_failed", error=repr(error), action="the next micro-batch starts now")
        if self._is_holding:
            self.is_held = True
            self._released.wait(_LONGEST_HOLD_S)
        return self.getTimeMillis()

    class Java:
        implements = ("org.apache.spark.util.Clock",)


def set_clock(query: StreamingQuery, clock: QueryClock) -> str | None:
    """Gives a query, which has run its first micro-batch, another clock. Returns why it could not, None when it could."""
    gateway = SparkContext._gateway
    try:
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        executor = query._jsq.streamingQuery().triggerExecutor()
        field = executor.getClass().getDeclaredField(_FIELD)
        field.setAccessible(True)
        field.set(executor, clock)
    except Exception as error:  # noqa: BLE001 - another Spark
        return repr(error)
    return None


def last_batch(query: StreamingQuery) -> LastBatch:
    """From the query's own report, read field by field: the whole of it as JSON would take milliseconds."""
    progress = query._jsq.lastProgress()
    operators = progress.stateOperators()
    did_something = progress.numInputRows() > 0 or any(
        operator.numRowsUpdated() > 0 or operator.numRowsRemoved() > 0 for operator in operators
    )
    end: dict[str, dict[int, int]] = {}
    for source in progress.sources():
        for topic, offsets in json.loads(source.endOffset()).items():
            end[topic] = {int(partition): offset for partition, offset in offsets.items()}
    return LastBatch(did_something=did_something, end=end)


def now_ms() -> int:
    """Monotonic."""
    return time.monotonic_ns() // 1_000_000
