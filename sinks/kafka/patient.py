"""Appends that nobody waits for go along with one that somebody waits for, or after a moment.

A request to Kafka costs this process and the broker nearly the same, whether it has one record or twenty. When little happens,
every record would have one of its own.
"""

import asyncio
from collections import deque
from typing import Final

from sinks.kafka.append import Confirmation, EventLog, Headers

PATIENCE_S: Final = 0.02
"""Shorter than any micro-batch, whose next one reads them."""
_MOST: Final = 64
"""So many do not wait: their request is full enough, and a connection may have only so many that are unconfirmed."""


class PatientAppends:
    """All appends of one user of a log. They reach it in the order in which they are given to this, whatever their hurry."""

    def __init__(self, log: EventLog, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._waiting: deque[tuple[str, bytes, bytes, Headers | None, Confirmation]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def append(
        self, topic: str, key: bytes, value: bytes, headers: Headers | None, done: Confirmation, *, has_time: bool = False
    ) -> None:
        """has_time: nobody waits for its confirmation. The rest is as in EventLog."""
        if not has_time:
            self.flush()
            self._log.append(topic, key, value, headers, done)
            return
        self._waiting.append((topic, key, value, headers, done))
        if len(self._waiting) >= _MOST:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(PATIENCE_S, self.flush)

    def flush(self) -> None:
        """Nothing waits any longer. Call it before the log is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._log.append(*self._waiting.popleft())
