"""Numbers for connections: growing, unique without asking anybody, and telling whether a gateway or a bridge made them.

Gateways and bridges are two consumer groups that both read all of `inflight.commands`. Each has to say `ConnectionLost` about a
connection that its own kind once held and nobody holds now, and has to keep quiet about the connections of the other kind.

A number is microseconds since the epoch, shifted by ten bits: one bit says the kind, nine are random, so that two processes do
not make the same one. Numbers of both kinds grow together: a client may move from a broker to a gateway within one session.

The order of the numbers is the order of a client's connections, and no clock may decide it: they are a hybrid logical clock.
A session accepts a connection only with a number above the newest that it knows. Otherwise it tells the newest one, and whoever
made the number stays above it from then on (`rise_above`), whatever its own clock says.
"""

import random
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final

_TAIL_BITS: Final = 10
_KIND_SHIFT: Final = _TAIL_BITS - 1
_LATEST_US: Final = 1 << 52
"""The year 2112. A clock beyond it counts as this, so that this number and those that follow fit into 63 bits."""


class ConnectionKind(IntEnum):
    GATEWAY = 0
    BRIDGE = 1


def kind_of(connection_id: int) -> ConnectionKind:
    return ConnectionKind(connection_id >> _KIND_SHIFT & 1)


class ConnectionIds:
    """A source of connection ids; one for each process.

    Args:
        clock_ns: Returns nanoseconds since the epoch. The clock may be wrong, and may go back.
    """

    def __init__(self, kind: ConnectionKind, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._kind = kind
        self._clock_ns = clock_ns
        self._ahead_us = 0
        """Microseconds by which sessions are ahead of the clock, as far as they have said so."""
        self._last_us = 0

    def next(self) -> int:
        """Larger than any before, and than any that `rise_above` was told."""
        self._last_us = max(self._now_us(), self._last_us + 1)
        return self._number(self._last_us)

    def of_the_past(self, ago_ms: int) -> int:
        """Returns a number for a connection that is so old already.

        It is below those made since, by a clock that is right, and may have been made before. A session that knows a later
        connection, or one by another clock, refuses it.
        """
        return self._number(max(0, self._now_us() - 1_000 * ago_ms))

    def rise_above(self, connection_id: int) -> None:
        """A session has accepted this one, so that only larger ones can follow: also those of connections that come from now on
        and get their numbers late."""
        told_us = connection_id >> _TAIL_BITS
        self._last_us = max(self._last_us, told_us)
        self._ahead_us = max(self._ahead_us, told_us + 1 - self._clock_us())

    def _now_us(self) -> int:
        return min(self._clock_us() + self._ahead_us, _LATEST_US)

    def _clock_us(self) -> int:
        return min(self._clock_ns() // 1_000, _LATEST_US)

    def _number(self, at_us: int) -> int:
        others = random.getrandbits(_KIND_SHIFT)  # nobody gains by guessing it  # nosec B311
        return at_us << _TAIL_BITS | self._kind << _KIND_SHIFT | others
