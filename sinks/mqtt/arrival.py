"""Asks the kernel about a connection (tcp(7), TCP_INFO, only on Linux).

A gateway that stood still finds what devices have sent meanwhile in its sockets, and the kernel knows when that came. The kernel
also knows how much a device has taken, while megabytes that it has not taken wait in the kernel's own buffer.
"""

import socket
import struct
from typing import Final, NamedTuple

_CLOSE_WAIT: Final = 8
"""TCP's state after the peer's FIN (include/net/tcp_states.h)."""
_TCP_INFO: Final = struct.Struct("=B51xI64xQ")
"""tcpi_state, tcpi_last_data_recv (milliseconds) and tcpi_bytes_acked of struct tcp_info (include/uapi/linux/tcp.h)."""


class Arrival(NamedTuple):
    """Holds what the kernel knows of a socket. The defaults hold where the system does not provide it.

    Attributes:
        waited_ms: Since the last byte came in.
        peer_is_gone: The device has closed its side.
        taken_bytes: Acknowledged by the device's system.
    """

    waited_ms: int = 0
    peer_is_gone: bool = False
    taken_bytes: int = 0


def arrival_of(connection: socket.socket | None) -> Arrival:
    """Call it after reading from the connection. Without Linux or a socket it returns the default."""
    option = getattr(socket, "TCP_INFO", None)
    if connection is None or option is None:
        return Arrival()
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size)
        state, waited_ms, taken_bytes = _TCP_INFO.unpack(info)
    except (OSError, struct.error):
        return Arrival()
    return Arrival(waited_ms, state == _CLOSE_WAIT, taken_bytes)
