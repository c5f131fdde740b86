"""Finds out when the kernel received what was just read, and whether the device has closed its side since.

A gateway that stood still finds what devices have sent meanwhile in its sockets. Linux knows when that came (tcp(7), TCP_INFO).
"""

import socket
import struct
from typing import Final, NamedTuple

_CLOSE_WAIT: Final = 8
"""TCP's state after the peer's FIN (include/net/tcp_states.h)."""
_LAST_DATA_RECV: Final = struct.Struct("=B51xI")
"""tcpi_state and tcpi_last_data_recv of struct tcp_info (include/uapi/linux/tcp.h); the second in milliseconds."""


class Arrival(NamedTuple):
    """waited_ms: since the last byte came in; 0 where the system does not provide it."""

    waited_ms: int = 0
    peer_is_gone: bool = False


def arrival_of(connection: socket.socket | None) -> Arrival:
    """Call it after reading from the connection. Without Linux or a socket it returns the default."""
    option = getattr(socket, "TCP_INFO", None)
    if connection is None or option is None:
        return Arrival()
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, option, _LAST_DATA_RECV.size)
        state, waited_ms = _LAST_DATA_RECV.unpack(info)
    except (OSError, struct.error):
        return Arrival()
    return Arrival(waited_ms, state == _CLOSE_WAIT)
