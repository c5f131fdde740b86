"""TCP's own probes: a peer that vanished is noticed although neither side has anything to say."""

import socket
from contextlib import suppress
from typing import Final

_PROBES: Final = 4
_FIRST_OF_PROBES: Final = 4
"""The first probe comes after so many times the pause between two."""


def keep_alive(connection: socket.socket | None, idle_ms: int) -> None:
    """Ask the kernel to end a connection about twice idle_ms after the last sign of life. 0 = leave it alone. Where the system
    does not have the options, its own times hold."""
    if connection is None or not idle_ms:
        return
    with suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, idle_ms // 1_000))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_ms // 1_000 // _FIRST_OF_PROBES))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
