"""Feeds the `WireConnection` of one accepted socket with bytes, answers and time, and carries its effects out."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from sinks.host.lease import HeldLease
from sinks.mqtt.access.authenticator import Judgement, Logins, Peer
from sinks.mqtt.access.entrance import Entrance
from sinks.mqtt.access.grant import EVERYTHING
from sinks.mqtt.arrival import Arrival, arrival_of
from sinks.mqtt.connection.append_queue import Append
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.effects import Effects, LogIn, Register, Registration, Request
from sinks.mqtt.connection.phases import CloseReason
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.connection_counts import Place
from sinks.mqtt.limits.gateway_limits import GatewayLimits
from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.model import ClientId, ReasonCode

_LINGER_S: Final = 5.0
"""A closed device has this long to read its last bytes (DISCONNECT, CONNACK); then it is cut off."""
_TOO_MUCH_HELD: Final = CloseReason("the gateway holds too much for all devices", "gateway", ReasonCode.QUOTA_EXCEEDED)


class SocketHost(Protocol):
    """The gateway, as a socket sees it."""

    settings: GatewaySettings
    counters: GatewayCounters
    limits: GatewayLimits
    logins: Logins

    lease: HeldLease

    def now_ms(self) -> int: ...
    def opened(self, socket: "DeviceSocket") -> None: ...
    def register(self, socket: "DeviceSocket", request: Register, client_id: ClientId, waited_ms: int) -> Registration | None: ...
    def announced(self, socket: "DeviceSocket") -> None: ...
    def append_all(self, socket: "DeviceSocket", appends: list[Append]) -> None: ...
    def failed(self, socket: "DeviceSocket", error: Exception) -> Effects: ...
    def forget(self, socket: "DeviceSocket") -> None: ...
    def closed(self, socket: "DeviceSocket") -> None: ...


@dataclass(slots=True, eq=False)
class DeviceSocket(asyncio.Protocol):
    """Everything that happens to the connection goes through `feed`.

    Args:
        entrance: of the listener that has accepted the socket.
        place: what the socket counts as, with the address of the device; None = it is not counted yet.
    """

    _host: SocketHost
    _entrance: Entrance
    _place: Place | None = None
    client_id: ClientId = ""
    connection: WireConnection = field(init=False)
    _transport: asyncio.Transport | None = None
    _timer: asyncio.TimerHandle | None = None
    _timer_ms: int = 0
    _is_reading: bool = True
    _is_cut_off: bool = False
    _held_bytes: int = 0
    """`Effects.held_bytes` of the last call."""
    _is_counted: bool = False
    """`Buffered` counts some bytes for this socket."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        host, limits = self._host, self._host.limits
        self.connection = WireConnection(host.settings, host.counters, host.now_ms(), limits.unconfirmed, limits.fair_share)

    # --- feed → effects → write → re-arm --------------------------------------------------------------------------------------

    def feed(self, call: Callable[..., Effects], *arguments: Any) -> None:
        """Call the connection and carry its effects out. An error, whatever has provoked it, ends this connection only."""
        host = self._host
        host.lease.holds()  # before anything is written: this process may have stood still
        try:
            effects = call(*arguments, host.now_ms())
        except Exception as error:  # noqa: BLE001
            effects = host.failed(self, error)
        transport, held_bytes = self._transport, effects.held_bytes
        self._held_bytes = held_bytes
        if effects.appends:
            host.append_all(self, effects.appends)
        if transport is None:
            self._arm(effects.deadline_ms)
        elif not transport.is_closing():
            if effects.wants_data is not self._is_reading:
                self._read(effects.wants_data)  # now: libuv reads a socket up to 32 times before the next turn of the loop
            self._arm(effects.deadline_ms)
            if effects.write:  # the last, but for the end: it may call pause_writing
                transport.write(effects.write)
            if effects.close:
                transport.close()
                self._arm(None)
                self._timer = self._loop.call_later(_LINGER_S, transport.abort)
        if transport is not None:
            held_bytes += transport.get_write_buffer_size()
        if held_bytes or self._is_counted:
            self._is_counted = held_bytes > 0 and not self._is_cut_off
            host.limits.buffered.holds(self, held_bytes if self._is_counted else 0)
        if effects.close:
            host.limits.connects.leave(self)
            host.limits.unconfirmed.readers.pop(self, None)
            host.forget(self)
        for request in effects.requests:
            self._answer(request)

    def _read(self, wants_data: bool) -> None:
        assert self._transport is not None
        self._is_reading = wants_data
        if wants_data:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _arm(self, deadline_ms: int | None) -> None:
        """A timer that is armed too early only asks again: a packet moves the keep alive, it does not touch the timer."""
        if deadline_ms is not None and self._timer is not None and deadline_ms >= self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            self._timer = self._loop.call_at((deadline_ms + 1) / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.feed(self.connection.tick)

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting
        host = self._host
        if self._place is None:
            peer = transport.get_extra_info("peername") or ("",)
            self._place = host.limits.connections.enter(str(peer[0]))
        if self._place is None:
            transport.abort()
            return
        self._place.turn_away = transport.abort
        transport.set_write_buffer_limits(high=host.settings.max_write_buffer_bytes)
        self._transport = transport
        host.limits.unconfirmed.readers[self] = None
        host.opened(self)
        self.feed(self.connection.tick)

    def data_received(self, data: bytes) -> None:
        self.feed(self.connection.receive, data)

    def pause_writing(self) -> None:
        self.feed(self.connection.writing_blocked, True)

    def resume_writing(self) -> None:
        self.feed(self.connection.writing_blocked, False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._place is None:
            return
        self._host.limits.connections.leave(self._place)
        self._transport = None
        self.feed(self.connection.peer_closed)
        self._host.closed(self)

    # --- requests -------------------------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> None:
        if isinstance(request, Register):
            self._register(request)
        elif isinstance(request, LogIn):
            self._log_in(request)
        else:
            self._host.limits.connects.told(self.connection.connection_id)
            self._host.announced(self)

    def _register(self, request: Register) -> None:
        """A CONNECT that says nothing about the present is not registered: its device may have connected elsewhere since."""
        host, place, arrival = self._host, self._place, self._arrival()
        assert place is not None  # it has brought the CONNECT
        registration, turn = None, Turn.NOW
        if arrival.peer_is_gone or arrival.waited_ms > host.settings.connect_timeout_ms:
            host.limits.late_connects.line(
                host.now_ms(), client_id=request.client_id, waited_ms=arrival.waited_ms, gone=arrival.peer_is_gone
            )
        else:
            client_id = request.client_id or f"inflight-{secrets.token_hex(10)}"
            registration = host.register(self, request, client_id, arrival.waited_ms)
        if registration is not None and request.refusal is None:
            host.limits.connections.connect_read(place)
            turn = host.limits.connects.ask(self, place.host)
            if turn is Turn.NEVER:
                host.limits.refusals.reached(Limit.WAITING_CONNECTS, place.address)
        self.feed(self.connection.registered, request, registration, turn)

    def turn_has_come(self) -> None:
        """See Waiter."""
        if self._arrival().peer_is_gone:
            self.feed(self.connection.peer_closed)
        self.feed(self.connection.turn_has_come)

    def _log_in(self, request: LogIn) -> None:
        login: Judgement | None = EVERYTHING
        if not self._entrance.asks_nothing:
            host, transport, place = self._host, self._transport, self._place
            assert transport is not None  # else its CONNECT would wait no longer
            assert place is not None
            peer = Peer(place.address, self._entrance, transport.get_extra_info("peercert") or None)
            login = host.logins.log_in(request.connect, request.client_id, peer, self._logged_in, host.now_ms())
        if login is not None:
            self._logged_in(login)

    def _logged_in(self, login: Judgement) -> None:
        self.feed(self.connection.logged_in, login)

    def _arrival(self) -> Arrival:
        return arrival_of(None if self._transport is None else self._transport.get_extra_info("socket"))

    # --- for the host and its limits --------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and that the device has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """See Holder."""
        return 0 if self._is_cut_off else self.unsent_bytes + self._held_bytes

    def give_up(self) -> None:
        """See Holder."""
        assert self._place is not None  # else it would hold nothing
        self._host.limits.refusals.reached(Limit.TOTAL_BUFFERED_BYTES, self._place.address)
        self.close_at_once(_TOO_MUCH_HELD, 0)

    def close_at_once(self, why: CloseReason, reconnect_grace_ms: int) -> None:
        """Write nothing any more but a goodbye, and not even that to a device that has not taken what was written before."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size():
            self._is_cut_off = True
            transport.abort()
        self.feed(self.connection.close, why, reconnect_grace_ms)

    def reading_changed(self) -> None:
        """See Reader."""
        self.feed(self.connection.resume)
