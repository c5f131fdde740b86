"""Opens the listening sockets of one address: IPv4 and IPv6 each have their own, so that a device's address has one form only."""

import errno
import socket
from contextlib import suppress
from typing import Final

BACKLOG: Final = 65_535
"""Connections that wait to be accepted: as many as the system allows (net.core.somaxconn). It silently drops any more, and their
devices try again after a second. With 1,024, ten thousand at once came in at a third of the rate."""
_ALL: Final = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))  # noqa: S104 # nosec B104 - only if configured
_LOCALHOST: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
"""The machine does not have this address, or no IPv6 at all."""
_TRIES: Final = 20
"""A free port of one address may be taken on the other."""


def listening_sockets(host: str, port: int, *, shares_port: bool) -> list[socket.socket]:
    """Listens on every address of a host, on the same port.

    `::` is every address of the machine, IPv4 included, and `localhost` is 127.0.0.1 and ::1. An address that the machine does
    not have is left out if there is another one. Raises OSError, with `filename` = host and port.
    """
    try:
        addresses = _addresses(host)
        for _ in range(_TRIES - 1):
            with suppress(_PortTaken):
                return _listen(addresses, port, shares_port=shares_port)
        return _listen(addresses, port, shares_port=shares_port)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"{host}:{port}") from error


class _PortTaken(OSError):
    """The free port that the first address has got is taken on another one."""


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if host in ("", _ALL[0][1]):
        return list(_ALL)
    if host == "localhost":  # whatever the machine's resolver knows of it
        return list(_LOCALHOST)
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _listen(addresses: list[tuple[socket.AddressFamily, str]], port: int, *, shares_port: bool) -> list[socket.socket]:
    listening: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            used_port = listening[0].getsockname()[1] if listening else port
            try:
                one = socket.create_server((address, used_port), family=family, backlog=BACKLOG, reuse_port=shares_port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and listening and not port:
                    raise _PortTaken(error.errno, error.strerror) from error
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            one.setblocking(False)
            listening.append(one)
    except OSError:
        for one in listening:
            one.close()
        raise
    if not listening and missing is not None:
        raise missing
    return listening
