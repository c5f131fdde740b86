"""Opens, watches and closes all listeners of a gateway."""

import asyncio
from functools import partial
from typing import Final, Protocol

import structlog

from sinks.log_throttle import RefusalLog
from sinks.mqtt.access.authenticator import ListenerAuthPolicy, auth_policy_of
from sinks.mqtt.limits.connection_counts import ConnectionCounts, ConnectionSlot
from sinks.mqtt.limits.tcp_keepalive import keep_alive
from sinks.mqtt.listeners.listener import AcceptFailures, Listener
from sinks.mqtt.listeners.listening import BACKLOG, listening_sockets
from sinks.mqtt.listeners.websocket import WebSocketProtocol
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import NO_LISTENER, GatewaySettings, ListenerSettings, Transport, is_loopback

_log: Final = structlog.get_logger(__name__)


class ProtocolFactory(Protocol):
    def __call__(self, policy: ListenerAuthPolicy, slot: ConnectionSlot | None = None) -> asyncio.Protocol:
        """Makes the protocol of an accepted socket.

        Args:
            slot: None = the socket is not counted yet.
        """


class Listeners:
    """The listeners of one gateway.

    Args:
        new_protocol: Makes the protocol that reads MQTT from a socket.
    """

    def __init__(
        self, settings: GatewaySettings, new_protocol: ProtocolFactory, counters: GatewayCounters, counts: ConnectionCounts
    ) -> None:
        self._settings = settings
        self._policies = _policies(settings)
        self._counts = counts
        self._new_protocol = new_protocol
        self._refused = RefusalLog(counters.sockets_refused, _log.info, "socket_refused", "more_sockets_refused", label="step")
        self._accept_failures = AcceptFailures()
        self._plain: list[asyncio.Server] = []
        self._others: list[Listener] = []

    async def open(self) -> tuple[str, int]:
        """Opens all. Returns host and port of the first one. If it raises OSError or UnusableFile, none is open."""
        settings = self._settings
        try:
            if settings.port != NO_LISTENER:
                loop = asyncio.get_running_loop()
                new_protocol = partial(self._new_mqtt_protocol, settings.plain_listener)
                for listening in listening_sockets(settings.host, settings.port, shares_port=settings.shares_ports):
                    self._plain.append(await loop.create_server(new_protocol, sock=listening, backlog=BACKLOG))
                self._keep_alive(settings)
            for listener in settings.listeners:
                self._others.append(self._open(listener))
                self._keep_alive(settings)  # before the next one reads its files: devices may be connecting already
        except BaseException:
            self.close()
            raise
        for listener in settings.all_listeners:
            self._announce(listener)
        return self.addresses[0]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Returns host and port of each, in the order of `GatewaySettings.all_listeners`."""
        plain = [server.sockets[0].getsockname()[:2] for server in self._plain[:1]]
        return plain + [listener.address for listener in self._others]

    def poll(self, *, read_files: bool = False) -> None:
        """Does as `Listener.poll` for each."""
        self._refused.flush()
        self._accept_failures.poll()
        for listener in self._others:
            listener.poll(read_files=read_files)

    def reconfigure(self, settings: GatewaySettings) -> None:
        """Applies other ways to log in, rules and limits to new sockets. The listeners stay."""
        self._policies = _policies(settings)
        self._keep_alive(settings)

    def _keep_alive(self, settings: GatewaySettings) -> None:
        of_all_ms = settings.device_limits.tcp_keepalive_ms
        for server in self._plain:
            for listening in server.sockets:
                keep_alive(listening, of_all_ms)
        for listener in self._others:
            listener.keep_alive(of_all_ms)

    def close(self) -> None:
        """Stops accepting sockets. Protocols that exist stay."""
        for server in self._plain:
            server.close()
        for listener in self._others:
            listener.close()

    def _open(self, settings: ListenerSettings) -> Listener:
        def new_protocol(slot: ConnectionSlot) -> asyncio.Protocol:
            inside = self._new_mqtt_protocol(settings, slot)
            return (
                WebSocketProtocol(settings, inside, self._refused, slot.address)
                if settings.transport is Transport.WEBSOCKET
                else inside
            )

        timeout_s = self._settings.connect_timeout_ms / 1_000
        return Listener(
            settings,
            new_protocol,
            self._refused,
            self._counts,
            self._accept_failures,
            timeout_s=timeout_s,
            shares_port=self._settings.shares_ports,
        )

    def _new_mqtt_protocol(self, listener: ListenerSettings, slot: ConnectionSlot | None = None) -> asyncio.Protocol:
        return self._new_protocol(self._policies[listener], slot)

    def _announce(self, listener: ListenerSettings) -> None:
        anonymous = self._policies[listener].is_anonymous_allowed
        _log.info(
            "listening",
            host=listener.host,
            port=listener.port,
            transport=str(listener.transport),
            tls=bool(listener.tls_certfile),
            client_certificate=str(listener.client_certificate),
            anonymous=anonymous,
        )
        if anonymous and not is_loopback(listener.host):
            _log.warning(
                "anonymous_devices_from_the_network",
                host=listener.host,
                port=listener.port,
                action="anybody who reaches this address can do what rules allow anonymous devices: docs/operate/security.md",
            )


def _policies(settings: GatewaySettings) -> dict[ListenerSettings, ListenerAuthPolicy]:
    return {listener: auth_policy_of(listener, settings) for listener in settings.all_listeners}
