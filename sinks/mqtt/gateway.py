"""The connections of a gateway: finds them, appends their records and closes them.

One event loop, no task per connection: asyncio protocols (device_socket.py), and one timer per connection.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from sinks.fast_path.offering import Offers
from sinks.health import STOPPING, UnmetCondition
from sinks.host.command_host import CommandHost
from sinks.host.command_order import BUILD_MISMATCH
from sinks.host.connection_ids import ConnectionKind
from sinks.kafka.append import Confirmation, EventLog, RecordTooLarge
from sinks.log_throttle import LogThrottle
from sinks.mqtt.access.authenticator import Authenticator, ListenerAuthPolicy
from sinks.mqtt.codec import framing
from sinks.mqtt.connection.append_queue import Answer, Append, AppendTopic
from sinks.mqtt.connection.connection import OTHER_CONFIGURATION, WireConnection
from sinks.mqtt.connection.effects import Effects, Register, Registration
from sinks.mqtt.connection.fast_path import OfferRefusal
from sinks.mqtt.connection.left_session import LeftSession, LeftSessions
from sinks.mqtt.connection.phases import CloseReason
from sinks.mqtt.device_socket import DeviceSocket
from sinks.mqtt.known_tables import NO_TABLES, KnownTables
from sinks.mqtt.limits.connection_counts import ConnectionSlot
from sinks.mqtt.limits.gateway_limits import GatewayLimits
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.pressure import LoopLagMonitor, Pressure
from sinks.mqtt.settings import GatewaySettings
from sinks.mqtt.system_topics import process_name
from state.commands import GatewayCommand, OfferPublish
from state.model import ClientId, Position, ReasonCode
from state.records.events import happened_at

_log: Final = structlog.get_logger(__name__)
_LATE_MS: Final = 50
"""A CONNECT that was in the kernel for this long had to wait for the process."""
_TICK_MS: Final = 10
"""Resolution of that time: Linux counts it in ticks of its timer."""
_ENGINE_FOLLOWS_MS: Final = 15_000
"""After session settings have changed in the file, the engine takes them over with one of its next micro-batches."""
_COMPACTED: Final = (AppendTopic.SUBSCRIPTIONS, AppendTopic.RETAINED)
_GATEWAY: Final = "gateway"
"""The cause, in the metrics, of an end for which the device is not responsible."""
_STOPS: Final = CloseReason("the gateway is stopping", _GATEWAY, ReasonCode.SERVER_SHUTTING_DOWN)
_MOVED: Final = CloseReason("the gateway lost the partition", _GATEWAY, ReasonCode.SERVER_BUSY)
_LEASE_PASSED: Final = CloseReason("the lease of the gateway has passed", _GATEWAY, ReasonCode.SERVER_BUSY)
_FAILED: Final = CloseReason("the gateway failed", _GATEWAY, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


class Gateway(CommandHost[DeviceSocket]):
    """The connections of one gateway. Implements SocketHost (for sockets), OfferListener (for the router) and Drainable.

    Args:
        clock_ns: Numbers the connections, and judges whether a message has expired. Nanoseconds since 1970.
        has_brokers_time: Returns True if all gateways have that clock.
        tables: Those of routing.
        look_up: Brings them up to the log, and answers on the loop whether they are.
        waits: Returns True if publications with this key wait for a recipient that is connected and behind.
        read_to: Returns up to where the router of this process has read the messages of a client; None = another one reads them.
        newest: Returns a position that no message of the client is above, of those that it has read; None likewise.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        log: EventLog,
        counters: GatewayCounters,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        has_brokers_time: Callable[[], bool] = lambda: False,
        tables: KnownTables = NO_TABLES,
        look_up: Callable[[Callable[[bool], None]], None] = lambda answer: answer(False),
        waits: Callable[[bytes], bool] = lambda key: False,
        read_to: Callable[[ClientId], Position | None] = lambda client_id: None,
        newest: Callable[[ClientId], Position | None] = lambda client_id: None,
    ) -> None:
        holder = f"gateway {settings.host}:{settings.port}"
        topic = settings.fast_path.wake_ups_topic if settings.fast_path.enabled else None
        super().__init__(ConnectionKind.GATEWAY, settings, log, counters, holder=holder, clock_ns=clock_ns, wake_ups_topic=topic)
        self.settings = settings
        self.name = process_name(settings.group_instance_id)
        """The name that backends and operators see."""
        self.counters = counters
        self._clock_ns = clock_ns
        self._has_brokers_time = has_brokers_time
        self._tables = tables
        self._look_up = look_up
        self._waits = waits
        self._read_to = read_to
        self._topics = {
            AppendTopic.EVENTS: settings.events_topic,
            AppendTopic.UPLINK: settings.uplink_topic,
            AppendTopic.SUBSCRIPTIONS: settings.routing.subscriptions_topic,
            AppendTopic.RETAINED: settings.routing.retained_topic,
        }
        self.authenticator = Authenticator(settings, counters)
        self.limits = GatewayLimits(settings, counters)
        self._by_client: dict[ClientId, DeviceSocket] = {}
        """The newest authenticated socket of each client. A client id alone must not attract offers."""
        self._left_sessions = LeftSessions(newest)
        self._leaving: Counter[ClientId] = Counter()
        """Records that say what becomes of sessions behind their connections, and which Kafka has not confirmed."""
        self._looking_up: defaultdict[ClientId, list[Callable[[bool], None]]] = defaultdict(list)
        """Those who wait for such a record."""
        self._to_write: dict[DeviceSocket, None] = {}
        """Sockets whose answers are free and not written, in order."""
        self._pressure = Pressure(settings.fast_path)
        self._lag_monitor = LoopLagMonitor(self._observe_lag)
        self._registered = 0
        self._sockets: set[DeviceSocket] = set()
        self._answers_for_engine_from_ms = 0
        self._other_configuration = 0
        self._drained = asyncio.Event()
        self._failed_connections = LogThrottle(_log.error, "connection_failed", "more_connections_failed")

    def start(self) -> None:
        self.lease.start()
        self._lag_monitor.start()

    def reconfigure(self, settings: GatewaySettings) -> None:
        """Applies other limits, ways to log in, rules and session settings of the engine to new connections.

        The limits of all devices together hold at once. The other settings stay. If it raises UnusableFile, nothing has changed.
        """
        self.authenticator.reconfigure(settings)
        self.limits.reconfigure(settings.device_limits)
        before = self.settings
        if (settings.session, settings.profiles) != (before.session, before.profiles):
            self._answers_for_engine_from_ms = self.now_ms() + _ENGINE_FOLLOWS_MS
            self._other_configuration = self.counters.connections_lost[OTHER_CONFIGURATION]
        self.settings = replace(
            before,
            device_limits=settings.device_limits,
            login=settings.login,
            rules=settings.rules,
            session=settings.session,
            profiles=settings.profiles,
        )

    def flush_logs(self) -> None:
        """Calls `LogThrottle.flush` of each log. Call it every second."""
        self.limits.flush_logs()
        self.failed_appends.flush()
        self._failed_connections.flush()

    # --- for sockets ----------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    def new_socket(self, policy: ListenerAuthPolicy, slot: ConnectionSlot | None = None) -> DeviceSocket:
        """Makes the protocol of an accepted socket.

        Args:
            slot: None = the socket is not counted yet.
        """
        return DeviceSocket(self, policy, slot)

    def opened(self, socket: DeviceSocket) -> None:
        self._sockets.add(socket)
        if self.is_stopping:  # it was being accepted, or in its TLS handshake
            self.close_gracefully(socket)

    def register(self, socket: DeviceSocket, request: Register, client_id: ClientId, waited_ms: int) -> Registration | None:
        """Gives a CONNECT an id.

        Args:
            waited_ms: Milliseconds since the CONNECT came in.

        Returns:
            None if the gateway accepts no device now.
        """
        if not self.partitions or self.is_stopping or not self.lease.holds():
            return None
        if request.refusal is not None:  # it was refused although it was prompt: its id must be above the newest
            self.connections.pop(request.refusal.connection_id, None)
            waited_ms = 0
        is_late = waited_ms >= _LATE_MS
        connection_id = self._ids.of_the_past(waited_ms + _TICK_MS) if is_late else self._ids.next()
        while connection_id in self.connections:
            connection_id = self._ids.of_the_past(waited_ms + _TICK_MS)
        # In turn, so that a partition that moves away takes only its share of the connections with it.
        self._registered += 1
        partition = self.partitions[self._registered % len(self.partitions)]
        self.connections[connection_id] = socket
        socket.client_id = client_id
        # A running engine may have reloaded other settings. From the first difference on, only the engine answers.
        knows_settings = (
            self.settings.fast_path.enabled
            and self.counters.connections_lost[OTHER_CONFIGURATION] == self._other_configuration
            and self.now_ms() >= self._answers_for_engine_from_ms
        )
        return Registration(
            connection_id=connection_id,
            client_id=client_id,
            partition=partition,
            lease_id=self.lease.lease_id,
            knows_settings=knows_settings,
            serves_at_once=self._has_brokers_time(),
            is_late=is_late,
            tables=self._tables,
            gateway=self.name,
            read_to=self._read_to(client_id),
            left_sessions=self._left_sessions,
        )

    def look_up(self, client_id: ClientId, answer: Callable[[bool], None]) -> None:
        """Has the tables brought up to the log.

        What this gateway has just written of the end of a connection or session comes first: its client does not wait for it.

        Args:
            answer: Called on the loop, and told whether the tables are up to the log.
        """
        if self._leaving[client_id]:
            self._looking_up[client_id].append(answer)
        else:
            self._look_up(answer)

    def look_for_later(self, socket: DeviceSocket) -> None:
        """Has the tables brought up to the log, and tells a connection whether they have a later one of its client."""
        self._look_up(partial(self._looked_for_later, socket, self._clock_ns() // 1_000_000))

    def _looked_for_later(self, socket: DeviceSocket, asked_ms: int, is_current: bool) -> None:
        connection = socket.connection
        is_newest = is_current and self.lease.holds() and self._tables.marked_by(connection.client_id) == connection.connection_id
        socket.feed(connection.looked_for_later, is_newest, asked_ms)

    def _has_left(self, client_id: ClientId) -> None:
        """Kafka has a record by which a client leaves, or will never have it."""
        self._leaving[client_id] -= 1
        if not self._leaving[client_id]:
            del self._leaving[client_id]
            for answer in self._looking_up.pop(client_id, ()):
                self.look_up(client_id, answer)

    def announced(self, socket: DeviceSocket) -> None:
        """Directs offers for a client to this authenticated socket, unless the client has a newer connection here."""
        connection = socket.connection
        self._left_sessions.take(connection.client_id)
        newest = self._by_client.get(connection.client_id)
        if newest is None or newest.connection.connection_id < connection.connection_id:
            self._by_client[connection.client_id] = socket
            socket.earlier = newest

    def append_all(self, socket: DeviceSocket, appends: list[Append]) -> None:
        """Hands records of a connection to Kafka, in their order."""
        connection, topics = socket.connection, self._topics
        for append in appends:
            value: bytes | None = append.value
            if not value and append.topic in _COMPACTED:
                value = None  # so that compaction forgets the key
            if append.delays_lookups:
                self._leaving[connection.client_id] += 1
            topic, key, may_linger = topics[append.topic], append.key or connection.key, append.may_linger
            if may_linger and value and self._has_brokers_time():
                value = happened_at(value, self._clock_ns() // 1_000_000)  # it is appended later, and Kafka gives it that time
            self.append(topic, key, value, append.headers, partial(self._appended, socket, append), may_linger=may_linger)
            if not may_linger and connection.is_low_rate(self.now_ms()):
                self.limits.rate_limiter.appended(1)
                append.waits_since_s = time.monotonic()

    def _appended(self, socket: DeviceSocket, append: Append, error: Exception | None) -> None:
        connection, failure = socket.connection, ReasonCode.SUCCESS
        if append.waits_since_s is not None:
            self.limits.rate_limiter.confirmed(None if error else 1_000 * (time.monotonic() - append.waits_since_s))
        if error is None and append.answer is not None and append.hands_on is None and self._waits(connection.key):
            self._delay_answer(socket, append)
        if error is None and connection.settle(append):
            if append.answer is not None:
                self._write_later(socket)
            return
        if error is not None:
            self._left_sessions.take(connection.client_id)
            failure = ReasonCode.PACKET_TOO_LARGE if isinstance(error, RecordTooLarge) else ReasonCode.SERVER_BUSY
        if append.is_farewell and error is None:
            self._ended.remember(connection.connection_id)
        elif append.is_farewell:
            self._ended.not_told(connection.connection_id, connection.key, append.value)
        if append.is_urgent and append.topic is AppendTopic.EVENTS:
            self.wake_ups.send()
        socket.feed(connection.confirm, append, failure)
        if append.delays_lookups:  # not before: a mark may follow the end of the connection
            self._has_left(connection.client_id)

    def _delay_answer(self, socket: DeviceSocket, append: Append) -> None:
        """Lets a device wait for PUBACK or PUBREC: what it publishes waits in the log."""
        answer, delay_ms = append.answer, self.settings.answer_delay_ms
        if answer is None or answer.data[0] not in (framing.PUBACK, framing.PUBREC) or not delay_ms or self.is_stopping:
            return
        if not socket.connection.is_closed and socket.connection.delay_answer(append) is not None:
            self.counters.answers_delayed += 1
            self._loop.call_later(delay_ms / 1_000, self._answer_due, socket, answer)

    def _answer_due(self, socket: DeviceSocket, answer: Answer) -> None:
        if not socket.connection.is_closed:
            socket.feed(socket.connection.answer_due, answer)

    def _write_later(self, socket: DeviceSocket) -> None:
        """Has the answers of a connection written when all confirmations that came together are handled."""
        if not self._to_write:
            self._loop.call_soon(self._write_settled)
        self._to_write[socket] = None

    def _write_settled(self) -> None:
        sockets, self._to_write = self._to_write, {}
        for socket in sockets:
            socket.feed(socket.connection.write_settled)

    def _confirmed(self, done: Confirmation, error: Exception | None) -> None:
        self.counters.appends_confirmed += error is None
        super()._confirmed(done, error)
        if self.is_stopping:
            self._check_drained()

    def failed(self, socket: DeviceSocket, error: Exception) -> Effects:
        """Makes a bug visible. This connection ends, the gateway goes on."""
        self.counters.bugs += 1
        self._failed_connections.line(client_id=socket.client_id, exc_info=error, action="please report this")
        return socket.connection.close(_FAILED, 0, self.now_ms())

    def forget(self, socket: DeviceSocket) -> None:
        """Removes a socket whose connection is over."""
        connection = socket.connection
        self.connections.pop(connection.connection_id, None)
        newest = self._by_client.get(connection.client_id)
        if newest is socket:
            if connection.left is not None and self.lease.holds() and not self.is_stopping:
                self._left_sessions.keep(connection.client_id, connection.left)
            connection.left = None
            del self._by_client[connection.client_id]
        elif newest is not None and newest.earlier is socket:
            newest.earlier = socket.earlier
        socket.earlier = None
        self._check_drained()

    def closed(self, socket: DeviceSocket) -> None:
        self._sockets.discard(socket)
        self._check_drained()

    # --- CommandHost ----------------------------------------------------------------------------------------------------------

    def missing(self) -> Iterator[UnmetCondition]:
        if self.is_stopping:
            yield STOPPING
        yield from super().missing()

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        closed_before = self.counters.closed_for_other_code
        not_here = super().commands(partition, values)
        if closed := self.counters.closed_for_other_code - closed_before:
            _log.warning("connections_closed", count=closed, reason=BUILD_MISMATCH)
        return not_here

    def _carry_out(self, connection: DeviceSocket, commands: Sequence[GatewayCommand], code: str) -> None:
        connection.feed(connection.connection.apply, commands, code)

    def _not_here(self, client_id: ClientId, command: GatewayCommand) -> None:
        if self._ended.concerns(command):
            self.counters.commands_without_connection += 1
            self._ended.tell_lost_once(client_id, command, "no gateway holds this connection")

    def _answered(self, connection_id: int) -> None:
        self.limits.connects.answered(connection_id)

    def _close_all(self) -> None:
        for socket in list(self.connections.values()):
            socket.close_at_once(_LEASE_PASSED, self.settings.reconnect_grace_ms)

    def _partitions_lost(self, partitions: frozenset[int]) -> None:
        moved = [socket for socket in self.connections.values() if socket.connection.partition in partitions]
        for socket in moved:
            self.close_gracefully(socket, _MOVED)
        if moved:
            self._loop.call_later(self.settings.stop_timeout_ms / 1_000, self._close, moved, _MOVED)

    # --- the routing tables ---------------------------------------------------------------------------------------------------

    def lower_list_read(self, client_id: ClientId) -> None:
        """Implements TableListener of the table reader, on its thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._repeat_list, client_id)

    def _repeat_list(self, client_id: ClientId) -> None:
        socket = self._by_client.get(client_id)
        if socket is not None and self.lease.holds():
            socket.feed(socket.connection.repeat_list)

    # --- offers ---------------------------------------------------------------------------------------------------------------

    def connection_of(self, client_id: ClientId) -> WireConnection | LeftSession | None:
        """Returns the client's newest authenticated connection, or what it has left; None = neither. Safe on any thread."""
        socket = self._by_client.get(client_id)
        return self._left_sessions.get(client_id) if socket is None else socket.connection

    @property
    def is_under_pressure(self) -> bool:
        """Returns True if offers would be refused. Safe on any thread."""
        return self._pressure.is_high(self.now_ms())

    def offers(self, offers: Offers, waiting: int) -> None:
        """Hands the router's offers to their connections.

        Args:
            waiting: Offers that are not handed over yet.
        """
        counters = self.counters
        self._pressure.observe(self.now_ms(), unconfirmed=counters.appends_unconfirmed, offers=waiting)
        if offers.dropped:
            counters.offers_refused[OfferRefusal.PRESSURE] += offers.dropped
        if offers.skipped:
            counters.offers_refused[OfferRefusal.BURST] += offers.skipped
        counters.offers_ignored += offers.closed
        if offers.is_slow or offers.dropped or offers.skipped or offers.closed:
            self.wake_ups.send()
        if len(offers.here) == 1:
            [(client_id, offer)] = offers.here
            self._offer(self._by_client.get(client_id), client_id, [offer])
            return
        by_client: dict[ClientId, list[OfferPublish]] = {}
        for client_id, offer in offers.here:
            if (others := by_client.get(client_id)) is None:
                by_client[client_id] = [offer]
            else:
                others.append(offer)
        for client_id, all_of_client in by_client.items():
            self._offer(self._by_client.get(client_id), client_id, all_of_client)

    def _offered(self, client_id: ClientId, offer: OfferPublish) -> None:
        self._offer(self.connections.get(offer.connection_id), client_id, [offer])

    def _offer(self, socket: DeviceSocket | None, client_id: ClientId, offers: list[OfferPublish]) -> None:
        """Hands the offers of a client to its connection at once, so that what it takes shares records and writes."""
        if socket is None and self._left_sessions.get(client_id) is not None:
            self._left_sessions.offer(client_id, offers, self._clock_ns() // 1_000_000 - self.now_ms())
            return
        counters, connection = self.counters, None if socket is None else socket.connection
        taken, is_held, mine = counters.offers_taken, False, offers
        if connection is None or connection.client_id != client_id:
            mine = []
        elif len(offers) > 1 or offers[0].connection_id != connection.connection_id:
            mine = [offer for offer in offers if offer.connection_id == connection.connection_id]
        counters.offers_ignored += len(offers) - len(mine)
        if socket is not None and connection is not None and mine:
            socket.feed(connection.offer, mine, self._pressure.is_high(self.now_ms()), self._clock_ns() // 1_000_000)
            is_held = connection.held_offers_bytes > 0 and not connection.needs_session  # it waits for a slot
        all_are_taken = counters.offers_taken - taken == len(offers)
        if not (all_are_taken or is_held) or (connection is not None and connection.needs_session):
            self.wake_ups.send()

    def _observe_lag(self, loop_lag_ms: float) -> None:
        now_ms = self.now_ms()
        self.limits.rate_limiter.observe_lag(loop_lag_ms)
        self._pressure.observe_lag(now_ms, loop_lag_ms)
        self._pressure.observe(now_ms, unconfirmed=self.counters.appends_unconfirmed)

    def count_load(self) -> None:
        """Measures the gauges and the progress that need every socket; called about once a second."""
        self.counters.partitions_owned = len(self.partitions)
        self.counters.sessions_left = len(self._left_sessions)
        self.counters.sockets_open = len(self._sockets)
        for socket in list(self._sockets):
            socket.measure_progress()
        unsent = [socket.unsent_bytes for socket in self._sockets]
        self.counters.unsent_bytes = sum(unsent)
        self.limits.buffered.measure()
        self.counters.clients_contested = self.limits.takeovers.contested(self.now_ms())
        self.counters.fair_share = self.limits.rate_limiter.share
        self.counters.buffered_bytes = self.limits.buffered.size_bytes
        self.counters.writers_blocked = sum(size > self.settings.max_write_buffer_bytes for size in unsent)

    # --- the end --------------------------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Stops accepting devices."""
        self.is_stopping = True
        self.ready.clear()

    def all_connections(self) -> Sequence[DeviceSocket]:
        """Returns every socket: those without a CONNECT too, and closed ones whose end Kafka has not confirmed."""
        return list(self._sockets | set(self.connections.values()))

    def close_gracefully(self, socket: DeviceSocket, why: CloseReason = _STOPS) -> None:
        """Closes a socket when its end is in the log; see WireConnection."""
        socket.feed(socket.connection.close_gracefully, why, self.settings.reconnect_grace_ms)

    def _close(self, sockets: Sequence[DeviceSocket], why: CloseReason) -> None:
        for socket in sockets:
            socket.feed(socket.connection.close, why, self.settings.reconnect_grace_ms)

    async def until_drained(self) -> None:
        """Waits until no socket is left and Kafka has confirmed everything. Call `stop_accepting` before."""
        self._check_drained()
        await self._drained.wait()

    def stop(self) -> None:
        """Closes all sockets that are left at once."""
        self.stop_accepting()
        self._lag_monitor.stop()
        self._close(self.all_connections(), _STOPS)
        self._end_lease()

    def _check_drained(self) -> None:
        if self.is_stopping and not (self._sockets or self.connections or self.counters.appends_unconfirmed):
            self._drained.set()
