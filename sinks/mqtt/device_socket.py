"""One accepted socket: an asyncio protocol that carries bytes, pauses and timers between a transport and a `Connection`."""

import asyncio
from typing import Final, Protocol, cast

import structlog

from sinks.mqtt.access.entrance import Entrance
from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefused
from sinks.mqtt.access.logins import Judgement, Logins, Peer
from sinks.mqtt.arrival import arrival_of
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.connection.connection import Connection, Registration
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.model import ReasonCode

_log: Final = structlog.get_logger(__name__)
_LINGER_S: Final = 5.0
"""How long a closed connection may take to read its last bytes (DISCONNECT, CONNACK) before it is cut off."""


class DeviceSocketOwner(Protocol):
    """The gateway, as a socket sees it."""

    settings: GatewaySettings
    counters: GatewayCounters
    logins: Logins

    def now_ms(self) -> int: ...
    def register(self, socket: "DeviceSocket") -> Registration | None: ...
    def admitted(self, socket: "DeviceSocket") -> None: ...
    def new_client_id(self) -> str: ...
    def opened(self, socket: "DeviceSocket") -> None: ...
    def touch(self, socket: "DeviceSocket") -> None: ...
    def failed(self, socket: "DeviceSocket", error: Exception) -> None: ...
    def closed(self, socket: "DeviceSocket") -> None: ...


class DeviceSocket(asyncio.Protocol):
    """The owner calls `write_out` after it was told by `touch`.

    entrance: of the listener that has accepted it. address: of the device; None = the socket's peer is the device.
    """

    def __init__(self, owner: DeviceSocketOwner, entrance: Entrance, address: str | None = None) -> None:
        self._owner = owner
        self._entrance = entrance
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_reading = True
        self._loop = asyncio.get_running_loop()
        self.connection = Connection(owner.settings, self, owner.counters, owner.now_ms())

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting
        transport.set_write_buffer_limits(high=self._owner.settings.max_write_buffer_bytes)
        self._transport = transport
        self._owner.opened(self)
        self._owner.touch(self)

    def data_received(self, data: bytes) -> None:
        try:
            self.connection.receive(data, self._owner.now_ms())
        except Exception as error:  # noqa: BLE001 - whatever a device can provoke ends with its connection
            self._owner.failed(self, error)
        self._owner.touch(self)

    def pause_writing(self) -> None:
        self.connection.writing_blocked(True, self._owner.now_ms())
        self._owner.touch(self)

    def resume_writing(self) -> None:
        self.connection.writing_blocked(False, self._owner.now_ms())
        self._owner.touch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.connection.peer_closed(self._owner.now_ms())
        self._owner.touch(self)
        self._owner.closed(self)

    # --- Registrar ----------------------------------------------------------------------------------------------------------

    def register(self, connection: Connection) -> Registration | None:
        """None also for a CONNECT that says nothing about the present: its device may have connected elsewhere since."""
        arrival = arrival_of(None if self._transport is None else self._transport.get_extra_info("socket"))
        if arrival.peer_is_gone or arrival.waited_ms > self._owner.settings.connect_timeout_ms:
            _log.info("connect_too_late", client_id=connection.client_id, waited_ms=arrival.waited_ms, gone=arrival.peer_is_gone)
            return None
        return self._owner.register(self)

    def log_in(self, connection: Connection, connect: Connect) -> Grant | LoginRefused | None:
        if self._entrance.asks_nothing:
            return EVERYTHING
        owner, transport = self._owner, self._transport
        assert transport is not None  # it has just brought the CONNECT
        address = self._address or str((transport.get_extra_info("peername") or ("",))[0])
        peer = Peer(address, self._entrance, transport.get_extra_info("peercert") or None)
        return owner.logins.log_in(connect, connection.client_id, peer, self._logged_in, owner.now_ms())

    def admitted(self, connection: Connection) -> None:
        self._owner.admitted(self)

    def _logged_in(self, judgement: Judgement) -> None:
        self.connection.logged_in(judgement, self._owner.now_ms())
        self._owner.touch(self)

    def new_client_id(self) -> str:
        return self._owner.new_client_id()

    # --- for the owner ------------------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """What the device has not taken yet, of what was written."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def shut_at_once(self, reason: str, reason_code: ReasonCode) -> None:
        """Write nothing any more but a goodbye, and not even that to a device that has not taken what was written before."""
        self.connection.shut(reason, reason_code, at_once=True)
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()

    def write_out(self) -> None:
        """Carry the connection's wishes out: bytes, pauses, the next timer, the end."""
        connection = self.connection
        data = connection.take_output()
        transport = self._transport
        if transport is None:
            self._arm(connection.next_deadline_ms())
            return
        if transport.is_closing():
            return
        if data:
            transport.write(data)
        if connection.is_closed:
            transport.close()
            self._cancel_timer()
            self._timer = self._loop.call_later(_LINGER_S, transport.abort)
            return
        if connection.wants_data is not self._is_reading:
            self._is_reading = not self._is_reading
            if self._is_reading:
                transport.resume_reading()
            else:
                transport.pause_reading()
        self._arm(connection.next_deadline_ms())

    def _arm(self, deadline_ms: int | None) -> None:
        """A timer that is armed too early only asks again: a packet moves the keep alive, it does not touch the timer."""
        if deadline_ms is None:
            self._cancel_timer()
        elif self._timer is None or deadline_ms < self._timer_ms:
            self._cancel_timer()
            self._timer_ms = deadline_ms
            self._timer = self._loop.call_at((deadline_ms + 1) / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.connection.tick(self._owner.now_ms())
        self._owner.touch(self)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
