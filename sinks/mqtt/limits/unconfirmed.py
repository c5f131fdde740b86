"""What all connections of a gateway have told Kafka and Kafka has not confirmed, and the answers that wait for that: the memory
of the process depends on it."""

from collections.abc import Callable
from typing import Final, Protocol

from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.limits.settings import DeviceLimits

_RESUME_BELOW: Final = 2
"""Reading starts again when both numbers have fallen to a half of their limits: not at every confirmation."""


class Reader(Protocol):
    """A connection that reads from its device."""

    def reading_changed(self) -> None:
        """`Unconfirmed.is_full` has changed, or may have."""


class Unconfirmed:
    """is_full: nobody reads from devices. records, size_bytes: how much it is. reached: called each time that it gets full.
    call_soon: calls a function when the work at hand is done. A record or a confirmation of one connection stops all, or lets
    them go on, and no connection is called while another one works.

    readers: all connections, in any order. They are called when reading stops, and in turn when it goes on: the first one is that
    which did not get to it the last time.
    """

    def __init__(
        self,
        limits: DeviceLimits,
        reached: Callable[[Limit], None] = lambda limit: None,
        call_soon: Callable[[Callable[[], None]], object] = lambda function: function(),
    ) -> None:
        self.take(limits)
        self._reached = reached
        self._call_soon = call_soon
        self.records = 0
        self.size_bytes = 0
        self.is_full = False
        self.readers: dict[Reader, None] = {}

    def take(self, limits: DeviceLimits) -> None:
        """From the next record on."""
        self._max_records = limits.max_total_unconfirmed_appends
        self._max_bytes = limits.max_total_unconfirmed_bytes

    def add(self, size_bytes: int) -> None:
        """One record more."""
        self.records += 1
        self.hold(size_bytes)

    def hold(self, size_bytes: int) -> None:
        """An answer that waits for a record."""
        self.size_bytes += size_bytes
        if not self.is_full and (self.records >= self._max_records or self.size_bytes >= self._max_bytes):
            self.is_full = True
            is_many = self.records >= self._max_records
            self._reached(Limit.TOTAL_UNCONFIRMED_APPENDS if is_many else Limit.TOTAL_UNCONFIRMED_BYTES)
            self._call_soon(self._stop)

    def settle(self, size_bytes: int) -> None:
        """One less: Kafka has it, or never will."""
        self.records -= 1
        self.let_go(size_bytes)

    def let_go(self, size_bytes: int) -> None:
        """An answer that is written, or never will be."""
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
                return  # what one of them had read before was enough
            del self.readers[reader]
            self.readers[reader] = None
            reader.reading_changed()
