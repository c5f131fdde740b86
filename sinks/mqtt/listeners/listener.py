"""Listens on one address with TLS, WebSocket or behind a proxy.

Each socket that gets a slot goes through 1. the PROXY header, behind a proxy; 2. TLS; 3. the protocol. It is closed if the first
two take longer than `timeout_s`. A new certificate is used for new sockets only.
"""

import asyncio
import errno
import ipaddress
import os
import resource
import socket
import ssl
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Final

import structlog

from sinks.log_throttle import LogThrottle, RefusalLog
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.watched_files import WatchedFiles
from sinks.mqtt.limits.connection_counts import ConnectionCounts, ConnectionSlot
from sinks.mqtt.limits.tcp_keepalive import keep_alive
from sinks.mqtt.listeners.listening import listening_sockets
from sinks.mqtt.listeners.proxy_protocol import ProxyHeaderInvalid, read_header
from sinks.mqtt.listeners.tls import tls_context
from sinks.mqtt.settings import ListenerSettings

_log: Final = structlog.get_logger(__name__)
_PAUSE_S: Final = 0.5
"""After an error of accept, mostly because this process has too many open files."""


class ListenerStep(StrEnum):
    """The steps before MQTT, in their order: a label of the metric."""

    PROXY_HEADER = "PROXY header"
    TLS = "TLS"
    WEBSOCKET = "WebSocket"


class AcceptFailures:
    """Says once a minute that sockets cannot be accepted, mostly because this process has too many open files."""

    def __init__(self) -> None:
        self._log = LogThrottle(_log.error, "cannot_accept", "still_cannot_accept", max_lines=1)

    def log(self, error: OSError) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        action = "raise the limit of open files (ulimit -n) above limits.max_connections; devices that are connected stay"
        self._log.line(error=error.strerror or str(error), open_files_limit=most, action=action)

    def poll(self) -> None:
        """Looks whether this process may open a file now. The event loop's own server closes new sockets in silence otherwise."""
        self._log.flush()
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.log(error)


class Listener:
    """Accepts sockets from its creation on. Raises UnusableFile for its files, OSError for its address.

    Args:
        new_protocol: Makes the protocol of a socket, which releases the slot at its end.

    Attributes:
        sockets: The listening ones.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        new_protocol: Callable[[ConnectionSlot], asyncio.Protocol],
        refused: RefusalLog,
        counts: ConnectionCounts,
        accept_failures: AcceptFailures,
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
        self.sockets = listening_sockets(settings.host, settings.port, shares_port=shares_port)
        self._accept_failures = accept_failures
        self._opening: set[asyncio.Task[None]] = set()
        self._accepting = [asyncio.get_running_loop().create_task(self._accept(listening)) for listening in self.sockets]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.sockets[0].getsockname()[:2]
        return host, port

    def poll(self, *, read_files: bool = False) -> None:
        """Reads a changed certificate, or any (read_files). An unusable one leaves the old one in force. Call it every second."""
        if self._files.changed() or read_files:
            try:
                self._context = tls_context(self._settings)
            except UnusableFile as error:
                _log.error("certificate_not_taken", problem=str(error), action="the one before it stays in force")
            else:
                _log.info("certificate_read", host=self._settings.host, port=self._settings.port)

    def keep_alive(self, of_all_ms: int) -> None:
        """Probes silent devices that are accepted from now on.

        Args:
            of_all_ms: The time of listeners without one of their own, in milliseconds.
        """
        own_ms = self._settings.tcp_keepalive_ms
        for listening in self.sockets:
            keep_alive(listening, of_all_ms if own_ms is None else own_ms)

    def close(self) -> None:
        """Stops accepting sockets. Protocols that exist stay."""
        for task in (*self._accepting, *self._opening):
            task.cancel()
        for listening in self.sockets:
            listening.close()

    # --- accepting ------------------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                self._accept_failures.log(error)
                await asyncio.sleep(_PAUSE_S)
                continue
            slot = self._counts.acquire("" if self._proxies else peer[0])
            if slot is None:
                accepted.close()
                continue
            task = loop.create_task(self._open(accepted, peer[0], slot))
            slot.close = task.cancel
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket, peer: str, slot: ConnectionSlot) -> None:
        loop = asyncio.get_running_loop()
        step = ListenerStep.PROXY_HEADER
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._timeout_s):
                if self._proxies:
                    address = await self._read_header(accepted, peer)
                    if not self._counts.identify(slot, address or peer):
                        self._discard(accepted, slot)
                        return
                step = ListenerStep.TLS
                await loop.connect_accepted_socket(
                    lambda: self._new_protocol(slot),
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=None if self._context is None else self._timeout_s,
                )
        except (OSError, ProxyHeaderInvalid, EOFError, TimeoutError, ssl.SSLError) as error:
            self._discard(accepted, slot)
            self._refused.refused(step, peer, reason=str(error) or type(error).__name__)
        except BaseException:
            self._discard(accepted, slot)
            raise

    def _discard(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        accepted.close()
        self._counts.release(slot)

    async def _read_header(self, accepted: socket.socket, peer: str) -> str | None:
        """Reads exactly the header. Raises ProxyHeaderInvalid, EOFError."""
        if not any(ipaddress.ip_address(peer) in network for network in self._proxies):
            raise ProxyHeaderInvalid("the address is not one of `proxies`")
        return await read_header(partial(_read_exactly, accepted))


async def _read_exactly(accepted: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        received = await loop.sock_recv(accepted, size - len(data))
        if not received:
            raise EOFError("closed within the PROXY header")
        data += received
    return data
