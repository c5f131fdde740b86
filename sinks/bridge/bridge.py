"""The bridge process: devices behind a broker that the user already runs, Kafka on the other side.

To the engine a bridge is a gateway: it appends `ClientConnected` and so on for each device and carries out the commands for the
connections that it holds. Between it and the device is a broker instead of a socket.

Rules
1. A device is held by the bridge that owns the partition of `inflight.commands` to which its client id hashes. Every bridge hears
   all presence, the owner connects the device; when a partition moves, its devices move with it.
2. Devices are connected only while both connections to the broker are up (`BrokerReconnector`): otherwise the session would count
   attempts that cannot arrive. They go offline in the session when the broker goes, and get their replay when it is back.
3. What the broker delivers is acknowledged to it after Kafka has confirmed the record. When Kafka does not, the connection is
   dropped, and the broker delivers again.
4. Devices are connected only while the bridge holds its lease (sinks/lease.py).
5. The broker's 0x97 is handed to the session, which backs off by client, and holds off this bridge's other messages, too
   (sinks/bridge/outbound.py).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import structlog

from sinks.bridge.broker.incoming import Incoming
from sinks.bridge.broker.paho_properties import BrokerLimits
from sinks.bridge.broker.reconnector import BrokerReconnector
from sinks.bridge.counted_appends import CountedAppends
from sinks.bridge.device import DeviceConnection
from sinks.bridge.inbound import Inbound
from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.outbound import Outbound
from sinks.bridge.presence import PresenceTracker
from sinks.bridge.routes import Routes
from sinks.bridge.settings import BridgeSettings
from sinks.bridge.topics import is_addressable
from sinks.command_order import OTHER_CODE
from sinks.connection_ids import ConnectionIds, ConnectionKind
from sinks.ended_connections import EndedConnections
from sinks.health import NO_BROKER, NO_LEASE, NO_PARTITION, UnmetCondition
from sinks.kafka.append import Confirmation, EventLog
from sinks.lease import HeldLease
from state.commands import CloseConnection, GatewayCommand, OfferPublish, SendPublish
from state.errors import UnreadableRecord
from state.events import ClientConnected, GatewayEvent
from state.model import ClientId, MessageId, ReasonCode
from state.records.commands import decode_command_batch
from state.records.events import encode_event

_log: Final = structlog.get_logger(__name__)
_REOPEN_S: Final = 1.0


class Bridge:
    """All devices that one bridge holds. Implements CommandListener for the command tail."""

    def __init__(
        self,
        settings: BridgeSettings,
        log: EventLog,
        counters: BridgeCounters,
        *,
        commands_partitions: int,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """clock_ns: by which connections are numbered."""
        self.settings = settings
        self.counters = counters
        self.ready = asyncio.Event()
        self._records = CountedAppends(settings, log, counters, settled=self._end_lease)
        self._loop = asyncio.get_running_loop()
        self._routes = Routes(settings)
        self._presence = PresenceTracker(settings, commands_partitions)
        self._ids = ConnectionIds(ConnectionKind.BRIDGE, clock_ns=clock_ns)
        self._owned: frozenset[int] = frozenset()
        self._by_client: dict[ClientId, DeviceConnection] = {}
        self._by_id: dict[int, DeviceConnection] = {}
        self._ended = EndedConnections(ConnectionKind.BRIDGE, self._records.append_event)
        self._lease = HeldLease(
            log,
            topic=settings.leases_topic,
            holder=f"bridge {settings.name}",
            duration_ms=settings.lease_ms,
            taken=self._lease_taken,
            passed=self._lease_passed,
            renewing=self._ended.say_again,
        )
        self._outbound = Outbound(settings, self._routes, counters, answered=self._broker_answered)
        self._inbound = Inbound(settings, self._routes, counters, self._records, bridge=self, run_id=self._ids.next())
        self._is_stopping = False
        self._subscriber = BrokerReconnector(
            settings,
            client_id=settings.name,
            clean=False,
            subscriptions=self._routes.subscriptions,
            on_message=self._inbound.received,
            on_up=self._broker_up,
            on_down=partial(self._broker_down, heard_nothing=True),
            on_refused=self._broker_refused,
        )
        self._publisher = BrokerReconnector(
            settings,
            client_id=f"{settings.name}-out",
            clean=True,
            subscriptions=_nothing,
            on_message=Incoming.confirm,
            on_up=self._broker_up,
            on_down=partial(self._broker_down, heard_nothing=False),
            on_refused=self._broker_refused,
        )

    async def run_connections(self) -> None:
        """Until cancelled."""
        self._lease.start()
        async with asyncio.TaskGroup() as connections:
            connections.create_task(self._subscriber.run())
            connections.create_task(self._publisher.run())

    @property
    def _is_up(self) -> bool:
        return (
            self._subscriber.connection is not None
            and self._publisher.connection is not None
            and not self._is_stopping
            and self._lease.holds()
        )

    def missing(self) -> Iterator[UnmetCondition]:
        """What devices need and is not there."""
        if self._subscriber.connection is None or self._publisher.connection is None:
            yield NO_BROKER
        if not self._owned:
            yield NO_PARTITION
        if not self._lease.holds():
            yield NO_LEASE

    # --- the lease comes and goes ----------------------------------------------------------------------------------------------

    def _lease_taken(self) -> None:
        self._connect_known(self._owned)
        self._tell_ready()

    def _lease_passed(self) -> None:
        """Others may speak for our connections soon."""
        self.counters.leases_lost += 1
        self.ready.clear()
        for device in list(self._by_client.values()):
            self._end(device, "the lease of the bridge has passed")

    # --- the broker comes and goes ---------------------------------------------------------------------------------------------

    def _broker_up(self) -> None:
        self.counters.broker_connections += 1
        self._connect_known(self._owned)
        self._tell_ready()

    def _broker_refused(self) -> None:
        self.counters.connections_refused += 1

    def _broker_down(self, reason: str, *, heard_nothing: bool) -> None:
        self.counters.broker_losses[reason[:80]] += 1
        self.ready.clear()
        for device in list(self._by_client.values()):
            self._end(device, f"the broker is away: {reason}")
        if heard_nothing:
            self._presence.connection_lost()

    def _tell_ready(self) -> None:
        if self._is_up and self._owned:
            self.ready.set()

    # --- devices come and go ---------------------------------------------------------------------------------------------------

    def _connect_known(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            for client_id in self._presence.online(partition):
                self._connect(client_id)

    def _connect(self, client_id: ClientId) -> None:
        """Tell the session that its client is there, if it is ours and is not connected yet."""
        partition = self._presence.partition(client_id)
        publisher = self._publisher.connection
        if not self._is_up or publisher is None or partition not in self._owned or client_id in self._by_client:
            return
        device = DeviceConnection(
            client_id,
            connection_id=self._ids.next(),
            partition=partition,
            acknowledgement=self.settings.acknowledgement,
        )
        self._by_client[client_id] = self._by_id[device.connection_id] = device
        self.counters.devices += 1
        self._tell(
            device,
            ClientConnected(
                connection_id=device.connection_id,
                commands_partition=partition,
                # Of MQTT 3.1.1 for the session: it resends on its timer, which MQTT 5 forbids on a connection, and this is none.
                protocol_version=4,
                clean_start=False,
                session_expiry_interval_s=None,
                maximum_packet_size_bytes=self._outbound.largest_message(client_id, publisher.limits),
                lease_id=self._lease.lease_id,
            ),
        )

    def _end(self, device: DeviceConnection, reason: str, *, tell_engine: bool = True) -> None:
        if self._by_client.get(device.client_id) is not device:
            return
        del self._by_client[device.client_id]
        del self._by_id[device.connection_id]
        self.counters.devices -= 1
        self.counters.resends_dropped += device.resends_dropped
        self.counters.commands_repeated += device.repeated_commands
        if tell_engine:
            self._ended.tell_lost(device.client_id, device.connection_id, reason)
        else:
            self._ended.remember(device.connection_id)

    def _reconnect_later(self, client_id: ClientId) -> None:
        """Something went wrong with the connection, not with the device."""
        self._loop.call_later(_REOPEN_S, self._connect_if_online, client_id)

    def _connect_if_online(self, client_id: ClientId) -> None:
        if self._presence.is_online(client_id):
            self._connect(client_id)

    # --- CommandListener -------------------------------------------------------------------------------------------------------

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        self._owned |= partitions
        self.counters.partitions_owned = len(self._owned)
        _log.info("partitions_assigned", owned=sorted(self._owned))
        self._connect_known(partitions)
        self._tell_ready()

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        self._owned -= partitions
        self.counters.partitions_owned = len(self._owned)
        _log.info("partitions_revoked", owned=sorted(self._owned))
        if not self._owned:
            self.ready.clear()
        for device in list(self._by_client.values()):
            if device.partition in partitions:
                self._end(device, "another bridge takes over")

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        not_here: list[Callable[[], None]] = []
        self._lease.holds()  # before anything is sent: this process may have stood still
        touched: dict[int, DeviceConnection] = {}
        for value in values:
            try:
                batch = decode_command_batch(value)
            except UnreadableRecord as error:
                self.counters.unreadable_commands += 1
                _log.warning("unreadable_command", partition=partition, error=str(error))
                continue
            for command in batch.commands:
                if isinstance(command, OfferPublish):
                    continue  # for gateways
                if isinstance(command, CloseConnection):
                    self._ids.rise_above(command.newest_connection_id)
                device = self._by_id.get(command.connection_id)
                if device is None or device.client_id != batch.client_id:
                    not_here.append(partial(self._not_here, batch.client_id, command))
                    continue
                device.apply(command, batch.code)
                self.counters.commands_applied += 1
                touched[command.connection_id] = device
        for device in touched.values():
            self._work_off(device)
            if device.closed_for is not None:
                self._closed_by_engine(device, device.closed_for)
            elif device.is_mixed:
                self.counters.closed_for_other_code += 1
                _log.warning("connection_closed", client_id=device.client_id, reason=OTHER_CODE)
                self._end(device, OTHER_CODE)
                self._reconnect_later(device.client_id)
        return not_here

    def _closed_by_engine(self, device: DeviceConnection, reason_code: int) -> None:
        self._end(device, "closed by the engine", tell_engine=False)
        if reason_code == ReasonCode.SESSION_TAKEN_OVER:
            self._presence.went_offline(device.client_id)  # it has gone to a gateway, until its next birth message
        else:
            self._reconnect_later(device.client_id)

    def _not_here(self, client_id: ClientId, command: GatewayCommand) -> None:
        if self._ended.tell_lost_once(client_id, command, "no bridge holds this connection"):
            self.counters.commands_without_connection += 1
            if self._presence.is_inherited and is_addressable(client_id):
                self.came_online(client_id)

    # --- to the broker ---------------------------------------------------------------------------------------------------------

    def _work_off(self, device: DeviceConnection, done: Confirmation | None = None) -> None:
        """Carry out what the device's connection has to say. done: once, when Kafka has what there is at first."""
        events = device.take_events()
        for position, event in enumerate(events, 1):
            self._tell(device, event, done if position == len(events) else None)
        if done is not None and not events:
            done(None)
        while publications := device.take_publications():
            for command in publications:
                publisher = self._publisher.connection
                if publisher is not None:  # else the connection to the broker has just ended, and the device's with it
                    self._outbound.publish(publisher, device, command)
            for event in device.take_events():
                self._tell(device, event)

    def _broker_answered(self, device: DeviceConnection, command: SendPublish, reason_code: int) -> None:
        if self._by_id.get(device.connection_id) is device:
            device.broker_answered(command, reason_code)
            self._work_off(device)

    # --- DevicesOfBridge, for Inbound -------------------------------------------------------------------------------------------

    def device_answered(self, client_id: ClientId, message_id: MessageId, reason_code: int, done: Confirmation) -> bool:
        """False: no exchange is open for it. done: once, when the answer is in the log."""
        device = self._by_client.get(client_id)
        if device is None or not device.device_answered(message_id, reason_code):
            return False
        self._work_off(device, done)
        return True

    def came_online(self, client_id: ClientId, *, is_birth: bool = False) -> None:
        """is_birth: it has just connected to the broker, so what it had received and not answered may be lost: replay."""
        self._presence.came_online(client_id)
        device = self._by_client.get(client_id)
        if device is not None and is_birth:
            self._end(device, "the device connected again")
        self._connect(client_id)

    def went_offline(self, client_id: ClientId) -> None:
        """It has left the broker."""
        self._presence.went_offline(client_id)
        device = self._by_client.get(client_id)
        if device is not None:
            self._end(device, "the device is offline")

    def deliver_again(self, reason: str) -> None:
        """A record did not get into the log: the broker sends what is not acknowledged to it on the next connection."""
        self._subscriber.drop(reason)

    # --- to Kafka --------------------------------------------------------------------------------------------------------------

    def _tell(self, device: DeviceConnection, event: GatewayEvent, done: Confirmation | None = None) -> None:
        self._records.append_event(device.key, encode_event(event), partial(self._told, device, done))

    def _told(self, device: DeviceConnection, done: Confirmation | None, error: Exception | None) -> None:
        if error is not None and self._by_client.get(device.client_id) is device:
            # The session does not know what it should: start over with it.
            self._end(device, "Kafka did not take an event")
            self._reconnect_later(device.client_id)
        if done is not None:
            done(error)

    # --- the end ---------------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Tell the engine that everybody is offline; another bridge takes them."""
        self._is_stopping = True
        for device in list(self._by_client.values()):
            self._end(device, "the bridge stops")
        self._end_lease()

    def _end_lease(self) -> None:
        """Once everything is said; else the lease passes by itself."""
        if self._is_stopping and not self.counters.appends_unconfirmed:
            self._lease.end(all_told=self._ended.all_told)


def _nothing(limits: BrokerLimits) -> Sequence[str]:
    return ()
