"""One accepted socket: an asyncio protocol that carries bytes, pauses and timers between a transport and a `Connection`."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Protocol, cast

from sinks.mqtt.access.entrance import Entrance
from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefused
from sinks.mqtt.access.logins import Judgement, Logins, Peer
from sinks.mqtt.arrival import Arrival, arrival_of
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.connection.connection import Connection
from sinks.mqtt.connection.handshake import Registration
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.connection_counts import Place
from sinks.mqtt.limits.gateway_limits import GatewayLimits
from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.model import ReasonCode

_LINGER_S: Final = 5.0
"""How long a closed connection may take to read its last bytes (DISCONNECT, CONNACK) before it is cut off."""


class DeviceSocketOwner(Protocol):
    """The gateway, as a socket sees it."""

    settings: GatewaySettings
    counters: GatewayCounters
    limits: GatewayLimits
    logins: Logins

    def now_ms(self) -> int: ...
    def register(self, socket: "DeviceSocket", waited_ms: int) -> Registration | None: ...
    def admitted(self, socket: "DeviceSocket") -> None: ...
    def opened(self, socket: "DeviceSocket") -> None: ...
    def touch(self, socket: "DeviceSocket") -> None: ...
    def failed(self, socket: "DeviceSocket", error: Exception) -> None: ...
    def closed(self, socket: "DeviceSocket") -> None: ...


class DeviceSocket(asyncio.Protocol):
    """The owner calls `write_out` after it was told by `touch`.

    entrance: of the listener that has accepted it. place: what it counts as, with the address of the device; None = it is not
    counted yet, and the socket's peer is the device.
    """

    __slots__ = (
        "_entrance",
        "_is_cut_off",
        "_is_reading",
        "_loop",
        "_owner",
        "_place",
        "_timer",
        "_timer_ms",
        "_transport",
        "connection",
    )

    def __init__(self, owner: DeviceSocketOwner, entrance: Entrance, place: Place | None = None) -> None:
        self._owner = owner
        self._entrance = entrance
        self._place = place
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_reading = True
        self._is_cut_off = False
        self._loop = asyncio.get_running_loop()
        limits = owner.limits
        self.connection = Connection(owner.settings, self, owner.counters, owner.now_ms(), limits.unconfirmed, limits.fair_share)

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting
        if self._place is None:
            peer = transport.get_extra_info("peername") or ("",)
            self._place = self._owner.limits.connections.enter(str(peer[0]))
        if self._place is None:
            transport.abort()
            return
        self._place.turn_away = transport.abort
        transport.set_write_buffer_limits(high=self._owner.settings.max_write_buffer_bytes)
        self._transport = transport
        self._owner.limits.unconfirmed.readers[self] = None
        self._owner.opened(self)
        self._owner.touch(self)

    def data_received(self, data: bytes) -> None:
        self._do(self.connection.receive, data)
        self._read_while_wanted()  # now: libuv reads a socket up to 32 times before the next turn of the loop

    def reading_changed(self) -> None:
        """See Reader."""
        self._do(self.connection.resume)

    def _do(self, action: Callable[..., None], *arguments: object) -> None:
        """Whatever a device can provoke ends with its connection."""
        try:
            action(*arguments, self._owner.now_ms())
        except Exception as error:  # noqa: BLE001
            self._owner.failed(self, error)
        self._owner.touch(self)

    def pause_writing(self) -> None:
        self.connection.writing_blocked(True, self._owner.now_ms())
        self._owner.touch(self)

    def resume_writing(self) -> None:
        self.connection.writing_blocked(False, self._owner.now_ms())
        self._owner.touch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._place is None:
            return
        self._owner.limits.connections.leave(self._place)
        self._transport = None
        self.connection.peer_closed(self._owner.now_ms())
        self._owner.touch(self)
        self._owner.closed(self)

    # --- Registrar ----------------------------------------------------------------------------------------------------------

    def await_turn(self, connection: Connection) -> Turn:
        place, limits = self._place, self._owner.limits
        assert place is not None  # it has just brought the CONNECT
        limits.connections.connect_read(place)
        turn = limits.connects.ask(self, place.host)
        if turn is Turn.NEVER:
            limits.refusals.reached(Limit.WAITING_CONNECTS, place.address)
        return turn

    def turn_has_come(self) -> None:
        """See Waiter."""
        if self._arrival().peer_is_gone:
            self.connection.peer_closed(self._owner.now_ms())
        self._do(self.connection.turn_has_come)

    def register(self, connection: Connection) -> Registration | None:
        """None also for a CONNECT that says nothing about the present: its device may have connected elsewhere since."""
        arrival = self._arrival()
        if arrival.peer_is_gone or arrival.waited_ms > self._owner.settings.connect_timeout_ms:
            self._owner.limits.late_connects.line(
                self._owner.now_ms(), client_id=connection.client_id, waited_ms=arrival.waited_ms, gone=arrival.peer_is_gone
            )
            return None
        return self._owner.register(self, arrival.waited_ms)

    def log_in(self, connection: Connection, connect: Connect) -> Grant | LoginRefused | None:
        if self._entrance.asks_nothing:
            return EVERYTHING
        owner, transport, place = self._owner, self._transport, self._place
        assert transport is not None  # else its CONNECT would wait no longer
        assert place is not None
        peer = Peer(place.address, self._entrance, transport.get_extra_info("peercert") or None)
        return owner.logins.log_in(connect, connection.client_id, peer, self._logged_in, owner.now_ms())

    def admitted(self, connection: Connection) -> None:
        self._owner.limits.connects.told(connection.connection_id)
        self._owner.admitted(self)

    def _arrival(self) -> Arrival:
        return arrival_of(None if self._transport is None else self._transport.get_extra_info("socket"))

    def _logged_in(self, judgement: Judgement) -> None:
        self.connection.logged_in(judgement, self._owner.now_ms())
        self._owner.touch(self)

    def new_client_id(self) -> str:
        return f"inflight-{secrets.token_hex(10)}"

    # --- for the owner ------------------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """What the device has not taken yet, of what was written."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """See Holder."""
        return 0 if self._is_cut_off else self.unsent_bytes + self.connection.held_bytes

    def give_up(self) -> None:
        """See Holder."""
        assert self._place is not None  # else it would hold nothing
        self._owner.limits.refusals.reached(Limit.TOTAL_BUFFERED_BYTES, self._place.address)
        self.shut_at_once("the gateway holds too much for all devices", ReasonCode.QUOTA_EXCEEDED)
        self._owner.touch(self)

    def shut_at_once(self, reason: str, reason_code: ReasonCode, *, reconnect_grace_ms: int = 0) -> None:
        """Write nothing any more but a goodbye, and not even that to a device that has not taken what was written before."""
        self.connection.shut(reason, reason_code, at_once=True, reconnect_grace_ms=reconnect_grace_ms)
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._is_cut_off = True
            self._transport.abort()

    def write_out(self) -> None:
        """Carry the connection's wishes out: bytes, pauses, the next timer, the end."""
        self._carry_out()
        self._owner.limits.buffered.holds(self, self.held_bytes)

    def _carry_out(self) -> None:
        connection = self.connection
        data = connection.take_output()
        transport = self._transport
        if connection.is_closed:
            self._owner.limits.connects.leave(self)
            self._owner.limits.unconfirmed.readers.pop(self, None)
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
        self._read_while_wanted()
        self._arm(connection.next_deadline_ms())

    def _read_while_wanted(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or self.connection.wants_data is self._is_reading:
            return
        self._is_reading = not self._is_reading
        if self._is_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

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
