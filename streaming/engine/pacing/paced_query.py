"""Gives a running query its pace, the bounds of its micro-batches and its time, and stops it between two micro-batches.

Spark's trigger is a fixed interval: a short one asks Kafka for new records all the time, a long one delays the first message. So
the pause is decided here instead:

1. Micro-batches start no more often than the trigger interval says.
2. Spark runs no micro-batch without records. After a trigger that ran none, the engine waits beyond that until a record is
   appended (arrivals.py), or for `idle_trigger_interval`. Timers are records, too (session_timers.py).
3. Where it is known what is urgent (wake_ups.py), other records wait until the oldest is `lazy_ms` old (docs/decisions/0045), or
   up to three times as old if micro-batches would take more than a quarter of the time (docs/decisions/0058);
4. but no longer than a quarter of the time since something urgent was heard of. Gateways join wake-ups that follow each other.
5. A burst that ends the wait of rule 2 or 3, or is under way when that is over, comes in before the micro-batch starts
   (intake/burst.py).
"""

import enum
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from streaming.engine.intake.bounded_intake import BoundedIntake
from streaming.engine.operator.reported_deadlines import Reports
from streaming.engine.pacing.arrivals import Arrivals
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.session_timers import SessionTimers
from streaming.engine.pacing.wake_ups import Urgency
from streaming.spark_internals.micro_batches import CommittedBatch, ReadLimits, last_committed_batch, set_batch_time, set_pause

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.01
_CLOSED_POLL_S: Final = 0.25
_LONGEST_HOLD_S: Final = 60.0
_SHARE: Final = 0.25
"""See rules 3 and 4."""
_MOST_LAZY: Final = 3
"""See rule 3."""


class PauseEnd(enum.Enum):
    """The end of a pause between two micro-batches, beyond the trigger interval."""

    NO_PAUSE = enum.auto()
    URGENT = enum.auto()
    """Something urgent has come, or everything counts as urgent."""
    OLD = enum.auto()
    """The records that nobody waits for have waited long enough."""


