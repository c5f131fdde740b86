"""TCP's own probes: a peer that vanished is noticed although neither side has anything to say."""

import socket
from contextlib import suppress
from typing import Final

_PROBES: Final = 4
_FIRST_OF_PROBES: Final = 4
"""The first probe comes after so many times the pause between two."""


def keep_alive(listening: socket.socket, idle_ms: int) -> None:
    """Ask the kernel to end each connection that is accepted from now on about twice idle_ms after the last sign of life; 0 = it
    does not look. Where the system does not have the options, its own times hold.

    Connections inherit it from the socket that listens, where it costs nothing for each of them.
    """
    with suppress(OSError, AttributeError):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(idle_ms > 0))
        if not idle_ms:
            return
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, idle_ms // 1_000))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_ms // 1_000 // _FIRST_OF_PROBES))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
