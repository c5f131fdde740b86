"""Connects the devices behind a broker that the user already runs with the engine.

To the engine a bridge is a gateway: it appends `ClientConnected` and so on for each device, and carries out the commands for the
connections that it holds. Between it and the device is a broker instead of a socket.

Rules
1. A device is held by the bridge that owns the partition of `inflight.commands` to which its client id hashes. Every bridge
   receives all presence messages, and the owner connects the device. When a partition moves, its devices move with it.
2. Devices are connected only while both connections to the broker are up (`BrokerReconnector`). Otherwise the session would count
   attempts that cannot arrive. Without the broker they are offline in the session, and get their replay when it is back.
3. A message of the broker is acknowledged after Kafka has confirmed its record. If that fails, the connection is dropped, and the
   broker delivers the message again.
4. Devices are connected only while the bridge holds its lease (sinks/host/lease.py).
5. The broker's 0x97 goes to the session, which backs off by client. It delays the other messages of this bridge too
   (sinks/bridge/outbound.py).
6. A bridge whose broker stays away leaves the consumer group, so that another one gets its devices (sinks/bridge/membership.py).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import structlog

from sinks.bridge.broker.incoming import Incoming
from sinks.bridge.broker.reconnector import BrokerReconnector
from sinks.bridge.device import DeviceConnection
from sinks.bridge.inbound import BridgeInbound
from sinks.bridge.membership import GroupMembership
from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.outbound import BridgeOutbound
from sinks.bridge.presence import PresenceTracker
from sinks.bridge.routes import Routes
from sinks.bridge.settings import BridgeSettings
from sinks.bridge.topics import is_addressable
from sinks.health import NO_BROKER, NO_LEASE, UnmetCondition
from sinks.host.command_host import CommandHost
from sinks.host.command_order import BUILD_MISMATCH
from sinks.host.connection_ids import ConnectionKind
from sinks.kafka.append import Confirmation, EventLog, Headers
from sinks.kafka.tail import CommandTail
from state.commands import GatewayCommand, SendPublish
from state.events import ClientConnected, GatewayEvent
from state.model import ClientId, MessageId, ReasonCode
from state.records.events import encode_event

_log: Final = structlog.get_logger(__name__)
_REOPEN_S: Final = 1.0


class Bridge(CommandHost[DeviceConnection]):
    """Holds the devices of one bridge. Implements DevicesOfBridge for BridgeInbound.

    Args:
        tail: The command tail, which the bridge reads as a member of its group (sinks/bridge/membership.py).
        clock_ns: Nanoseconds since 1970; connections are numbered by it.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        log: EventLog,
        tail: CommandTail,
        counters: BridgeCounters,
        *,
        commands_partitions: int,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        holder = f"bridge {settings.name}"
        super().__init__(ConnectionKind.BRIDGE, settings, log, counters, holder=holder, clock_ns=clock_ns)
        self.settings = settings
        self.counters = counters
        self._routes = Routes(settings)
        self._presence = PresenceTracker(settings, commands_partitions)
        self._by_client: dict[ClientId, DeviceConnection] = {}
        self._membership = GroupMembership(tail, self, leave_after_s=settings.group_session_timeout_ms / 1_000)
        self._outbound = BridgeOutbound(settings, self._routes, counters, answered=self._broker_answered)
        self._inbound = BridgeInbound(settings, self._routes, counters, self, self._ids.next())
        self._subscriber = BrokerReconnector(
            settings=settings,
            client_id=settings.name,
            clean=False,
            subscriptions=self._routes.subscriptions,
            on_message=self._inbound.received,
            on_up=self._broker_up,
            on_down=partial(self._broker_down, is_subscriber=True),
            on_refused=self._broker_refused,
        )
        self._publisher = BrokerReconnector(
            settings=settings,
            client_id=f"{settings.name}-out",
            clean=True,
            subscriptions=lambda _: (),
            on_message=Incoming.confirm,
            on_up=self._broker_up,
            on_down=partial(self._broker_down, is_subscriber=False),
            on_refused=self._broker_refused,
        )

    async def run_connections(self) -> None:
        """Runs until it is cancelled."""
        self.lease.start()
        async with asyncio.TaskGroup() as connections:
            connections.create_task(self._subscriber.run())
            connections.create_task(self._publisher.run())

    @property
    def _has_broker(self) -> bool:
        return self._subscriber.connection is not None and self._publisher.connection is not None

    @property
    def _is_up(self) -> bool:
        return self._has_broker and not self.is_stopping and self.lease.holds()

    @property
    def _is_serving(self) -> bool:
        return self._is_up and bool(self.partitions)

    def missing(self) -> Iterator[UnmetCondition]:
        if self._has_broker:
            yield from super().missing()
            return
        yield NO_BROKER  # which is why it may have no partition
        if not self.lease.holds():
            yield NO_LEASE

    # --- CommandHost -----------------------------------------------------------------------------------------------------------

    def _lease_taken(self) -> None:
        self._connect_known(self.partitions)
        super()._lease_taken()

    def _close_all(self) -> None:
        self._end_all("the lease of the bridge has passed")

    def _partitions_gained(self, partitions: frozenset[int]) -> None:
        self.counters.partitions_owned = len(self.partitions)
        self._connect_known(partitions)

    def _partitions_lost(self, partitions: frozenset[int]) -> None:
        self.counters.partitions_owned = len(self.partitions)
        for device in list(self._by_client.values()):
            if device.partition in partitions:
                self._end(device, "another bridge takes over")

    def _carry_out(self, connection: DeviceConnection, commands: Sequence[GatewayCommand], code: str) -> None:
        device = connection
        if not self.lease.holds():  # this process may have stood still, and the connection is over
            return
        for command in commands:
            device.apply(command, code)
            self.counters.commands_applied += 1
        self._flush(device)
        if device.closed_for is not None:
            self._closed_by_engine(device, device.closed_for)
        elif device.has_build_mismatch:
            self.counters.closed_for_other_code += 1
            _log.warning("connection_closed", client_id=device.client_id, reason=BUILD_MISMATCH)
            self._end(device, BUILD_MISMATCH)
            self._reconnect_later(device.client_id)

    def _closed_by_engine(self, device: DeviceConnection, reason_code: int) -> None:
        self._end(device, "closed by the engine", tell_engine=False)
        if reason_code == ReasonCode.SESSION_TAKEN_OVER:
            self._presence.went_offline(device.client_id)  # it has connected to a gateway; its next birth message here ends that
        else:
            self._reconnect_later(device.client_id)

    def _not_here(self, client_id: ClientId, command: GatewayCommand) -> None:
        if self._ended.tell_lost_once(client_id, command, "no bridge holds this connection"):
            self.counters.commands_without_connection += 1
            if self._presence.may_miss_devices and is_addressable(client_id):
                self.came_online(client_id)

    # --- the broker comes and goes ---------------------------------------------------------------------------------------------

    def _broker_up(self) -> None:
        self.counters.broker_connections += 1
        if self._has_broker:
            self._membership.broker_up()
            self.lease.renew()
        self._connect_known(self.partitions)
        self._tell_ready()

    def _broker_refused(self) -> None:
        self.counters.connections_refused += 1

    def _broker_down(self, reason: str, *, is_subscriber: bool) -> None:
        self.counters.broker_losses[reason[:80]] += 1
        self.ready.clear()
        self._end_all(f"the broker is away: {reason}")
        if is_subscriber:
            self._presence.connection_lost()
        if not self.is_stopping:
            self._membership.broker_down()
            self.lease.renew()

    # --- devices come and go ---------------------------------------------------------------------------------------------------

    def _connect_known(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            for client_id in self._presence.online(partition):
                self._connect(client_id)

    def _connect(self, client_id: ClientId) -> None:
        """Connects a device to its session, if it belongs to this bridge and is not connected yet."""
        partition = self._presence.partition(client_id)
        publisher = self._publisher.connection
        if not self._is_up or publisher is None or partition not in self.partitions or client_id in self._by_client:
            return
        device = DeviceConnection(
            client_id,
            connection_id=self._ids.next(),
            partition=partition,
            acknowledgement=self.settings.acknowledgement,
        )
        self._by_client[client_id] = self.connections[device.connection_id] = device
        self.counters.devices += 1
        self._send_event(
            device,
            ClientConnected(
                connection_id=device.connection_id,
                commands_partition=partition,
                # With MQTT 3.1.1 the session resends on its timer. MQTT 5 forbids that on a connection, which this is not.
                protocol_version=4,
                clean_start=False,
                session_expiry_interval_s=None,
                maximum_packet_size_bytes=self._outbound.largest_message(client_id, publisher.limits),
                lease_id=self.lease.lease_id,
                gateway=self.settings.name,
            ),
        )

    def _end_all(self, reason: str) -> None:
        for device in list(self._by_client.values()):
            self._end(device, reason)

    def _end(self, device: DeviceConnection, reason: str, *, tell_engine: bool = True) -> None:
        if self._by_client.get(device.client_id) is not device:
            return
        del self._by_client[device.client_id]
        del self.connections[device.connection_id]
        self.counters.devices -= 1
        self.counters.resends_dropped += device.resends_dropped
        self.counters.commands_repeated += device.repeated_commands
        if tell_engine:
            self._ended.tell_lost(device.client_id, device.connection_id, reason)
        else:
            self._ended.remember(device.connection_id)

    def _reconnect_later(self, client_id: ClientId) -> None:
        """Connects the device again after a failure that was not its own."""
        self._loop.call_later(_REOPEN_S, self._connect_if_online, client_id)

    def _connect_if_online(self, client_id: ClientId) -> None:
        if self._presence.is_online(client_id):
            self._connect(client_id)

    # --- to the broker ---------------------------------------------------------------------------------------------------------

    def _flush(self, device: DeviceConnection, done: Confirmation | None = None) -> None:
        """Appends the device's events and publishes its publications.

        Args:
            done: Called once, when Kafka has the first events.
        """
        events = device.pop_events()
        for position, event in enumerate(events, 1):
            self._send_event(device, event, done if position == len(events) else None)
        if done is not None and not events:
            done(None)
        while publications := device.pop_publications():
            for command in publications:
                publisher = self._publisher.connection
                if publisher is not None:  # else the connection to the broker has just ended, and the device's too
                    self._outbound.publish(publisher, device, command)
            for event in device.pop_events():
                self._send_event(device, event)

    def _broker_answered(self, device: DeviceConnection, command: SendPublish, reason_code: int) -> None:
        if self.connections.get(device.connection_id) is device:
            device.broker_answered(command, reason_code)
            self._flush(device)

    # --- DevicesOfBridge, for BridgeInbound -------------------------------------------------------------------------------------

    def device_answered(self, client_id: ClientId, message_id: MessageId, reason_code: int, done: Confirmation) -> bool:
        """Handles an acknowledgement; see DevicesOfBridge."""
        device = self._by_client.get(client_id)
        if device is None or not device.device_answered(message_id, reason_code):
            return False
        self._flush(device, done)
        return True

    def came_online(self, client_id: ClientId, *, is_birth: bool = False) -> None:
        """Handles a sign of life. After a birth message the session replays, because unanswered messages may be lost."""
        self._presence.came_online(client_id)
        device = self._by_client.get(client_id)
        if device is not None and is_birth:
            self._end(device, "the device connected again")
        self._connect(client_id)

    def went_offline(self, client_id: ClientId) -> None:
        self._presence.went_offline(client_id)
        device = self._by_client.get(client_id)
        if device is not None:
            self._end(device, "the device is offline")

    def deliver_again(self, reason: str) -> None:
        """Drops the connection, so that the broker delivers unacknowledged messages again on the next one."""
        self._subscriber.drop(reason)

    def append_uplink(self, key: bytes, value: bytes, headers: Headers, done: Confirmation) -> None:
        self.append(self.settings.uplink_topic, key, value, headers, done)

    # --- to Kafka --------------------------------------------------------------------------------------------------------------

    def _send_event(self, device: DeviceConnection, event: GatewayEvent, done: Confirmation | None = None) -> None:
        self.append_event(device.key, encode_event(event), partial(self._event_appended, device, done))

    def _event_appended(self, device: DeviceConnection, done: Confirmation | None, error: Exception | None) -> None:
        if error is not None and self._by_client.get(device.client_id) is device:
            # The session has missed an event, so the device starts over with it.
            self._end(device, "Kafka did not take an event")
            self._reconnect_later(device.client_id)
        if done is not None:
            done(error)

    # --- the end ---------------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Tells the engine that all devices are offline. Another bridge takes them."""
        self.is_stopping = True
        self._membership.stop()
        self._end_all("the bridge stops")
        self._end_lease()
