"""Counts periodically what all sessions hold together, in the checkpoint.

The operator cannot count: a micro-batch calls only sessions that have something to do. So the driver reads every session of the
newest committed state once, and micro-batches are slower meanwhile. The counts are as old as that state.
"""

import time
from collections.abc import Callable
from typing import Final, Self

import msgspec
import structlog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.background import BackgroundLoop
from streaming.engine.operator.state_row import QUARANTINED_ROW_VERSION
from streaming.spark_internals.jvm import SPARK_ERRORS
from streaming.spark_internals.state_rows import state_rows

_log: Final = structlog.get_logger(__name__)
_JOB_GROUP: Final = "inflight-session-stats"
_SHARE: Final = 50
"""The next collection comes after at least so many times the duration of the last, but for the first one."""


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Aggregate statistics of all sessions.

    Attributes:
        connected, quarantined: Numbers of sessions.
        inflight, queued: Numbers of messages.
        oldest_unacknowledged_s: When the message was first sent that has waited longest for its acknowledgement, in seconds since
            1970; None = none waits.
        taken_s: When they were collected, in seconds since 1970.
    """

    sessions: int
    connected: int
    quarantined: int
    inflight: int
    queued: int
    queued_bytes: int
    oldest_unacknowledged_s: float | None
    taken_s: float


def collect_session_stats(spark: SparkSession, checkpoint: str, *, now_s: Callable[[], float] = time.time) -> SessionStats:
    """Raises SPARK_ERRORS if the checkpoint cannot be read; before the first micro-batch it never can."""
    taken_s = now_s()
    counts = (
        state_rows(spark, checkpoint)
        .agg(
            F.count("*").alias("sessions"),
            F.count_if("connected").alias("connected"),
            F.count_if(F.col("version") == QUARANTINED_ROW_VERSION).alias("quarantined"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("inflight", "queued", "queued_bytes")),
            (F.min("oldest_unacked_ms") / 1_000).alias("oldest_unacknowledged_s"),
        )
        .collect()[0]
    )
    return SessionStats(**counts.asDict(), taken_s=taken_s)


class SessionStatsCollector(BackgroundLoop):
    """Collects every `interval_s` from `start` to the end of a `with`, on a thread; 0 = never."""

    _join_s = 10.0

    def __init__(
        self,
        collect: Callable[[], SessionStats],
        *,
        interval_s: float,
        on_stats: Callable[[SessionStats], None],
        cancel: Callable[[], None],
    ) -> None:
        super().__init__("inflight-session-stats", cancel)
        self._collect = collect
        self._interval_s = interval_s
        self._on_stats = on_stats

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, *, interval_s: float, on_stats: Callable[[SessionStats], None]) -> Self:
        def collect() -> SessionStats:
            spark.sparkContext.setJobGroup(_JOB_GROUP, "what the sessions hold", interruptOnCancel=True)
            return collect_session_stats(spark, checkpoint)

        return cls(
            collect, interval_s=interval_s, on_stats=on_stats, cancel=lambda: spark.sparkContext.cancelJobGroup(_JOB_GROUP)
        )

    def start(self) -> None:
        """Call it after the first micro-batch."""
        if self._interval_s:
            super().start()

    def _run(self) -> None:
        share = 0  # the first collection takes long because Spark compiles it: that says nothing about the next one
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._on_stats(self._collect())
            except SPARK_ERRORS as error:
                if not self._stopping.is_set():
                    _log.warning(
                        "no_session_stats", error=repr(error)[:500], action="the metrics of the sessions are older for now"
                    )
            except Exception:  # noqa: BLE001 - the sessions continue without it
                _log.exception("no_session_stats", action="please report this")
            self._stopping.wait(max(self._interval_s, share * (time.monotonic() - began_s)))
            share = _SHARE
