"""Every connection of a gateway: sockets, Kafka and time around `Connection`.

One event loop, no task per connection: asyncio protocols, one timer per connection, and one pass over the connections that
something happened to, which coalesces their writes.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from sinks.command_order import OTHER_CODE
from sinks.connection_ids import ConnectionIds, ConnectionKind
from sinks.ended_connections import EndedConnections
from sinks.fast_path.offering import Offers
from sinks.fast_path.pressure import Pressure
from sinks.health import NO_LEASE, NO_PARTITION, STOPPING, UnmetCondition
from sinks.kafka.append import Confirmation, EventLog, RecordTooLarge
from sinks.lease import HeldLease
from sinks.mqtt.access.entrance import Entrance
from sinks.mqtt.access.logins import Logins
from sinks.mqtt.connection.appends import Append
from sinks.mqtt.connection.connection import OTHER_CONFIGURATION, Connection
from sinks.mqtt.connection.fast_sender import Refusal
from sinks.mqtt.connection.handshake import Registration
from sinks.mqtt.connection.phases import Going
from sinks.mqtt.device_socket import DeviceSocket
from sinks.mqtt.limits.connection_counts import Place
from sinks.mqtt.limits.gateway_limits import GatewayLimits
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.pulse import Pulse
from sinks.mqtt.settings import GatewaySettings
from state.commands import AcceptConnection, CloseConnection, GatewayCommand, OfferPublish
from state.errors import UnreadableRecord
from state.model import ClientId, ReasonCode
from state.records.commands import decode_command_batch

_log: Final = structlog.get_logger(__name__)
_LATE_MS: Final = 50
"""A CONNECT that was in the kernel for so long had to wait for this process."""
_TICK_MS: Final = 10
"""Linux counts that in steps of its timer, which are no longer."""
_ENGINE_FOLLOWS_MS: Final = 15_000
"""After session settings have changed in the file: the engine takes them over, too, with one of its next micro-batches."""
_STOPS: Final = Going("the gateway is stopping", ReasonCode.SERVER_SHUTTING_DOWN)
_MOVED: Final = Going("the gateway lost the partition", ReasonCode.SERVER_BUSY)


class Gateway:
    """Every connection of one gateway, and the partitions of the commands topic over which the engine reaches them.

    Implements DeviceSocketOwner (for sockets), CommandListener (for the command tail), OfferListener (for the router) and
    Drainable.
    """

    def __init__(
        self, settings: GatewaySettings, log: EventLog, counters: GatewayCounters, *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """clock_ns: by which connections are numbered."""
        self.settings = settings
        self.counters = counters
        self.logins = Logins(settings, counters)
        self.limits = GatewayLimits(settings, counters)
        self.ready = asyncio.Event()
        """Devices can connect: there are a partition and a lease."""
        self._kafka = log
        self._loop = asyncio.get_running_loop()
        self._by_connection: dict[int, DeviceSocket] = {}
        self._by_client: dict[ClientId, DeviceSocket] = {}
        """The newest of each client here that has logged in: whoever only names a client gets no offers in its place."""
        self._pressure = Pressure(settings.fast_path)
        self._pulse = Pulse(self._observe_lag)
        self._registered = 0
        self._sockets: set[DeviceSocket] = set()
        self._partitions: list[int] = []
        self._ids = ConnectionIds(ConnectionKind.GATEWAY, clock_ns=clock_ns)
        self._ended = EndedConnections(ConnectionKind.GATEWAY, self._append_event)
        self.lease = HeldLease(
            log,
            topic=settings.leases_topic,
            holder=f"gateway {settings.host}:{settings.port}",
            duration_ms=settings.lease_ms,
            taken=self._tell_ready,
            passed=self._lease_passed,
            renewing=self._ended.say_again,
        )
        self._dirty: dict[DeviceSocket, None] = {}
        self._sweep_scheduled = False
        self._says_connack_from_ms = 0
        self._other_configuration = 0
        self._is_stopping = False
        self._nobody_is_left = asyncio.Event()

    def start(self) -> None:
        """Apply for a lease."""
        self.lease.start()
        self._pulse.start()

    def take(self, settings: GatewaySettings) -> None:
        """Other limits, ways to log in, rules, and session settings of the engine, for connections to come; the limits of all
        devices together hold at once. The rest of the settings stays. Raises UnusableFile, and everything is as before."""
        self.logins.take(settings)
        self.limits.take(settings.device_limits)
        before = self.settings
        if (settings.session, settings.profiles) != (before.session, before.profiles):
            self._says_connack_from_ms = self.now_ms() + _ENGINE_FOLLOWS_MS
            self._other_configuration = self.counters.connections_lost[OTHER_CONFIGURATION]
        self.settings = replace(
            before,
            device_limits=settings.device_limits,
            login=settings.login,
            rules=settings.rules,
            session=settings.session,
            profiles=settings.profiles,
        )

    # --- CONNECT ------------------------------------------------------------------------------------------------------------

    def register(self, socket: DeviceSocket, waited_ms: int) -> Registration | None:
        """waited_ms: since the CONNECT came in. None = nobody is taken in."""
        if not self._partitions or self._is_stopping or not self.lease.holds():
            return None
        if self._by_connection.pop(socket.connection.connection_id, None) is not None:
            waited_ms = 0  # it was refused although it was prompt, and has to be above the newest
        is_late = waited_ms >= _LATE_MS
        connection_id = self._ids.of_the_past(waited_ms + _TICK_MS) if is_late else self._ids.next()
        while connection_id in self._by_connection:
            connection_id = self._ids.of_the_past(waited_ms + _TICK_MS)
        # In turn, so that a partition that moves away takes no more than its share of the connections along.
        self._registered += 1
        partition = self._partitions[self._registered % len(self._partitions)]
        self._by_connection[connection_id] = socket
        # An engine that takes settings over while it runs may have others; then it speaks for itself from the first time on.
        knows_settings = (
            self.settings.fast_path.enabled
            and self.counters.connections_lost[OTHER_CONFIGURATION] == self._other_configuration
            and self.now_ms() >= self._says_connack_from_ms
        )
        return Registration(connection_id, partition, self.lease.lease_id, knows_settings, is_late)

    def admitted(self, socket: DeviceSocket) -> None:
        """Its login may have taken longer than that of a newer connection."""
        connection = socket.connection
        newest = self._by_client.get(connection.client_id)
        if newest is None or newest.connection.connection_id < connection.connection_id:
            self._by_client[connection.client_id] = socket

    # --- CommandListener ----------------------------------------------------------------------------------------------------

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        self._partitions = sorted({*self._partitions, *partitions})
        _log.info("partitions_assigned", owned=self._partitions)
        self._tell_ready()

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        self._partitions = sorted({*self._partitions} - partitions)
        _log.info("partitions_revoked", owned=self._partitions)
        if not self._partitions:
            self.ready.clear()
        moved = [socket for socket in self._by_connection.values() if socket.connection.partition in partitions]
        for socket in moved:
            self._let_go(socket, _MOVED)
        if moved:
            self._loop.call_later(self.settings.stop_timeout_ms / 1_000, self._shut, moved, _MOVED)

    def _tell_ready(self) -> None:
        if self._partitions and self.lease.holds():
            self.ready.set()

    def missing(self) -> Iterator[UnmetCondition]:
        """What devices need and is not there."""
        if self._is_stopping:
            yield STOPPING
        if not self._partitions:
            yield NO_PARTITION
        if not self.lease.holds():
            yield NO_LEASE

    def _lease_passed(self) -> None:
        """Others may speak for our connections soon."""
        self.counters.leases_lost += 1
        self.ready.clear()
        for socket in list(self._by_connection.values()):
            socket.shut_at_once(
                "the lease of the gateway has passed", ReasonCode.SERVER_BUSY, reconnect_grace_ms=self.settings.reconnect_grace_ms
            )
            self.touch(socket)

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        now_ms = self.now_ms()
        not_here: list[Callable[[], None]] = []
        sockets = self._by_connection
        mixed_before = self.counters.closed_for_other_code
        for value in values:
            try:
                batch = decode_command_batch(value)
            except UnreadableRecord as error:
                self.counters.unreadable_commands += 1
                _log.warning("unreadable_command", partition=partition, error=str(error))
                continue
            for command in batch.commands:
                if isinstance(command, OfferPublish):
                    self._offer(sockets.get(command.connection_id), batch.client_id, command)
                    continue
                if isinstance(command, AcceptConnection | CloseConnection):
                    self.limits.connects.answered(command.connection_id)
                if isinstance(command, CloseConnection):
                    self._ids.rise_above(command.newest_connection_id)
                socket = sockets.get(command.connection_id)
                if socket is None or socket.connection.client_id != batch.client_id:
                    not_here.append(partial(self._not_here, batch.client_id, command))
                    continue
                try:
                    socket.connection.apply(command, now_ms, batch.code)
                except Exception as error:  # noqa: BLE001 - a bug of ours costs one connection, not the batch
                    self.failed(socket, error)
                self.touch(socket)
        if mixed := self.counters.closed_for_other_code - mixed_before:
            _log.warning("connections_closed", count=mixed, reason=OTHER_CODE)
        return not_here

    def _not_here(self, client_id: ClientId, command: GatewayCommand) -> None:
        if self._ended.concerns(command):
            self.counters.commands_without_connection += 1
            self._ended.tell_lost_once(client_id, command, "no gateway holds this connection")

    # --- OfferListener --------------------------------------------------------------------------------------------------------

    def connection_of(self, client_id: ClientId) -> Connection | None:
        """The newest connection of this client here that has logged in, None = there is none. On any thread."""
        socket = self._by_client.get(client_id)
        return None if socket is None else socket.connection

    @property
    def is_under_pressure(self) -> bool:
        """Offers would be refused. On any thread."""
        return self._pressure.is_high(self.now_ms())

    def offers(self, offers: Offers, waiting: int) -> None:
        """What the router has read for connections of this process. waiting: offers that follow, not handed over yet."""
        counters = self.counters
        self._pressure.observe(self.now_ms(), unconfirmed=counters.appends_unconfirmed, offers=waiting)
        if offers.dropped:
            counters.offers_refused[Refusal.PRESSURE] += offers.dropped
        if offers.broken:
            counters.offers_refused[Refusal.BROKEN] += offers.broken
        counters.offers_ignored += offers.closed
        for client_id, offer in offers.here:
            self._offer(self._by_client.get(client_id), client_id, offer)

    def _offer(self, socket: DeviceSocket | None, client_id: ClientId, offer: OfferPublish) -> None:
        if socket is None or not self.lease.holds():
            self.counters.offers_ignored += 1
            return
        connection = socket.connection
        if connection.client_id != client_id or connection.connection_id != offer.connection_id:
            self.counters.offers_ignored += 1
            return
        now_ms = self.now_ms()
        try:
            connection.offer(offer, now_ms, time.time_ns() // 1_000_000, under_pressure=self._pressure.is_high(now_ms))
        except Exception as error:  # noqa: BLE001 - as in `commands`
            self.failed(socket, error)
        self.touch(socket)

    def _observe_lag(self, loop_lag_ms: float) -> None:
        now_ms = self.now_ms()
        self.limits.fair_share.beat(loop_lag_ms)
        self._pressure.beat(now_ms, loop_lag_ms)
        self._pressure.observe(now_ms, unconfirmed=self.counters.appends_unconfirmed)

    # --- records --------------------------------------------------------------------------------------------------------------

    def _append_event(self, key: bytes, value: bytes, done: Confirmation) -> None:
        self.counters.appends_unconfirmed += 1
        self._kafka.append(self.settings.events_topic, key, value, None, partial(self._appended, done))

    def _appended(self, done: Confirmation, error: Exception | None) -> None:
        self._count_confirmation(error)
        done(error)
        self._end_lease()

    # --- sockets --------------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Monotonic."""
        return int(self._loop.time() * 1_000)

    def new_socket(self, entrance: Entrance, place: Place | None = None) -> DeviceSocket:
        """The protocol of a socket that was just accepted. place: what it counts as; None = it is not counted yet."""
        return DeviceSocket(self, entrance, place)

    def opened(self, socket: DeviceSocket) -> None:
        self._sockets.add(socket)
        if self._is_stopping:  # it was being accepted, or in its TLS handshake
            self.let_go(socket)

    def touch(self, socket: DeviceSocket) -> None:
        """Something happened to this connection: look after it once this turn of the loop is over."""
        self._dirty[socket] = None
        if not self._sweep_scheduled:
            self._sweep_scheduled = True
            self._loop.call_soon(self._sweep)

    def _sweep(self) -> None:
        self._sweep_scheduled = False
        dirty, self._dirty = self._dirty, {}
        for socket in dirty:
            self.lease.holds()  # before anything is written: this process may have stood still
            connection = socket.connection
            appends = connection.take_appends()
            waits_since_s = time.monotonic() if appends and connection.is_modest(self.now_ms()) else None
            if waits_since_s is not None:
                self.limits.fair_share.handed_over(len(appends))
            for append in appends:
                append.waits_since_s = waits_since_s
                self.counters.appends_unconfirmed += 1
                self._kafka.append(
                    self.settings.uplink_topic if append.is_uplink else self.settings.events_topic,
                    connection.key,
                    append.value,
                    append.headers,
                    partial(self._confirmed, socket, append),
                )
            socket.write_out()
            if connection.is_closed:
                self._by_connection.pop(connection.connection_id, None)
                if self._by_client.get(connection.client_id) is socket:
                    del self._by_client[connection.client_id]
        self._look_whether_somebody_is_left()

    def _confirmed(self, socket: DeviceSocket, append: Append, error: Exception | None) -> None:
        self._count_confirmation(error)
        connection = socket.connection
        if append.is_farewell and error is None:
            self._ended.remember(connection.connection_id)
        elif append.is_farewell:
            self._ended.not_told(connection.connection_id, connection.key, append.value)
        if append.waits_since_s is not None:
            self.limits.fair_share.waited(None if error else 1_000 * (time.monotonic() - append.waits_since_s))
        try:
            connection.confirm(append, error, self.now_ms(), too_large=isinstance(error, RecordTooLarge))
        except Exception as bug:  # noqa: BLE001 - as in `commands`
            self.failed(socket, bug)
        self.touch(socket)
        self._end_lease()

    def _count_confirmation(self, error: Exception | None) -> None:
        self.counters.appends_unconfirmed -= 1
        if error is None:
            self.counters.appends_confirmed += 1
        else:
            self.counters.appends_failed += 1
            _log.warning("append_failed", error=str(error), action="check the brokers and the topics' min.insync.replicas")

    def failed(self, socket: DeviceSocket, error: Exception) -> None:
        """A bug, made visible: this connection ends, the gateway goes on."""
        self.counters.bugs += 1
        _log.error("connection_failed", client_id=socket.connection.client_id, exc_info=error, action="please report this")
        socket.connection.shut("the gateway failed", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)

    def closed(self, socket: DeviceSocket) -> None:
        self._sockets.discard(socket)
        self._look_whether_somebody_is_left()

    def count_load(self) -> None:
        """The gauges that cost a look at every socket; called about once a second."""
        self.counters.partitions_owned = len(self._partitions)
        self.counters.sockets_open = len(self._sockets)
        unsent = [socket.unsent_bytes for socket in self._sockets]
        self.counters.unsent_bytes = sum(unsent)
        self.limits.buffered.look()
        self.counters.fair_share = self.limits.fair_share.share
        self.counters.buffered_bytes = self.limits.buffered.size_bytes
        self.counters.writers_blocked = sum(size > self.settings.max_write_buffer_bytes for size in unsent)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def refuse_newcomers(self) -> None:
        """Take nobody in any more."""
        self._is_stopping = True
        self.ready.clear()

    def connections(self) -> Sequence[DeviceSocket]:
        """Sockets without a CONNECT included, and what is not told to Kafka yet of those that are gone."""
        return list(self._sockets | set(self._by_connection.values()))

    def let_go(self, connection: DeviceSocket) -> None:
        """See Connection."""
        self._let_go(connection, _STOPS)

    def _let_go(self, socket: DeviceSocket, why: Going) -> None:
        socket.connection.let_go(why.reason, why.reason_code, reconnect_grace_ms=self.settings.reconnect_grace_ms)
        self.touch(socket)

    def _shut(self, sockets: Iterable[DeviceSocket], why: Going) -> None:
        for socket in sockets:
            socket.connection.shut(why.reason, why.reason_code, reconnect_grace_ms=self.settings.reconnect_grace_ms)
            self.touch(socket)

    async def until_nobody_is_left(self) -> None:
        """… and Kafka has confirmed everything. Call `refuse_newcomers` before."""
        self._look_whether_somebody_is_left()
        await self._nobody_is_left.wait()

    def stop(self) -> None:
        """Say goodbye at once to everybody who is left."""
        self.refuse_newcomers()
        self._pulse.stop()
        self._shut(self.connections(), _STOPS)
        self._sweep()
        self._end_lease()

    def _look_whether_somebody_is_left(self) -> None:
        if self._is_stopping and not (self._sockets or self._by_connection or self.counters.appends_unconfirmed):
            self._nobody_is_left.set()

    def _end_lease(self) -> None:
        """Once everything is said; else the lease passes by itself."""
        if self._is_stopping and not self._by_connection and not self.counters.appends_unconfirmed:
            self.lease.end(all_told=self._ended.all_told)
