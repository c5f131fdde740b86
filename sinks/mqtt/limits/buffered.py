"""What all connections of a gateway hold for their devices together: the memory of the process depends on it.

A connection counts with the bytes of packets whose end has not come, the messages that wait until the device takes them, and what
was written and the device has not taken.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Final, Protocol

from sinks.mqtt.limits.settings import DeviceLimits

_KEEP: Final = 3, 4
"""Beyond the limit there is room made until this part of it is left: not a little at every message."""


class Holder(Protocol):
    """A connection that holds something."""

    @property
    def held_bytes(self) -> int:
        """Now."""

    def give_up(self) -> None:
        """The connection ends, and holds nothing any more. Of the session nothing is lost by that."""


class Buffered:
    """size_bytes: how much it is at most. A device takes what was written without a word, so everybody is looked at again before
    anybody is given up; those that hold most are the first.

    call_soon: calls a function when what was written has been offered to the devices.
    """

    def __init__(
        self, limits: DeviceLimits, call_soon: Callable[[Callable[[], None]], object] = lambda function: function()
    ) -> None:
        self.take(limits)
        self._call_soon = call_soon
        self._held: dict[Holder, int] = {}
        self._is_making_room = False
        self.size_bytes = 0

    def take(self, limits: DeviceLimits) -> None:
        """From the next byte on."""
        self._max_bytes = limits.max_total_buffered_bytes

    def holds(self, holder: Holder, held_bytes: int) -> None:
        """A connection holds so much now. 0 = it is forgotten."""
        before = self._held.get(holder, 0)
        if held_bytes == before:
            return
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            del self._held[holder]
        self.size_bytes += held_bytes - before
        if self.size_bytes > self._max_bytes and not self._is_making_room:
            self._is_making_room = True
            self._call_soon(self._make_room)

    def look(self) -> None:
        """Ask everybody."""
        for holder in list(self._held):
            self.holds(holder, holder.held_bytes)

    def _make_room(self) -> None:
        kept, of = _KEEP
        try:
            self.look()
            for holder, _ in sorted(self._held.items(), key=itemgetter(1), reverse=True):
                if self.size_bytes * of <= self._max_bytes * kept:
                    break
                self.holds(holder, 0)
                holder.give_up()
        finally:  # else one connection that fails would end the limit
            self._is_making_room = False
