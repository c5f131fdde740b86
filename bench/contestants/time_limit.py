"""Bounds steps that wait for other processes."""

import contextlib
import signal
import time
from collections.abc import Iterator


class TimeLimit:
    """Runs from its creation. seconds: for all steps together."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline_s = time.monotonic() + seconds

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Raises TimeoutError in the block when no time is left, whatever the block waits for. Only in the main thread."""

        def end(*_: object) -> None:
            raise TimeoutError(f"the limit of {self._seconds / 60:g} minutes (--minutes) is over")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self._deadline_s - time.monotonic()))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
