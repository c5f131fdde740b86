"""Feeds the `WireConnection` of an accepted socket with bytes, answers and time, and carries out its effects."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from sinks.host.lease import HeldLease
from sinks.mqtt.access.authenticator import Authenticator, AuthResult, ListenerAuthPolicy, Peer
from sinks.mqtt.access.grant import EVERYTHING
from sinks.mqtt.arrival import Arrival, arrival_of
from sinks.mqtt.connection.append_queue import Append
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.effects import Effects, LogIn, LookForLater, LookUp, Register, Registration, Request, TakeOver
from sinks.mqtt.connection.phases import CloseReason
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.connection_counts import ConnectionSlot
from sinks.mqtt.limits.gateway_limits import GatewayLimits
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings, Limit
from state.model import ClientId, ReasonCode

_LINGER_S: Final = 5.0
"""A closed device has this long to read its last bytes (DISCONNECT, CONNACK); then it is cut off."""
_DISCARD_S: Final = 2.0
_MOST_DISCARDED_BYTES: Final = 1 << 20
_MOST_DISCARDING: Final = 1_000
"""Bounds for what a device still sends after its last packet, which is read and discarded: time, bytes, sockets at once."""
_READ_FIRST_S: Final = 0.1
_LATE_MS: Final = 500
"""A timer that is so late had to wait for this process, and what devices have sent meanwhile is not read yet."""
_CONTEST_SHARE: Final = 0.8
"""A CONNECT of a contested client waits for at most this share of its time; then it goes on."""
_NO_TURN: Final = CloseReason("too many CONNECTs wait", "", ReasonCode.SERVER_BUSY)
_CONTESTED: Final = "give each device a client id of its own; until then each CONNECT of this one waits longer"
_TOO_MUCH_HELD: Final = CloseReason("the gateway holds too much for all devices", "gateway", ReasonCode.QUOTA_EXCEEDED)


class SocketHost(Protocol):
    """The gateway, as a socket sees it."""

    settings: GatewaySettings
    counters: GatewayCounters
    limits: GatewayLimits
    authenticator: Authenticator
    lease: HeldLease

    def now_ms(self) -> int: ...
    def opened(self, socket: "DeviceSocket") -> None: ...
    def register(self, socket: "DeviceSocket", request: Register, client_id: ClientId, waited_ms: int) -> Registration | None: ...
    def look_up(self, client_id: ClientId, answer: Callable[[bool], None]) -> None: ...
    def look_for_later(self, socket: "DeviceSocket") -> None: ...
    def announced(self, socket: "DeviceSocket") -> None: ...
    def append_all(self, socket: "DeviceSocket", appends: list[Append]) -> None: ...
    def failed(self, socket: "DeviceSocket", error: Exception) -> Effects: ...
    def forget(self, socket: "DeviceSocket") -> None: ...
    def closed(self, socket: "DeviceSocket") -> None: ...


@dataclass(slots=True, eq=False)
class DeviceSocket(asyncio.Protocol):
    """Everything that happens to the connection goes through `feed`.

    Args:
        policy: Of the listener that has accepted the socket.
        slot: None = the socket is not counted yet.
    """

    _host: SocketHost
    _policy: ListenerAuthPolicy
    _slot: ConnectionSlot | None = None
    client_id: ClientId = ""
    connection: WireConnection = field(init=False)
    earlier: "DeviceSocket | None" = None
    """The client's connection before this one, at the same gateway; None = there is none, or it was taken over."""
    _transport: asyncio.Transport | None = None
    _timer: asyncio.TimerHandle | None = None
    _timer_ms: int = 0
    _is_deferred: bool = False
    """The timer was late, and sockets are read before it acts."""
    _is_reading: bool = True
    _is_aborted: bool = False
    _discards_bytes: int | None = None
    """How much more is read and discarded before the socket is closed; None = our side is not shut."""
    _taken_bytes: int = 0
    _left_bytes: int = 0
    """Bytes that a blocked device had taken, and bytes left in our buffer, when they were measured last."""
    _held_bytes: int = 0
    """`Effects.held_bytes` of the last call."""
    _is_counted: bool = False
    """True if `Buffered` counts bytes of this socket."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        host, limits = self._host, self._host.limits
        self.connection = WireConnection(
            host.settings, host.counters, host.now_ms(), limits.unconfirmed, limits.rate_limiter, limits.buffered
        )

    # --- feed → effects → write → re-arm --------------------------------------------------------------------------------------

    def feed(self, call: Callable[..., Effects], *arguments: Any) -> None:
        """Calls the connection and carries out its effects. Any error ends this connection only."""
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
        elif not (transport.is_closing() or self._discards_bytes is not None):
            if effects.wants_data is not self._is_reading:
                self._read(effects.wants_data)  # now: libuv reads a socket up to 32 times before the next turn of the loop
            self._arm(effects.deadline_ms)
            if effects.write:  # last but for the end: it may call pause_writing
                transport.write(effects.write)
            if effects.close:
                self._arm(None)
                self._shut(transport, has_last_packet=bool(effects.write))
        if transport is not None:
            held_bytes += transport.get_write_buffer_size()
        if held_bytes or self._is_counted:
            self._is_counted = held_bytes > 0 and not self._is_aborted
            host.limits.buffered.update(self, held_bytes if self._is_counted else 0)
        if effects.close:
            self._log_refusal()
            if self.connection.was_taken_over:
                self._count_takeover()
            host.limits.connects.leave(self)
            host.limits.unconfirmed.readers.pop(self, None)
            host.forget(self)
        for request in effects.requests:
            self._answer(request)

    def _shut(self, transport: asyncio.Transport, *, has_last_packet: bool) -> None:
        """Ends a socket so that the device gets its last packet.

        A socket that is closed with unread bytes is reset, and then the device may lose what it has not read. So only our side is
        shut at first. What the device still sends is discarded until it closes its side, too. TLS does the same by itself.
        """
        discarding = self._host.limits.discarding
        if has_last_packet and transport.can_write_eof() and len(discarding) < _MOST_DISCARDING:
            self._discards_bytes = _MOST_DISCARDED_BYTES
            discarding.add(self)
            transport.write_eof()
            if not self._is_reading:
                self._read(True)
            self._timer = self._loop.call_later(_DISCARD_S, self._close_transport, transport)
        else:
            self._close_transport(transport)

    def _close_transport(self, transport: asyncio.Transport) -> None:
        self._arm(None)
        transport.close()
        self._timer = self._loop.call_later(_LINGER_S, transport.abort)

    def _discard(self, transport: asyncio.Transport, left_bytes: int) -> None:
        self._discards_bytes = left_bytes
        if left_bytes < 0 and not transport.is_closing():
            self._close_transport(transport)

    def _log_refusal(self) -> None:
        """Logs once why the first packet was refused: mostly a device or a load balancer is configured wrongly."""
        reason = self.connection.refused_because
        if reason and self._slot is not None:
            self.connection.refused_because = ""
            self._host.limits.refused_connects.line(address=self._slot.address, reason=reason)

    def _count_takeover(self) -> None:
        self.connection.was_taken_over = False
        host, address = self._host, "" if self._slot is None else self._slot.address
        host.counters.takeovers += 1
        if takeovers := host.limits.takeovers.record(self.client_id, host.now_ms()):
            host.limits.contests.line(client_id=self.client_id, address=address, takeovers=takeovers, action=_CONTESTED)

    def _read(self, wants_data: bool) -> None:
        assert self._transport is not None
        self._is_reading = wants_data
        if wants_data:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _arm(self, deadline_ms: int | None) -> None:
        """Arms the timer, and leaves an earlier one, which only asks again. So a packet does not re-arm it for the keep alive."""
        if deadline_ms is not None and self._timer is not None and deadline_ms >= self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            self._timer = self._loop.call_at((deadline_ms + 1) / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        """Lets time pass. After a standstill of this process sockets are read first: nobody was silent who was not heard.

        They are read in one turn of the loop, so a process that is always late ends connections, too.
        """
        self._timer = None
        now_ms = self._host.now_ms()
        self._is_deferred = not self._is_deferred and now_ms - self._timer_ms > _LATE_MS
        if self._is_deferred:
            self._timer_ms = now_ms + int(1_000 * _READ_FIRST_S)
            self._timer = self._loop.call_later(_READ_FIRST_S, self._on_timer)
            return
        self.measure_progress()
        self.feed(self.connection.tick)

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting
        host = self._host
        if self._slot is None:
            peer = transport.get_extra_info("peername") or ("",)
            self._slot = host.limits.connections.acquire(str(peer[0]))
        if self._slot is None:
            transport.abort()
            return
        self._slot.close = transport.abort
        transport.set_write_buffer_limits(high=host.settings.max_write_buffer_bytes)
        self._transport = transport
        host.limits.unconfirmed.readers[self] = None
        host.opened(self)
        self.feed(self.connection.tick)

    def data_received(self, data: bytes) -> None:
        if self._discards_bytes is None:
            self.feed(self.connection.receive, data)
        elif self._transport is not None:
            self._discard(self._transport, self._discards_bytes - len(data))

    def pause_writing(self) -> None:
        self._has_progressed()
        self.feed(self.connection.writing_blocked, True)

    def resume_writing(self) -> None:
        self.feed(self.connection.writing_blocked, False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slot is None:
            return
        self._host.limits.connections.release(self._slot)
        self._host.limits.discarding.discard(self)
        self._transport = None
        self.feed(self.connection.peer_closed)
        self._host.closed(self)

    # --- requests -------------------------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> None:
        if isinstance(request, Register):
            self._register(request)
        elif isinstance(request, LogIn):
            self._log_in(request)
        elif isinstance(request, LookUp):
            self._host.look_up(self.connection.client_id, self.looked_up)
        elif isinstance(request, LookForLater):
            self._host.look_for_later(self)
        elif isinstance(request, TakeOver):
            self._take_over()
        else:
            self._host.limits.connects.announced(self.connection.connection_id)
            self._host.announced(self)

    def _take_over(self) -> None:
        socket, self.earlier = self.earlier, None
        while socket is not None:
            before, socket.earlier = socket.earlier, None
            socket.feed(socket.connection.taken_over)
            socket = before

    def _register(self, request: Register) -> None:
        """Registers a CONNECT, unless it is outdated: its device may have connected elsewhere since."""
        host, slot, arrival = self._host, self._slot, self._arrival()
        assert slot is not None  # a CONNECT came through it
        registration, turn = None, Turn.NOW
        if arrival.peer_is_gone or arrival.waited_ms > host.settings.connect_timeout_ms:
            host.limits.late_connects.line(client_id=request.client_id, waited_ms=arrival.waited_ms, gone=arrival.peer_is_gone)
        else:
            client_id = request.client_id or f"inflight-{secrets.token_hex(10)}"
            registration = host.register(self, request, client_id, arrival.waited_ms)
        if registration is not None and request.refusal is None:
            host.limits.connections.connect_read(slot)
            turn = self._enter_queue(slot, host.now_ms() + int(_CONTEST_SHARE * host.settings.connect_timeout_ms))
        self.feed(self.connection.registered, request, registration, turn)

    def _enter_queue(self, slot: ConnectionSlot, until_ms: int) -> Turn:
        """Asks for a turn. A CONNECT of a contested client waits before, but not after until_ms."""
        host = self._host
        now_ms = host.now_ms()
        wait_ms = min(host.limits.takeovers.wait_ms(self.client_id, now_ms), until_ms - now_ms)
        if wait_ms > 0:
            self._loop.call_later(wait_ms / 1_000, self._contest_waited, slot, until_ms)
            return Turn.LATER
        turn = host.limits.connects.enter(self, slot.host)
        if turn is Turn.NEVER:
            host.limits.refusals.refused(Limit.WAITING_CONNECTS, slot.address)
        return turn

    def _contest_waited(self, slot: ConnectionSlot, until_ms: int) -> None:
        if self.connection.is_closed:
            return
        turn = self._enter_queue(slot, until_ms)
        if turn is Turn.NOW:
            self.turn_has_come()
        elif turn is Turn.NEVER:
            self.feed(self.connection.close, _NO_TURN, 0)

    def turn_has_come(self) -> None:
        """Implements WaitingConnect."""
        if self._arrival().peer_is_gone:
            self.feed(self.connection.peer_closed)
        self.feed(self.connection.turn_has_come)

    def _log_in(self, request: LogIn) -> None:
        login: AuthResult | None = EVERYTHING
        if not self._policy.allows_everything:
            host, transport, slot = self._host, self._transport, self._slot
            assert transport is not None  # a closed socket leaves the queue of CONNECTs
            assert slot is not None
            peer = Peer(slot.address, self._policy, transport.get_extra_info("peercert") or None)
            login = host.authenticator.authenticate(request.connect, request.client_id, peer, self._logged_in, host.now_ms())
        if login is not None:
            self._logged_in(login)

    def _logged_in(self, login: AuthResult) -> None:
        self.feed(self.connection.logged_in, login, self._host.limits.connects.patience_ms)

    def looked_up(self, is_current: bool) -> None:
        """The answer of `SocketHost.look_up`."""
        self.feed(self.connection.looked_up, is_current)

    def _arrival(self) -> Arrival:
        return arrival_of(None if self._transport is None else self._transport.get_extra_info("socket"))

    # --- for the host and its limits --------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and that the device has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def measure_progress(self) -> None:
        """Tells a blocked connection if its device has taken bytes since the last call. Call it about once a second."""
        if self.connection.is_blocked and self._has_progressed():
            self.feed(self.connection.bytes_taken)

    def _has_progressed(self) -> bool:
        taken_bytes, left_bytes = self._arrival().taken_bytes, self.unsent_bytes
        has_progressed = taken_bytes > self._taken_bytes or left_bytes < self._left_bytes
        self._taken_bytes, self._left_bytes = taken_bytes, left_bytes
        return has_progressed

    @property
    def held_bytes(self) -> int:
        """Implements BufferedConnection."""
        return 0 if self._is_aborted else self.unsent_bytes + self._held_bytes

    def free_memory(self) -> None:
        """Implements BufferedConnection."""
        if self.connection.held_offers_bytes * 2 >= self.held_bytes:
            self.feed(self.connection.forget_offers)
            return
        assert self._slot is not None  # else it would hold nothing
        self._host.limits.refusals.refused(Limit.TOTAL_BUFFERED_BYTES, self._slot.address)
        self.close_at_once(_TOO_MUCH_HELD, 0)

    def close_at_once(self, why: CloseReason, reconnect_grace_ms: int) -> None:
        """Closes with a last packet, or without one if the device has not read all that was written."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size():
            self._is_aborted = True
            transport.abort()
        self.feed(self.connection.close, why, reconnect_grace_ms)

    def reading_changed(self) -> None:
        """Implements PausableReader."""
        self.feed(self.connection.resume)
