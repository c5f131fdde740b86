"""Limits the records of all connections that Kafka has not confirmed, with the answers that wait for them.

The memory of the process depends on both.
"""

from collections.abc import Callable
from typing import Final, Protocol

from sinks.mqtt.settings import DeviceLimits, Limit

_RESUME_BELOW: Final = 2
"""Reading resumes when both numbers are at half of their limits, so that it does not change with every confirmation."""


class PausableReader(Protocol):
    """A connection that reads from its device."""

    def reading_changed(self) -> None:
        """`Unconfirmed.is_full` has changed, or may have."""


class Unconfirmed:
    """Counts records and bytes. While `is_full`, no connection reads from its device.

    Args:
        reached: Called each time that a limit is reached.
        call_soon: Calls a function after the current work, so that no connection is called while another one works.

    Attributes:
        readers: All connections. They are called when reading stops, and in turn when it resumes: first those that were not
            reached the last time.
    """

    def __init__(
        self,
        limits: DeviceLimits,
        reached: Callable[[Limit], None] = lambda limit: None,
        call_soon: Callable[[Callable[[], None]], object] = lambda function: function(),
    ) -> None:
        self.reconfigure(limits)
        self._reached = reached
        self._call_soon = call_soon
        self.records = 0
        self.size_bytes = 0
        self.is_full = False
        self.readers: dict[PausableReader, None] = {}

    def reconfigure(self, limits: DeviceLimits) -> None:
        """Applies other limits from the next record on."""
        self._max_records = limits.max_total_unconfirmed_appends
        self._max_bytes = limits.max_total_unconfirmed_bytes

    def add(self, size_bytes: int) -> None:
        """Counts a record that was given to Kafka."""
        self.records += 1
        self.hold(size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Counts an answer that waits for a record."""
        self.size_bytes += size_bytes
        if not self.is_full and (self.records >= self._max_records or self.size_bytes >= self._max_bytes):
            self.is_full = True
            is_many = self.records >= self._max_records
            self._reached(Limit.TOTAL_UNCONFIRMED_APPENDS if is_many else Limit.TOTAL_UNCONFIRMED_BYTES)
            self._call_soon(self._stop)

    def settle(self, size_bytes: int) -> None:
        """Removes a record that Kafka has confirmed or never will."""
        self.records -= 1
        self.release(size_bytes)

    def release(self, size_bytes: int) -> None:
        """Removes an answer that was written or never will be."""
        self.size_bytes -= size_bytes
        if (
            self.is_full
            and self.records * _RESUME_BELOW <= self._max_records
            and self.size_bytes * _RESUME_BELOW <= self._max_bytes
        ):
            self.is_full = False
            self._call_soon(self._resume)

    def _stop(self) -> None:
        if self.is_full:
            for reader in list(self.readers):
                reader.reading_changed()

    def _resume(self) -> None:
        for reader in list(self.readers):
            if self.is_full:
                return  # what readers before this one had buffered filled the limit again
            del self.readers[reader]
            self.readers[reader] = None
            reader.reading_changed()
