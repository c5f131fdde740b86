"""The query of an engine gets its pace, the bounds of its micro-batches and its time, and is stopped between two of them."""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Self

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from streaming.engine.intake.bounded_intake import BoundedIntake, Taken
from streaming.engine.pacing.arrivals import KafkaArrivals
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.pace import Pace
from streaming.spark_internals.query_clock import MicroBatchTime, QueryClock, now_ms, set_clock, set_time
from streaming.spark_internals.read_limits import ReadLimits

_log: Final = structlog.get_logger(__name__)
_LOOK_S: Final = 0.01


class PacedQuery:
    """The query has all that from `start` on; `stop` or the end of a `with` stops everything."""

    def __init__(
        self,
        query: StreamingQuery,
        kafka_options: Mapping[str, Any],
        *,
        trigger_interval_ms: int,
        idle_trigger_interval_ms: int,
        intake: BoundedIntake | None = None,
        clock: EngineClock | None = None,
    ) -> None:
        """kafka_options: for kafka-python, bootstrap servers included. intake: None = the limits of the start stay. clock: None =
        the system's. Both outlive the query, so that the next one of the same engine can go on with them.
        """
        self._query = query
        self._trigger_interval_ms = trigger_interval_ms
        self._idle_trigger_interval_ms = idle_trigger_interval_ms
        self._intake = intake
        self._time = clock
        self._arrivals = KafkaArrivals(kafka_options)
        self._clock: QueryClock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(patience_s=0)

    def start(self) -> None:
        """To be called after the query's first micro-batch."""
        if self._time is not None and (reason := set_time(self._query, MicroBatchTime(self._time))):
            _log.warning("no_clock", reason=reason, action="sessions follow the jumps of the wall clock")
        pace = None
        if self._idle_trigger_interval_ms > self._trigger_interval_ms:
            pace = Pace(
                self._arrivals,
                trigger_interval_ms=self._trigger_interval_ms,
                idle_trigger_interval_ms=self._idle_trigger_interval_ms,
                now_ms=now_ms(),
            )
        limits = self._limits()
        if pace is None and limits is None:
            return

        def before_batch(taken: dict[str, Taken]) -> None:
            if self._intake is not None and limits is not None:
                self._intake.adjust(taken, limits)

        clock = QueryClock(self._query, pace, trigger_interval_ms=self._trigger_interval_ms, before_batch=before_batch)
        reason = set_clock(self._query, clock)
        if reason is None:
            self._clock = clock
        else:
            action = "micro-batches follow engine.trigger_interval_ms, and are small"
            _log.warning("no_idle_pace", reason=reason, action=action)

    def may_have_news(self) -> bool:
        """False when no micro-batch has ended since this was last asked."""
        return self._clock is None or self._clock.has_ticked()

    def stop(self, *, patience_s: float) -> None:
        """Stops the query when the micro-batch that runs has ended, after `patience_s` in the middle of it.

        A micro-batch that was stopped is executed again by the next start. A query that has ended may be stopped again.
        """
        clock, deadline = self._clock, time.monotonic() + patience_s
        if clock is not None:
            clock.hold()
        self._arrivals.close()
        while time.monotonic() < deadline and self._query.isActive and self._is_busy(clock):
            time.sleep(_LOOK_S)
        # The query's thread is in our clock, and `stop` waits for that thread: it goes on when it cannot begin a micro-batch.
        stopping = threading.Thread(target=self._query.stop, name="inflight-stop", daemon=True)
        stopping.start()
        while stopping.is_alive() and self._query.isActive:
            time.sleep(_LOOK_S)
        if clock is not None:
            clock.release()
        stopping.join()

    def _is_busy(self, clock: QueryClock | None) -> bool:
        # Without our clock it is a guess: the next micro-batch may begin at any moment.
        return bool(self._query.status["isTriggerActive"]) if clock is None else not clock.is_held

    def _limits(self) -> ReadLimits | None:
        if self._intake is None:
            return None
        try:
            return ReadLimits(self._query)
        except Exception as error:  # noqa: BLE001 - another Spark
            _log.warning("no_read_limits", reason=repr(error), action="micro-batches are small: see engine.max_bytes_per_trigger")
            return None
