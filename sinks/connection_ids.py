"""Numbers for connections: growing, unique without asking anybody, and telling whether a gateway or a bridge made them.

Gateways and bridges are two consumer groups that both read all of `inflight.commands`. Each has to say `ConnectionLost` about a
connection that its own kind once held and nobody holds now, and has to keep quiet about the connections of the other kind.

A number is microseconds since the epoch, shifted by ten bits: one bit says the kind, nine are random, so that two processes do
not make the same one. Numbers of both kinds grow together: a client may move from a broker to a gateway within one session.
"""

import random
import time
from enum import IntEnum
from typing import Final

_TAIL_BITS: Final = 10
_KIND_SHIFT: Final = _TAIL_BITS - 1


class ConnectionKind(IntEnum):
    GATEWAY = 0
    BRIDGE = 1


def kind_of(connection_id: int) -> ConnectionKind:
    return ConnectionKind(connection_id >> _KIND_SHIFT & 1)


class ConnectionIds:
    """A source of numbers; one for each process."""

    def __init__(self, kind: ConnectionKind) -> None:
        self._kind = kind
        self._last = 0

    def next(self) -> int:
        """Larger than any before, also than those of an earlier process on a machine with a sane clock."""
        fresh = time.time_ns() // 1_000 << _TAIL_BITS | self._kind << _KIND_SHIFT | random.getrandbits(_KIND_SHIFT)
        self._last = max(fresh, self._after_last())
        return self._last

    def _after_last(self) -> int:
        following = self._last + 1
        if kind_of(following) is self._kind:
            return following
        # It carried into the bit of the kind: on to the next number in which that bit is ours.
        return (following >> _KIND_SHIFT) + 1 << _KIND_SHIFT
