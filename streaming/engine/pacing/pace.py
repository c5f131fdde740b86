"""Decides when the next micro-batch starts: at once while there is work, otherwise after a pause that a new record ends.

Spark's trigger is a fixed interval, and with time-outs Spark runs a micro-batch in each of them even without data. A short
interval uses two thirds of a core on an idle engine; a long one delays the first message. So the pause is decided here instead:

1. Micro-batches start no more often than the trigger interval says.
2. After a micro-batch that did nothing, the engine waits beyond that until a record is appended (arrivals.py);
3. but no longer than a quarter of the time since something last happened, because session timers fire only in micro-batches: a
   timer is late by at most a quarter of its length; and
4. no longer than `idle_trigger_interval`.
"""

from collections.abc import Callable
from typing import Final

from streaming.engine.pacing.arrivals import Arrivals
from streaming.spark_internals.micro_batches import CommittedBatch

LATE_BY: Final = 0.25
"""How late a timer may be, as a share of its length."""


class Pace:
    """Pauses the query's thread between two micro-batches. Times are those of a monotonic clock, in milliseconds."""

    def __init__(self, arrivals: Arrivals, *, trigger_interval_ms: int, idle_trigger_interval_ms: int, now_ms: int) -> None:
        self._arrivals = arrivals
        self._trigger_interval_ms = trigger_interval_ms
        self._idle_trigger_interval_ms = idle_trigger_interval_ms
        self._active_ms = now_ms

    def pause(self, batch: CommittedBatch, due_ms: int, now: Callable[[], int]) -> None:
        """Returns when the next micro-batch is to start. due_ms: when Spark's trigger would start it."""
        now_ms = now()
        if batch.did_something:
            self._active_ms = now_ms
        quiet_ms = int((now_ms - self._active_ms) * LATE_BY)
        latest_ms = now_ms + min(max(quiet_ms, self._trigger_interval_ms), self._idle_trigger_interval_ms)
        if due_ms > now_ms:
            self._arrivals.rest((due_ms - now_ms) / 1_000)
        if not batch.did_something and (left_ms := latest_ms - now()) > 0:
            self._arrivals.wait(batch.end, left_ms / 1_000)