class Pace:
    """Pauses the query's thread between two micro-batches. Times are those of a monotonic clock, in milliseconds.

    Args:
        urgency: None = every record is urgent.
        lazy_ms: How long other records may wait.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        trigger_interval_ms: int,
        idle_trigger_interval_ms: int,
        now_ms: int,
        urgency: Urgency | None = None,
        lazy_ms: int = 0,
    ) -> None:
        self._arrivals = arrivals
        self._urgency = urgency
        self._lazy_ms = lazy_ms
        self._trigger_interval_ms = trigger_interval_ms
        self._idle_trigger_interval_ms = idle_trigger_interval_ms
        self._started_ms = now_ms
        self._batch_id = -1

    def pause(self, batch: CommittedBatch, due_ms: int, now: Callable[[], int]) -> PauseEnd:
        """Returns when the next trigger is to start.

        Args:
            batch: The newest micro-batch.
            due_ms: When Spark's trigger would start.
        """
        ended, took_ms = PauseEnd.NO_PAUSE, now() - self._started_ms
        is_new, self._batch_id = batch.batch_id != self._batch_id, batch.batch_id
        if due_ms > now():
            self._arrivals.rest((due_ms - now()) / 1_000)
        if is_new and batch.did_something:
            if not batch.left:
                began_ms = now()
                lazy_ms = max(self._lazy_ms, min(int(took_ms / _SHARE), _MOST_LAZY * self._lazy_ms))
                last = self._be_lazy(self._started_ms + lazy_ms, now)
                ended = last if now() > began_ms else PauseEnd.NO_PAUSE
        else:
            latest_ms = now() + max(self._trigger_interval_ms, self._idle_trigger_interval_ms)
            self._arrivals.wait(batch.end, (latest_ms - now()) / 1_000)
            ended = self._be_lazy(now() + self._lazy_ms, now)
        self._started_ms = now()
        return ended

    def _be_lazy(self, until_ms: int, now: Callable[[], int]) -> PauseEnd:
        """Waits for something urgent; what came since the last micro-batch started may have missed it."""
        urgency = self._urgency
        if urgency is None or not self._lazy_ms or not urgency.is_known:
            return PauseEnd.URGENT
        now_ms = now()
        quiet_ms = max(int((now_ms - urgency.since_ms) * _SHARE), self._trigger_interval_ms)
        until_ms = min(until_ms, now_ms + quiet_ms)
        while not self._arrivals.is_closed and (left_ms := until_ms - now()) > 0:
            if urgency.wait(self._started_ms, min(left_ms / 1_000, _CLOSED_POLL_S)):
                return PauseEnd.URGENT
        return PauseEnd.OLD


class PacedQuery:
    """A query under our control from `start` on; `stop` or the end of a `with` stops it.

    Intake, clock, urgency and timers outlive the query, for the next one of the same engine.

    Args:
        kafka_options: For kafka-python, bootstrap servers included.
        intake: None = the limits of the start stay.
        clock: None = the system's.
        urgency: None = every record is urgent.
        timers: None = nobody calls sessions whose deadline has come.
        pop_reports: `ReportedDeadlines.pop` of this query.
    """

    def __init__(
        self,
        query: StreamingQuery,
        kafka_options: Mapping[str, Any],
        *,
        trigger_interval_ms: int,
        idle_trigger_interval_ms: int,
        intake: BoundedIntake | None = None,
        clock: EngineClock | None = None,
        urgency: Urgency | None = None,
        lazy_ms: int = 0,
        timers: SessionTimers | None = None,
        pop_reports: Callable[[], Reports] = dict,
    ) -> None:
        self._query = query
        self._trigger_interval_ms = trigger_interval_ms
        self._idle_trigger_interval_ms = idle_trigger_interval_ms
        self._intake = intake
        self._clock = clock
        self._urgency = urgency
        self._lazy_ms = lazy_ms
        self._timers = timers
        self._pop_reports = pop_reports
        self._arrivals = Arrivals(kafka_options)
        self._pace: Pace | None = None
        self._limits: ReadLimits | None = None
        self._is_paced = False
        """True if the query calls `pause` between its micro-batches."""
        self._batch_ended = threading.Event()
        self._is_holding = False
        """Set by the stopping thread: the query's thread may not start another micro-batch."""
        self._is_held = threading.Event()
        self._released = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(patience_s=0)

    def start(self) -> None:
        """Takes control. Call it after the query's first micro-batch."""
        if self._clock is not None and (reason := set_batch_time(self._query, self._clock.now_ms)):
            _log.warning("no_clock", reason=reason, action="sessions follow the jumps of the wall clock")
        if self._idle_trigger_interval_ms > self._trigger_interval_ms:
            self._pace = Pace(
                self._arrivals,
                trigger_interval_ms=self._trigger_interval_ms,
                idle_trigger_interval_ms=self._idle_trigger_interval_ms,
                now_ms=_now_ms(),
                urgency=self._urgency,
                lazy_ms=self._lazy_ms,
            )
        if self._intake is not None:
            try:
                self._limits = ReadLimits(self._query)
            except Exception as error:  # noqa: BLE001 - another Spark
                action = "micro-batches are small: see engine.max_bytes_per_trigger"
                _log.warning("no_read_limits", reason=repr(error), action=action)
        if self._pace is None and self._limits is None:
            return
        self._is_paced = True
        if (reason := set_pause(self._query, self.pause)) is not None:
            self._is_paced = False
            action = "micro-batches follow engine.trigger_interval_ms, and are small"
            _log.warning("no_idle_pace", reason=reason, action=action)

    def pause(self, due_in_ms: int) -> None:
        """Waits as long as the pace says, then sets the limits of the next micro-batch. Spark calls it on the query's thread.

        Never raises: an exception would end the query.

        Args:
            due_in_ms: Milliseconds until Spark's trigger would start the next micro-batch.
        """
        self._batch_ended.set()
        try:
            # A wall clock that was set back meanwhile puts the next trigger hours away.
            wait_ms = min(due_in_ms, self._trigger_interval_ms)
            batch, ended = last_committed_batch(self._query), PauseEnd.NO_PAUSE
            if self._timers is not None:
                self._timers.rests(batch.batch_id, self._pop_reports())
            if self._pace is not None:
                ended = self._pace.pause(batch, _now_ms() + wait_ms, _now_ms)
            elif wait_ms > 0:
                time.sleep(wait_ms / 1_000)
            if self._intake is not None and self._limits is not None:
                looks = ended is not PauseEnd.NO_PAUSE and not self._is_holding
                is_burst = looks and self._intake.await_burst(
                    batch.topics, self._arrivals.rest, is_urgent=ended is PauseEnd.URGENT
                )
                self._intake.adjust(batch.topics, self._limits.set, is_burst=is_burst)
        except Exception as error:  # noqa: BLE001 - the query must not die of its pause
            _log.warning("pause_failed", error=repr(error), action="the next micro-batch starts now")
        if self._timers is not None:
            self._timers.works()
        if self._is_holding:
            self._is_held.set()
            self._released.wait(_LONGEST_HOLD_S)

    def may_have_news(self) -> bool:
        """Returns False if no micro-batch has ended since the last call."""
        ended = self._batch_ended.is_set()
        self._batch_ended.clear()
        return ended or not self._is_paced

    def stop(self, *, patience_s: float) -> None:
        """Stops the query when the running micro-batch has ended, or in the middle of it after `patience_s`.

        The next start executes an interrupted micro-batch again. A query that has ended may be stopped again.
        """
        deadline = time.monotonic() + patience_s
        self._is_holding = True
        self._arrivals.close()
        while time.monotonic() < deadline and self._query.isActive and self._is_busy():
            time.sleep(_POLL_S)
        # The query's thread is held in `pause`, and the query's `stop` waits for that thread. So it is released only when the
        # query is marked as stopped and cannot begin another micro-batch.
        stopping = threading.Thread(target=self._query.stop, name="inflight-stop", daemon=True)
        stopping.start()
        while stopping.is_alive() and self._query.isActive:
            time.sleep(_POLL_S)
        self._released.set()
        stopping.join()

    def _is_busy(self) -> bool:
        # Without our pause this is a guess: the next micro-batch may begin at any moment.
        return not self._is_held.is_set() if self._is_paced else bool(self._query.status["isTriggerActive"])


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
