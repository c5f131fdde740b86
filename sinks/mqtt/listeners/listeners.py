"""Every address on which a gateway listens."""

import asyncio
from functools import partial
from typing import Final, Protocol

import structlog

from sinks.mqtt.access.entrance import Entrance, entrance_of
from sinks.mqtt.limits.connection_counts import ConnectionCounts, Place
from sinks.mqtt.limits.tcp_keepalive import keep_alive
from sinks.mqtt.listeners.listener import BACKLOG, Listener
from sinks.mqtt.listeners.refused_sockets import RefusedSockets
from sinks.mqtt.listeners.settings import ListenerSettings, Transport, is_loopback
from sinks.mqtt.listeners.websocket import WebSocketProtocol
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import NO_LISTENER, GatewaySettings

_log: Final = structlog.get_logger(__name__)


class ProtocolFactory(Protocol):
    """place: what the socket counts as; None = it is not counted yet."""

    def __call__(self, entrance: Entrance, place: Place | None = None) -> asyncio.Protocol: ...


class Listeners:
    """Those of one gateway. new_protocol: what reads MQTT from a socket."""

    def __init__(
        self, settings: GatewaySettings, new_protocol: ProtocolFactory, counters: GatewayCounters, counts: ConnectionCounts
    ) -> None:
        self._settings = settings
        self._entrances = _entrances(settings)
        self._counts = counts
        self._new_protocol = new_protocol
        self._refused = RefusedSockets(counters)
        self._plain: asyncio.Server | None = None
        self._others: list[Listener] = []

    async def open(self) -> tuple[str, int]:
        """Host and port of the first one. Raises OSError and UnusableFile; none is open then."""
        settings = self._settings
        try:
            if settings.port != NO_LISTENER:
                loop = asyncio.get_running_loop()
                self._plain = await loop.create_server(
                    partial(self._enter, settings.plain_listener),
                    settings.host,
                    settings.port,
                    backlog=BACKLOG,
                    reuse_port=settings.shares_ports,
                )
                self._keep_alive(settings)
            for listener in settings.listeners:
                self._others.append(self._open(listener))
                self._keep_alive(settings)  # before the next one reads its files: devices may be dialling already
        except BaseException:
            self.close()
            raise
        for listener in settings.all_listeners:
            self._announce(listener)
        return self.addresses[0]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each, in the order of `GatewaySettings.all_listeners`."""
        plain = [] if self._plain is None else [self._plain.sockets[0].getsockname()[:2]]
        return plain + [listener.address for listener in self._others]

    def look_after(self, *, read_files: bool = False) -> None:
        """As `Listener.look_after`."""
        self._refused.catch_up()
        for listener in self._others:
            listener.look_after(read_files=read_files)

    def take(self, settings: GatewaySettings) -> None:
        """Other ways to log in, rules and limits, for sockets to come. The listeners are those that they were."""
        self._entrances = _entrances(settings)
        self._keep_alive(settings)

    def _keep_alive(self, settings: GatewaySettings) -> None:
        plain = () if self._plain is None else self._plain.sockets
        for listening in (*plain, *(listener.socket for listener in self._others)):
            keep_alive(listening, settings.device_limits.tcp_keepalive_ms)

    def close(self) -> None:
        """Take nobody in any more. Protocols that exist stay."""
        if self._plain is not None:
            self._plain.close()
        for listener in self._others:
            listener.close()

    def _open(self, settings: ListenerSettings) -> Listener:
        def new_protocol(place: Place) -> asyncio.Protocol:
            inside = self._enter(settings, place)
            return (
                WebSocketProtocol(settings, inside, self._refused, place.address)
                if settings.transport is Transport.WEBSOCKET
                else inside
            )

        timeout_s = self._settings.connect_timeout_ms / 1_000
        return Listener(
            settings,
            new_protocol,
            self._refused,
            self._counts,
            timeout_s=timeout_s,
            shares_port=self._settings.shares_ports,
        )

    def _enter(self, listener: ListenerSettings, place: Place | None = None) -> asyncio.Protocol:
        return self._new_protocol(self._entrances[listener], place)

    def _announce(self, listener: ListenerSettings) -> None:
        anonymous = self._entrances[listener].is_anonymous_allowed
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
                action="who reaches this address can do everything that the rules allow anonymous devices: see docs/security.md",
            )


def _entrances(settings: GatewaySettings) -> dict[ListenerSettings, Entrance]:
    return {listener: entrance_of(listener, settings) for listener in settings.all_listeners}
