"""Limits the pause between two micro-batches, so that no session timer is late by more than a quarter of its length.

1. Of the deadlines that a micro-batch has set, the earliest is known (operator/earliest_deadline.py). No timer of it needs a
   micro-batch before that.
2. The length of a timer is the time from the end of its micro-batch to its deadline. The earliest may be late by a quarter of its
   length, and not at all if it is short.
3. The others are later. So after the earliest has fired, a pause is a quarter of the time since they were set.
4. Timers that may be late by the longest pause need nothing.
5. A timer that was due at the start of a micro-batch has fired in it.

Timers from before the start of the engine are not known here.
"""

from collections.abc import Callable
from typing import Final

from streaming.engine.operator.earliest_deadline import NEVER_MS

LATE_BY: Final = 0.25
"""How late a timer may be, as a share of its length."""
EXACT_MS: Final = 10_000
"""The length of a short timer, such as the expiry of a session that is kept for five seconds."""


class ShortTimers:
    """Timers of the sessions, by micro-batch. pop_earliest_ms: EarliestDeadline.pop_ms. now_ms: the clock of the sessions."""

    def __init__(self, pop_earliest_ms: Callable[[], int], now_ms: Callable[[], int], *, longest_pause_ms: int) -> None:
        self._pop_earliest_ms = pop_earliest_ms
        self._now_ms = now_ms
        self._longest_pause_ms = longest_pause_ms
        self._started_ms = now_ms()
        self._timers: list[tuple[int, int]] = []
        """When the timers of a micro-batch were set, and the earliest deadline of them."""

    def batch_ended(self) -> None:
        """Call it after each micro-batch."""
        due_ms, now_ms = self._pop_earliest_ms(), self._now_ms()
        self._timers = [
            (set_ms, earliest_ms)
            for set_ms, earliest_ms in self._timers
            if earliest_ms > self._started_ms or LATE_BY * (self._started_ms - set_ms) < self._longest_pause_ms
        ]
        if LATE_BY * (due_ms - now_ms) < self._longest_pause_ms:
            self._timers.append((now_ms, due_ms))

    def batch_starts(self) -> None:
        """Call it before each micro-batch."""
        self._started_ms = self._now_ms()

    def left_ms(self) -> int:
        """Returns how long the next micro-batch may wait for the sake of these timers; negative if it is late."""
        return min((self._latest_ms(*timer) for timer in self._timers), default=NEVER_MS) - self._now_ms()

    def _latest_ms(self, set_ms: int, due_ms: int) -> int:
        """Returns when the next micro-batch must start for the timers that one micro-batch has set."""
        if due_ms <= self._started_ms:  # rule 3
            return self._started_ms + int(LATE_BY * (self._started_ms - set_ms))
        length_ms = due_ms - set_ms
        return due_ms + (0 if length_ms <= EXACT_MS else int(LATE_BY * length_ms))
