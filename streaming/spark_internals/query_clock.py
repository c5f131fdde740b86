"""Puts a `Pace`, and what else is to be done, between the micro-batches of a running query, and gives it a time of its own.

Theory of operation. Spark's `ProcessingTimeExecutor` runs a micro-batch, asks its clock to wait until the next multiple of the
trigger interval, and goes on. The clock is an interface of three methods; a query that PySpark has started has the system's. Here
it is replaced, after the first micro-batch, by one that is written in Python: Py4J calls it back on the query's own thread, as it
does for `foreachBatch`. The time of a micro-batch comes from another field, the execution's `triggerClock`; that gets the
`EngineClock`. Spark's reports (`started`, durations) keep the system's clock, of which they have a copy.

The fields have no setter: they are set by reflection. Where that does not work, because another version of Spark has them
elsewhere, the query keeps the system's clock and Spark's trigger, and the log says so.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.streaming.query import StreamingQuery

from streaming.engine.intake.bounded_intake import Taken
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.pace import LastBatch, Pace

_log: Final = structlog.get_logger(__name__)
_LONGEST_HOLD_S: Final = 60.0
_PAUSE_FIELD: Final = "clock"
_TIME_FIELD: Final = "triggerClock"


class QueryClock:
    """org.apache.spark.util.Clock of one query, between its micro-batches. Never raises: an exception would end the query.

    before_batch: called after each pause with what the last micro-batch took, by topic.
    """

    def __init__(
        self,
        query: StreamingQuery,
        pace: Pace | None,
        *,
        trigger_interval_ms: int,
        before_batch: Callable[[dict[str, Taken]], None] = lambda taken: None,
    ) -> None:
        self._query = query
        self._pace = pace
        self._trigger_interval_ms = trigger_interval_ms
        self._before_batch = before_batch
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
            # A wall clock that was set back meanwhile puts the next interval hours away.
            wait_ms = min(target_ms - self.getTimeMillis(), self._trigger_interval_ms)
            progress = self._query._jsq.lastProgress()
            if self._pace is not None:
                self._pace.pause(last_batch(progress), now_ms() + wait_ms, now_ms)
            elif wait_ms > 0:
                time.sleep(wait_ms / 1_000)
            self._before_batch(last_taken(progress))
        except Exception as error:  # noqa: BLE001 - the query must not die of its pause
            _log.warning("pause_failed", error=repr(error), action="the next micro-batch starts now")
        if self._is_holding:
            self.is_held = True
            self._released.wait(_LONGEST_HOLD_S)
        return self.getTimeMillis()

    class Java:
        implements = ("org.apache.spark.util.Clock",)


class MicroBatchTime:
    """org.apache.spark.util.Clock that micro-batches take their time from."""

    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock

    def getTimeMillis(self) -> int:  # noqa: N802 - Spark's name
        return self._clock.now_ms()

    def nanoTime(self) -> int:  # noqa: N802 - Spark's name
        return time.monotonic_ns()

    def waitTillTime(self, target_ms: int) -> int:  # noqa: N802 - Spark's name
        """Spark waits with the other clock; this one has no reason to."""
        return self.getTimeMillis()

    class Java:
        implements = ("org.apache.spark.util.Clock",)


def set_clock(query: StreamingQuery, clock: QueryClock) -> str | None:
    """Gives a query, which has run its first micro-batch, another clock to pause with. Returns why it could not, or None."""
    return _set_field(query._jsq.streamingQuery().triggerExecutor(), _PAUSE_FIELD, clock)


def set_time(query: StreamingQuery, time_: MicroBatchTime) -> str | None:
    """The same for the clock that its micro-batches take their time from."""
    return _set_field(query._jsq.streamingQuery(), _TIME_FIELD, time_)


def _set_field(target: Any, name: str, clock: object) -> str | None:
    try:
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
        owner = target.getClass()
        while all(field.getName() != name for field in owner.getDeclaredFields()):
            owner = owner.getSuperclass()
        field = owner.getDeclaredField(name)
        field.setAccessible(True)
        field.set(target, clock)
    except Exception as error:  # noqa: BLE001 - another Spark
        return repr(error)
    return None


def last_batch(progress: Any) -> LastBatch:
    """From the query's own report, read field by field: the whole of it as JSON would take milliseconds."""
    did_something = progress.numInputRows() > 0 or any(
        operator.numRowsUpdated() > 0 or operator.numRowsRemoved() > 0 for operator in progress.stateOperators()
    )
    end: dict[str, dict[int, int]] = {}
    for source in progress.sources():
        end |= _offsets(source.endOffset())
    return LastBatch(did_something=did_something, end=end)


def last_taken(progress: Any) -> dict[str, Taken]:
    """From the same report, by topic."""
    found: dict[str, Taken] = {}
    for source in progress.sources():
        latest = _offsets(source.latestOffset())
        for topic, end in _offsets(source.endOffset()).items():
            left = sum(max(0, offset - end.get(number, 0)) for number, offset in latest.get(topic, {}).items())
            found[topic] = Taken(records=source.numInputRows(), left=left, end=end)
    return found


def _offsets(text: str | None) -> dict[str, dict[int, int]]:
    """Of Spark's JSON, by topic and partition."""
    return {topic: {int(number): offset for number, offset in by.items()} for topic, by in json.loads(text or "{}").items()}


def now_ms() -> int:
    """Monotonic."""
    return time.monotonic_ns() // 1_000_000
