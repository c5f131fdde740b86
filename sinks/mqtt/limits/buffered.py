"""Limits the bytes that all connections of a gateway buffer for their devices, and with them the memory of the process.

A connection counts with incomplete packets, messages that wait for the device, and bytes that were written and not read. Each may
have much, so that a busy device does not wait for micro-batches. While all together have more than half of the limit, memory is
scarce, and each may have a small part of that.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Final, Protocol

from sinks.mqtt.settings import DeviceLimits

_KEEP: Final = 3, 4
"""Connections are closed until this part of the limit is left, so that room is not made anew for each message."""


SCARCE_PART: Final = 32
"""While memory is scarce, a connection may have its limit divided by this."""


class BufferedConnection(Protocol):
    @property
    def held_bytes(self) -> int:
        """Bytes that the connection buffers now."""

    def free_memory(self) -> None:
        """Forgets what the session sends in any case, or ends the connection. The session loses nothing."""


class Buffered:
    """Frees the memory of the connections that buffer most while all together exceed the limit.

    A device reads what was written without any notice, so all connections are measured again before one is closed.

    Args:
        call_soon: Calls a function after the written bytes have been offered to the devices.

    Attributes:
        size_bytes: The sum as last measured; the true one may be lower.
    """

    def __init__(
        self, limits: DeviceLimits, call_soon: Callable[[Callable[[], None]], object] = lambda function: function()
    ) -> None:
        self.reconfigure(limits)
        self._call_soon = call_soon
        self._held: dict[BufferedConnection, int] = {}
        self._is_making_room = False
        self.size_bytes = 0

    def reconfigure(self, limits: DeviceLimits) -> None:
        """Applies another limit from the next byte on."""
        self._max_bytes = limits.max_total_buffered_bytes

    @property
    def is_scarce(self) -> bool:
        """Says that all connections together have more than half of the limit."""
        return 2 * self.size_bytes > self._max_bytes

    def update(self, connection: BufferedConnection, held_bytes: int) -> None:
        """Sets what a connection buffers now. 0 = it is forgotten."""
        before = self._held.get(connection, 0)
        if held_bytes == before:
            return
        if held_bytes:
            self._held[connection] = held_bytes
        else:
            del self._held[connection]
        self.size_bytes += held_bytes - before
        if self.size_bytes > self._max_bytes and not self._is_making_room:
            self._is_making_room = True
            self._call_soon(self._make_room)

    def measure(self) -> None:
        """Measures every connection again."""
        for connection in list(self._held):
            self.update(connection, connection.held_bytes)

    def _make_room(self) -> None:
        kept, of = _KEEP
        try:
            self.measure()
            for connection, _ in sorted(self._held.items(), key=itemgetter(1), reverse=True):
                if self.size_bytes * of <= self._max_bytes * kept:
                    break
                self.update(connection, 0)  # should it fail, it is not tried again
                connection.free_memory()
                self.update(connection, connection.held_bytes)
        finally:  # else one connection that fails would end the limit
            self._is_making_room = False
