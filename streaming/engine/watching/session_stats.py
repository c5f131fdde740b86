"""What all sessions hold together, counted now and then in the checkpoint.

The operator cannot say it: a micro-batch calls the sessions that have something to do, and no others. So the driver reads the
newest committed state, every session once, and micro-batches are slower meanwhile. The counts are as old as that state.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.engine.operator.state_row import QUARANTINED_ROW_VERSION

_log: Final = structlog.get_logger(__name__)
_JOB_GROUP: Final = "inflight-census"
_SHARE: Final = 50
"""A census that took long is repeated after at least so many times as long."""
_JOIN_S: Final = 10.0


class Census(msgspec.Struct, frozen=True, kw_only=True):
    """connected, quarantined: sessions. inflight, queued: messages. oldest_unacknowledged_s: when the message was first sent that
    has waited longest for its acknowledgement, in seconds since 1970; None = none waits. taken_s: when it was counted.
    """

    sessions: int
    connected: int
    quarantined: int
    inflight: int
    queued: int
    queued_bytes: int
    oldest_unacknowledged_s: float | None
    taken_s: float


def take_census(spark: SparkSession, checkpoint: str, *, now_s: Callable[[], float] = time.time) -> Census:
    """Raises PySparkException when the checkpoint cannot be read, as before the first micro-batch."""
    taken_s = now_s()
    state = F.col("value.groupState")
    row = (
        spark.read.format("statestore")
        .load(checkpoint)
        .agg(
            F.count("*").alias("sessions"),
            F.count_if(state["connected"]).alias("connected"),
            F.count_if(state["version"] == QUARANTINED_ROW_VERSION).alias("quarantined"),
            *(F.coalesce(F.sum(state[name]), F.lit(0)).alias(name) for name in ("inflight", "queued", "queued_bytes")),
            (F.min(state["oldest_unacked_ms"]) / 1_000).alias("oldest_unacknowledged_s"),
        )
        .collect()[0]
    )
    return Census(**row.asDict(), taken_s=taken_s)


class SessionStatsCollector:
    """Takes one every `interval_s` from `start` to the end of a `with`, on a thread of its own; 0 = never."""

    def __init__(
        self, take: Callable[[], Census], *, interval_s: float, on_census: Callable[[Census], None], cancel: Callable[[], None]
    ) -> None:
        self._take = take
        self._interval_s = interval_s
        self._on_census = on_census
        self._cancel = cancel
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-census", daemon=True)

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, *, interval_s: float, on_census: Callable[[Census], None]) -> Self:
        def take() -> Census:
            spark.sparkContext.setJobGroup(_JOB_GROUP, "what the sessions hold", interruptOnCancel=True)
            return take_census(spark, checkpoint)

        return cls(take, interval_s=interval_s, on_census=on_census, cancel=lambda: spark.sparkContext.cancelJobGroup(_JOB_GROUP))

    def start(self) -> None:
        """After the first micro-batch."""
        if self._interval_s:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._on_census(self._take())
            except (PySparkException, Py4JError) as error:
                if not self._stopping.is_set():
                    _log.warning("no_census", error=repr(error)[:500], action="the metrics of the sessions are older for now")
            except Exception:  # noqa: BLE001 - the sessions go on without it
                _log.exception("no_census", action="please report this")
            self._stopping.wait(max(self._interval_s, _SHARE * (time.monotonic() - began_s)))
