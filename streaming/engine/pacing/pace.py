"""When the next micro-batch starts: at once while there is work, ever later while there is none, and never later than a record.

Spark's trigger is a fixed interval, and with time-outs it runs a micro-batch in each of them, data or not: an engine with a short
interval burns two thirds of a core for nothing, and one with a long interval lets the first message wait. So the pause between
two micro-batches is measured here instead:

1. micro-batches start no more often than the trigger interval says, as they do without this module;
2. after one that did nothing, the engine waits beyond that until a record is appended (arrivals.py);
3. but no longer than a quarter of the time since something happened last, because timers of sessions run only in micro-batches:
   a timer fires late by at most a quarter of its length; and
4. no longer than `idle_trigger_interval`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

LATE_BY: Final = 0.25
"""How late a timer may be, as a share of its length."""

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition: the offset of the first record that no micro-batch has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """What is known of the micro-batch that has just ended. did_something: it took records, or a session was called."""

    did_something: bool
    end: Offsets


class Arrivals(Protocol):
    """Knows when a record is appended to a topic."""

    def wait(self, end: Offsets, timeout_s: float) -> None:
        """Returns when a record is there at or after one of the offsets, at the latest after `timeout_s`. Never raises."""

    def rest(self, timeout_s: float) -> None:
        """Returns after `timeout_s`, whatever arrives."""

    def close(self) -> None:
        """Ends a `wait` or `rest` of another thread; later ones return at once."""


class Pace:
    """Called by the query's own thread between two micro-batches. Times are those of a monotonic clock, in milliseconds."""

    def __init__(self, arrivals: Arrivals, *, trigger_interval_ms: int, idle_trigger_interval_ms: int, now_ms: int) -> None:
        self._arrivals = arrivals
        self._trigger_interval_ms = trigger_interval_ms
        self._idle_trigger_interval_ms = idle_trigger_interval_ms
        self._active_ms = now_ms

    def pause(self, batch: LastBatch, due_ms: int, now: Callable[[], int]) -> None:
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
