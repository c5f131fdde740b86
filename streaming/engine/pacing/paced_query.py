"""The query of an engine gets its pace, for as long as it is watched."""

from collections.abc import Mapping
from typing import Any, Final, Self

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from streaming.engine.pacing.arrivals import KafkaArrivals
from streaming.engine.pacing.pace import Pace
from streaming.engine.pacing.query_clock import QueryClock, now_ms, set_clock

_log: Final = structlog.get_logger(__name__)


class PacedQuery:
    """In its `with` the query has a pace, from `start` on; after it nothing waits, and the query can be stopped."""

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
        self._arrivals.close()

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
