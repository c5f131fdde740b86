"""The query of an engine gets its pace, and is stopped between two micro-batches."""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Self

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from streaming.engine.pacing.arrivals import KafkaArrivals
from streaming.engine.pacing.pace import Pace
from streaming.engine.pacing.query_clock import QueryClock, now_ms, set_clock

_log: Final = structlog.get_logger(__name__)
_LOOK_S: Final = 0.01


class PacedQuery:
    """The query has a pace from `start` on; `stop` or the end of a `with` stops both."""

    def __init__(
        self,
        query: StreamingQuery,
        kafka_options: Mapping[str, Any],
        *,
        trigger_interval_ms: int,
        idle_trigger_interval_ms: int,
    ) -> None:
        """kafka_options: for kafka-python, bootstrap servers included."""
        self._query = query
        self._trigger_interval_ms = trigger_interval_ms
        self._idle_trigger_interval_ms = idle_trigger_interval_ms
        self._arrivals = KafkaArrivals(kafka_options)
        self._clock: QueryClock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(patience_s=0)

    def start(self) -> None:
        """To be called after the query's first micro-batch."""
        if self._idle_trigger_interval_ms <= self._trigger_interval_ms:
            return
        pace = Pace(
            self._arrivals,
            trigger_interval_ms=self._trigger_interval_ms,
            idle_trigger_interval_ms=self._idle_trigger_interval_ms,
            now_ms=now_ms(),
        )
        clock = QueryClock(self._query, pace)
        reason = set_clock(self._query, clock)
        if reason is None:
            self._clock = clock
        else:
            _log.warning("no_idle_pace", reason=reason, action="micro-batches follow engine.trigger_interval_ms")

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
