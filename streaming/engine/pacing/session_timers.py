"""Calls the sessions whose deadline has come, with a record of `inflight.events` for each (docs/decisions/0055).

It runs on a thread of the engine's driver, beside the query. A call is the event `DeadlineReached` in the log: a micro-batch that
is executed again makes the same calls, and a call that comes twice changes nothing.

1. After each micro-batch the query says what its sessions have reported, and that it rests now.
2. When a deadline has come, the calls are appended. Then the pause of the query ends (`hurry`).
3. At the start and every `RESTORE_S` seconds the deadlines in the committed state are read. So a deadline that was never reported
   is found, too, and a timer that is hours away takes no memory until it is near.
4. A query that rests for the longest pause gets a record that is for no session. So a micro-batch shows regularly that the
   engine works.

What Kafka does not take is tried again after a second.
"""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Final, Self

import structlog
from kafka.errors import KafkaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.events import DeadlineReached
from state.model import ClientId
from state.records.events import WAKE_UP_KEY, encode_event
from streaming.background import BackgroundLoop
from streaming.config.settings import Settings
from streaming.engine.kafka_access import TopicLog
from streaming.engine.operator.reported_deadlines import Reports, Timer, work_of
from streaming.engine.pacing.deadline_index import HORIZON_MS, DeadlineIndex
from streaming.spark_internals.jvm import SPARK_ERRORS
from streaming.spark_internals.state_rows import state_rows

RESTORE_S: Final = 600.0
"""Less than HORIZON_MS: a deadline has to be held before it comes."""
_RESTORE_SHARE: Final = 50
"""The next reading comes after at least so many times the duration of the last, unless deadlines would be missed."""
_AGAIN_S: Final = 1.0
_LONGEST_WAIT_S: Final = 5.0
_CLIENT_ID: Final = "inflight-timers"
_BLOCK_MS: Final = 2_000
_DELIVERY_MS: Final = 6_000
_CALL: Final = encode_event(DeadlineReached())
_JOB_GROUP: Final = "inflight-timers"
_log: Final = structlog.get_logger(__name__)

ReadStored = Callable[[int], Iterable[tuple[ClientId, Timer]]]
"""Returns the timers of the newest committed state whose deadlines are not after a time."""


