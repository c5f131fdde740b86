"""Wakes the engine up for records that should not wait for its next micro-batch (state/records/wake_ups.py)."""

import asyncio
from typing import Final

from sinks.kafka.append import EventLog
from state.records.wake_ups import INTERVAL_MS, WAKE_UP

_INTERVAL_S: Final = INTERVAL_MS / 1_000


class WakeUps:
    """The wake-ups of one process. All methods are called on the loop.

    Args:
        topic: The topic of wake-ups; None = the process sends none.

    Attributes:
        arrive: Kafka has taken the last one. While it is False the engine must not count on them.
    """

    def __init__(self, log: EventLog, topic: str | None, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._topic = topic
        self._loop = loop
        self._is_pausing = False
        """One was sent less than the interval ago."""
        self._is_due = False
        self.arrive = False

    def send(self) -> None:
        """Sends a wake-up now, or at the end of the interval. Call it when the record that is urgent is in the log."""
        if self._is_pausing:
            self._is_due = True
        elif self._topic is not None:
            self._is_pausing = True
            self._loop.call_later(_INTERVAL_S, self._interval_ended)
            self._log.append(self._topic, WAKE_UP, WAKE_UP, None, self._confirmed)

    def prove(self) -> None:
        """Sends one if it is not known that they arrive."""
        if not self.arrive:
            self.send()

    def _interval_ended(self) -> None:
        self._is_pausing = False
        if self._is_due:
            self._is_due = False
            self.send()

    def _confirmed(self, error: Exception | None) -> None:
        self.arrive = error is None
