"""An address on which a gateway listens with TLS, WebSocket or behind a proxy.

For each socket, if there is a place for it: 1. the PROXY header, if it comes from a proxy; 2. TLS; 3. the protocol. The first two
take no longer than `timeout_s`, or the socket is closed. A new certificate is for sockets that come from then on; those that are
open keep theirs.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.watched_files import WatchedFiles
from sinks.mqtt.limits.connection_counts import ConnectionCounts, Place
from sinks.mqtt.listeners.proxy_protocol import START_BYTES, ProxyHeaderInvalid, read_address, read_start
from sinks.mqtt.listeners.refused_sockets import RefusedSockets, Step
from sinks.mqtt.listeners.settings import ListenerSettings
from sinks.mqtt.listeners.tls import tls_context

_log: Final = structlog.get_logger(__name__)
BACKLOG: Final = 65_535
"""Connections that wait to be accepted: as many as the system allows (net.core.somaxconn). It drops one more without a word, and
that device tries again after a second: with 1,024, ten thousand at once came in at a third of the rate."""
_PAUSE_S: Final = 0.5
"""After the system has refused a socket: mostly because this process has too many open files."""


class Listener:
    """new_protocol: of a socket, from what it counts as in `counts`, which it leaves at its end. socket: the one that listens.

    Raises UnusableFile for its files, OSError for its address.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        new_protocol: Callable[[Place], asyncio.Protocol],
        refused: RefusedSockets,
        counts: ConnectionCounts,
        *,
        timeout_s: float,
        shares_port: bool = False,
    ) -> None:
        self._settings = settings
        self._new_protocol = new_protocol
        self._refused = refused
        self._counts = counts
        self._timeout_s = timeout_s
        self._proxies = tuple(ipaddress.ip_network(proxy, strict=False) for proxy in settings.proxies)
        self._files = WatchedFiles(settings.file_names)
        self._context = tls_context(settings)
        self.socket = _listen(settings.host, settings.port, shares_port=shares_port)
        self._opening: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    def look_after(self, *, read_files: bool = False) -> None:
        """Call it every second. read_files: whether they have changed or not; what cannot be read leaves in force what was."""
        if self._files.changed() or read_files:
            try:
                self._context = tls_context(self._settings)
            except UnusableFile as error:
                _log.error("certificate_not_taken", problem=str(error), action="the one before it stays in force")
            else:
                _log.info("certificate_read", host=self._settings.host, port=self._settings.port)

    def close(self) -> None:
        """Take nobody in any more. Protocols that exist stay."""
        self._accepting.cancel()
        for task in self._opening:
            task.cancel()
        self.socket.close()

    # --- one socket after the other -------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self.socket)
            except OSError as error:
                _log.error("cannot_accept", error=str(error), action="raise the limit of open files (ulimit -n)")
                await asyncio.sleep(_PAUSE_S)
                continue
            place = self._counts.enter("" if self._proxies else peer[0])
            if place is None:
                accepted.close()
                continue
            task = loop.create_task(self._open(accepted, peer[0], place))
            place.turn_away = task.cancel
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket, peer: str, place: Place) -> None:
        """Counts a socket that does not get as far as MQTT."""
        loop = asyncio.get_running_loop()
        step = Step.PROXY_HEADER
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._timeout_s):
                if self._proxies:
                    address = await self._read_header(accepted, peer)
                    if not self._counts.identify(place, address or peer):
                        self._give_up(accepted, place)
                        return
                step = Step.TLS
                await loop.connect_accepted_socket(
                    lambda: self._new_protocol(place),
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=None if self._context is None else self._timeout_s,
                )
        except (OSError, ProxyHeaderInvalid, EOFError, TimeoutError, ssl.SSLError) as error:
            self._give_up(accepted, place)
            self._refused.refused(step, peer, str(error) or type(error).__name__)
        except BaseException:
            self._give_up(accepted, place)
            raise

    def _give_up(self, accepted: socket.socket, place: Place) -> None:
        accepted.close()
        self._counts.leave(place)

    async def _read_header(self, accepted: socket.socket, peer: str) -> str | None:
        """Not a byte more than the header. Raises ProxyHeaderInvalid, EOFError."""
        if not any(ipaddress.ip_address(peer) in network for network in self._proxies):
            raise ProxyHeaderInvalid("the address is not one of `proxies`")
        start = read_start(await _read_exactly(accepted, START_BYTES))
        return read_address(start, await _read_exactly(accepted, start.body_bytes))


async def _read_exactly(accepted: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        received = await loop.sock_recv(accepted, size - len(data))
        if not received:
            raise EOFError("closed within the PROXY header")
        data += received
    return data


def _listen(host: str, port: int, *, shares_port: bool) -> socket.socket:
    """On the first of the addresses that a name has. Raises OSError, with `filename` = host and port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG, reuse_port=shares_port)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"{host}:{port}") from error
    listening.setblocking(False)
    return listening
