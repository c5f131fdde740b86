"""Gives the sessions the wall clock's time without its jumps; it never goes back.

Every micro-batch has a time, by which sessions expire and messages are sent again. A wall clock that is set forward by hours
would end all sessions at once; one that is set back would stop their timers for as long. So the time of the sessions passes like
the machine's clock without jumps (CLOCK_BOOTTIME, which continues while the machine sleeps), and follows the wall clock:

1. It equals the wall clock while the two agree, and follows it at once by up to `STEP_MS`.
2. When the wall clock is further ahead, time passes at twice its speed until it has caught up: in t milliseconds it passes by at
   most 2 t + STEP_MS.
3. When the wall clock is behind, time passes at half its speed.

A restarted engine begins with the wall clock's time, or with that of the newest micro-batch if it is later: sessions and matchers
take a publication of an earlier micro-batch for a copy (state/outbound/routing/marks.py).
"""

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

STEP_MS: Final = 10_000
"""Time servers correct clocks by as much occasionally."""

_log: Final = structlog.get_logger(__name__)


def wall_ms() -> int:
    """Returns milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Returns milliseconds of a clock that never jumps, and on Linux continues while the machine is suspended."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


class EngineClock:
    """The clock of the sessions. Threads may share it.

    Args:
        from_ms: The earliest time, in ms since 1970.
        wall_ms, elapsed_ms: The machine's clocks, in ms.
    """

    def __init__(
        self, from_ms: int = 0, *, wall_ms: Callable[[], int] = wall_ms, elapsed_ms: Callable[[], int] = elapsed_ms
    ) -> None:
        self._wall_ms = wall_ms
        self._elapsed_ms = elapsed_ms
        self._lock = threading.Lock()
        self._last_wall_ms = wall_ms()
        self._now_ms = max(from_ms, self._last_wall_ms)
        self._last_elapsed_ms = elapsed_ms()
        self._step_ms = STEP_MS
        self._follows = False

    def now_ms(self) -> int:
        """Returns milliseconds since 1970, never less than at the last call."""
        with self._lock:
            wall, elapsed = self._wall_ms(), self._elapsed_ms()
            passed = max(0, elapsed - self._last_elapsed_ms)
            jump = wall - self._last_wall_ms - passed
            self._last_wall_ms, self._last_elapsed_ms = wall, elapsed
            ahead = wall - self._now_ms - passed
            may_step = self._step_ms + passed
            correction = min(ahead, may_step) if ahead >= 0 else -min(-ahead, (passed + 1) // 2)
            self._step_ms = min(STEP_MS, may_step - max(0, correction))
            self._now_ms += passed + correction
            self._report(jump, ahead - correction)
            return self._now_ms

    def _report(self, jump_ms: int, left_ms: int) -> None:
        if abs(jump_ms) > STEP_MS:
            self._follows = True
            speed = "twice" if left_ms > 0 else "half"
            _log.warning(
                "clock_jumped",
                by_s=round(jump_ms / 1_000),
                away_s=round(left_ms / 1_000),
                action=f"the time of the sessions follows at {speed} its speed: set the clock right; if it is right now, "
                "nothing has to be done, and a restart of the engine takes a later time at once",
            )
        elif self._follows and not left_ms:
            self._follows = False
            _log.info("clock_caught_up")
