"""TCP keep-alive probes, by which a vanished peer is noticed on a silent connection."""

import socket
from contextlib import suppress
from typing import Final

_PROBES: Final = 4
_FIRST_PROBE_FACTOR: Final = 4
"""The first probe comes after this many times the interval between two."""


def keep_alive(listening: socket.socket, idle_ms: int) -> None:
    """Makes the kernel end a newly accepted connection about twice idle_ms after the peer's last packet; 0 = no probes.

    The options are set on the listening socket, from which connections inherit them at no cost. Where the system does not have
    the options, its own times hold.
    """
    with suppress(OSError, AttributeError):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(idle_ms > 0))
        if not idle_ms:
            return
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, idle_ms // 1_000))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_ms // 1_000 // _FIRST_PROBE_FACTOR))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
