"""Tells a start that is slow from one that hangs: a start has a time-out that grows for as long as the process works."""

import time
from collections.abc import Callable
from typing import Final

from streaming.engine.watching.processes import AT_WORK, processor_seconds, runnable_seconds

PATIENCE_S: Final = 180.0


class StartWatch:
    """Watches a process until it is ready.

    Args:
        pid: The process. What its descendants do counts too.
        patience_s: A process that does nothing for this long hangs.
        monotonic_s: Seconds, never going back.
    """

    def __init__(self, pid: int, *, patience_s: float = PATIENCE_S, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._patience_s = patience_s
        self._monotonic_s = monotonic_s
        self._began_s = self._since_s = monotonic_s()
        self._seen = (0.0, 0.0)

    @property
    def waited_s(self) -> float:
        return self._monotonic_s() - self._began_s

    def is_stuck(self) -> bool | None:
        """Returns whether it has hung since the last answer; None = it is too early for an answer."""
        passed_s = self._monotonic_s() - self._since_s
        if passed_s < self._patience_s:
            return None
        self._since_s += passed_s
        # Seconds of threads that have ended are in the first number only, and seconds of waiting in the second one only.
        before, self._seen = self._seen, (processor_seconds(self._pid), runnable_seconds(self._pid))
        return all(now_s - then_s < AT_WORK * passed_s for then_s, now_s in zip(before, self._seen, strict=True))
