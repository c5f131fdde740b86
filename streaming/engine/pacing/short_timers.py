"""Limits the pause between two micro-batches, so that no session timer is late by more than a 25th of its length.

1. The earliest deadline that a micro-batch has set is known (operator/earliest_deadline.py). It is enough: a timer with a later
   deadline may fire later, too.
2. The timer's length is at least the time that is left of it when the micro-batch has ended.
3. A timer that may be late by the longest pause needs nothing.
4. A timer that was due at the start of a micro-batch has fired in it.

Timers from before the start of the engine are not known here.
"""

from collections.abc import Callable
from typing import Final

LATE_BY: Final = 0.25
"""How late a timer may be whose deadline is not known, as a share of its length."""
KNOWN_LATE_BY: Final = 0.04
"""How late a timer may be whose deadline is known: a session with an expiry interval of 5 s is over after 5.2 s. It is not 0, so
that one micro-batch serves the timers of many sessions."""


class ShortTimers:
    """Timers of the sessions, by micro-batch. pop_earliest_ms: EarliestDeadline.pop_ms. now_ms: the clock of the sessions."""

    def __init__(self, pop_earliest_ms: Callable[[], int], now_ms: Callable[[], int], *, longest_pause_ms: int) -> None:
        self._pop_earliest_ms = pop_earliest_ms
        self._now_ms = now_ms
        self._longest_pause_ms = longest_pause_ms
        self._started_ms = now_ms()
        self._timers: list[tuple[int, int]] = []
        """When each timer is due, and until when it may be late."""

    def batch_ended(self) -> None:
        """Call it after each micro-batch."""
        due_ms, now_ms = self._pop_earliest_ms(), self._now_ms()
        late_ms = int(KNOWN_LATE_BY * max(0, due_ms - now_ms))
        self._timers = [timer for timer in self._timers if timer[0] > self._started_ms]
        if late_ms < self._longest_pause_ms:
            self._timers.append((due_ms, due_ms + late_ms))

    def batch_starts(self) -> None:
        """Call it before each micro-batch."""
        self._started_ms = self._now_ms()

    def left_ms(self) -> int:
        """Returns how long the next micro-batch may wait for the sake of these timers; negative if it is late."""
        return min((latest_ms for _, latest_ms in self._timers), default=1 << 62) - self._now_ms()