class SessionTimers(BackgroundLoop):
    """The timers of the sessions of one engine. They are called from `start` to the end of a `with`.

    Args:
        read_stored: Reads the stored deadlines; may take seconds, and raise SPARK_ERRORS.
        now_ms: The clock of the sessions, in milliseconds since 1970.
        longest_pause_ms: After it a resting query gets a record for no session.
        hurry: Ends a pause of the query.
        cancel: Interrupts a `read_stored`.
    """

    _join_s = 10.0

    def __init__(
        self,
        index: DeadlineIndex,
        log: TopicLog,
        read_stored: ReadStored,
        now_ms: Callable[[], int],
        *,
        longest_pause_ms: int,
        hurry: Callable[[], None] = lambda: None,
        cancel: Callable[[], None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("inflight-timers", cancel)
        self._index = index
        self._log = log
        self._read_stored = read_stored
        self._now_ms = now_ms
        self._longest_pause_s = longest_pause_ms / 1_000
        self._hurry = hurry
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        """Guards the index, too."""
        self._restore_at_s = 0.0
        self._batch_id = -1
        self._worked_s = monotonic_s()
        """When the newest micro-batch ended, or the last record for the query was appended."""
        self._is_resting = False
        self._has_news = False
        """Set by the query's thread: what `step` has returned may be too long by now."""

    @classmethod
    def of(cls, settings: Settings, spark: SparkSession, now_ms: Callable[[], int], *, hurry: Callable[[], None]) -> Self:
        """Makes the timers of an engine."""
        engine, checkpoint = settings.engine, settings.sessions_checkpoint
        return cls(
            DeadlineIndex(engine.max_timers_per_partition * engine.state_partitions),
            TopicLog(
                settings, settings.topics.events, client_id=_CLIENT_ID, max_block_ms=_BLOCK_MS, delivery_timeout_ms=_DELIVERY_MS
            ),
            partial(stored_timers, spark, checkpoint),
            now_ms,
            longest_pause_ms=engine.longest_pause_ms,
            hurry=hurry,
            cancel=lambda: spark.sparkContext.cancelJobGroup(_JOB_GROUP),
        )

    def rests(self, batch_id: int, reports: Reports) -> None:
        """Applies the reports of the newest micro-batch, and notes that the query rests. Call it on the query's thread."""
        with self._changed:
            if batch_id != self._batch_id:
                self._batch_id, self._worked_s = batch_id, self._monotonic_s()
            self._index.report(reports, self._now_ms())
            self._is_resting = self._has_news = True
            self._changed.notify_all()

    def works(self) -> None:
        """Notes that the query rests no longer."""
        self._is_resting = False

    def step(self) -> float:
        """Does what is due. Returns after how many seconds something may be due again. Raises KafkaError, SPARK_ERRORS."""
        self._call_due()
        self._let_the_query_work()
        if self._monotonic_s() >= self._restore_at_s:
            self._restore()
            self._call_due()
        with self._changed:
            next_ms = self._index.next_ms()
        waits_s = [_LONGEST_WAIT_S, self._restore_at_s - self._monotonic_s()]
        if next_ms is not None:
            waits_s.append((next_ms - self._now_ms()) / 1_000)
        if self._is_resting:
            waits_s.append(self._worked_s + self._longest_pause_s - self._monotonic_s())
        return max(0.0, min(waits_s))

    def _restore(self) -> None:
        began_s = self._monotonic_s()
        with self._changed:
            self._index.begin_restore()
        stored = list(self._read_stored(self._now_ms() + HORIZON_MS))
        with self._changed:
            self._index.restore(stored, self._now_ms())
        now_s = self._monotonic_s()
        took_s = now_s - began_s
        self._restore_at_s = now_s + min(max(RESTORE_S, _RESTORE_SHARE * took_s), max(0.0, HORIZON_MS / 1_000 - 2 * took_s))

    def _call_due(self) -> None:
        with self._changed:
            due = self._index.pop_due(self._now_ms())
        if not due:
            return
        try:
            self._log.append((client_id.encode(), _CALL) for client_id in due)
        except Exception:
            with self._changed:
                self._index.put_back(due, self._now_ms())
            raise
        self._hurry()

    def _let_the_query_work(self) -> None:
        if self._is_resting and self._monotonic_s() >= self._worked_s + self._longest_pause_s:
            self._log.append([(WAKE_UP_KEY, b"")])
            self._worked_s = self._monotonic_s()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._has_news = False
            try:
                wait_s = self.step()
            except (KafkaError, *SPARK_ERRORS) as error:
                if self._stopping.is_set():
                    return
                _log.warning("timers_wait", error=repr(error)[:500], action="tried again in a second")
                wait_s = _AGAIN_S
            except Exception:  # noqa: BLE001 - the sessions continue without timers meanwhile
                _log.exception("timers_wait", action="please report this")
                wait_s = _AGAIN_S
            with self._changed:
                self._changed.wait_for(lambda: self._has_news or self._stopping.is_set(), wait_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        super().__exit__(kind, error, trace)
        self._log.close()


def stored_timers(spark: SparkSession, checkpoint: str, until_ms: int) -> Iterable[tuple[ClientId, Timer]]:
    """Reads the timers of the newest committed state up to a deadline. Raises SPARK_ERRORS."""
    spark.sparkContext.setJobGroup(_JOB_GROUP, "timers of the sessions", interruptOnCancel=True)
    rows = state_rows(spark, checkpoint).where(F.col("next_deadline_ms") <= until_ms)
    found = rows.select("client_id", "next_deadline_ms", (F.col("inflight") + F.col("queued")).alias("messages")).toArrow()
    columns = (column.to_pylist() for column in found.columns)
    for client_id, deadline_ms, messages in zip(*columns, strict=True):
        yield client_id, (deadline_ms, work_of(messages))
