"""The base of a gateway and of a bridge: a process that holds connections for the engine.

1. It holds a lease (lease.py); without one it has no connections, and accepts none.
2. It owns partitions of the commands topic, over which the engine reaches its connections.
3. It carries commands out for the connections that it holds. For one that nobody holds any more it tells the engine that the
   connection is lost, once it is certain that the partition is its own (ended_connections.py).
4. It numbers connections (connection_ids.py), counts the records that Kafka has not confirmed, and ends its lease when it is
   stopping, has no connection left, and Kafka has everything.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import structlog

from sinks.health import NO_LEASE, NO_PARTITION, UnmetCondition
from sinks.host.connection_ids import ConnectionIds, ConnectionKind
from sinks.host.ended_connections import EndedConnections
from sinks.host.lease import HeldLease
from sinks.host.wake_up import WakeUps
from sinks.kafka.append import AppendFailed, Confirmation, EventLog, Headers
from sinks.kafka.host_settings import HostSettings
from sinks.log_throttle import LogThrottle
from state.commands import AcceptConnection, CloseConnection, GatewayCommand, OfferPublish
from state.errors import UnreadableRecord
from state.model import ClientId
from state.records.commands import decode_command_batch

_log: Final = structlog.get_logger(__name__)


class HostCounters(Protocol):
    """Counters that gateways and bridges share."""

    appends_unconfirmed: int
    appends_failed: int
    leases_lost: int
    unreadable_commands: int


class HostedConnection(Protocol):
    """A connection, as commands find it."""

    client_id: ClientId


C = TypeVar("C", bound=HostedConnection)


class CommandHost(ABC, Generic[C]):
    """Holds connections for the engine, on one event loop. Implements CommandListener for the command tail.

    Args:
        holder: who holds the lease, for people.
        clock_ns: since 1970, the same for all processes; connections are numbered by it.
        wake_ups_topic: None = it sends no wake-ups.

    Attributes:
        ready: devices get what they need.
        connections: those that commands find, by their id.
        failed_appends: the log of what Kafka has refused; a device can cause it.
        wake_ups: tell the engine that it has to hurry.
    """

    def __init__(
        self,
        kind: ConnectionKind,
        settings: HostSettings,
        log: EventLog,
        counters: HostCounters,
        *,
        holder: str,
        clock_ns: Callable[[], int],
        wake_ups_topic: str | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self.connections: dict[int, C] = {}
        self.partitions: tuple[int, ...] = ()
        self.is_stopping = False
        self._kafka = log
        self._events_topic = settings.events_topic
        self._host_counters = counters
        self.failed_appends = LogThrottle(_log.warning, "append_failed", "more_appends_failed")
        self._loop = asyncio.get_running_loop()
        self._ids = ConnectionIds(kind, clock_ns=clock_ns)
        self._ended = EndedConnections(kind, self.append_event)
        self.wake_ups = WakeUps(log, wake_ups_topic, self._loop)
        self.lease = HeldLease(
            log,
            topic=settings.leases_topic,
            holder=holder,
            duration_ms=settings.lease_ms,
            taken=self._lease_taken,
            passed=self._lease_passed,
            renewing=self._renewing,
            wakes=lambda: self.wake_ups.arrive,
            lacks=lambda: next((condition.what for condition in self.missing()), ""),
        )

    # --- what differs -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _carry_out(self, connection: C, commands: Sequence[GatewayCommand], code: str) -> None:
        """Carries out the commands of one record for one connection, if the lease holds.

        Args:
            code: The build of the record.
        """

    @abstractmethod
    def _not_here(self, client_id: ClientId, command: GatewayCommand) -> None:
        """Handles a command whose connection no gateway holds. The partition is certainly ours."""

    @abstractmethod
    def _close_all(self) -> None:
        """The lease has passed: others may speak for the connections soon."""

    @abstractmethod
    def _partitions_lost(self, partitions: frozenset[int]) -> None:
        """Give up the connections of these."""

    def _partitions_gained(self, partitions: frozenset[int]) -> None:
        """These are ours now, and nothing that is written there from now on is missed."""

    def _offered(self, client_id: ClientId, offer: OfferPublish) -> None:
        """A router of another process offers a message."""

    def _answered(self, connection_id: int) -> None:
        """The engine has answered the CONNECT of a connection, which may be gone."""

    @property
    def _is_serving(self) -> bool:
        return bool(self.partitions) and self.lease.holds()

    def missing(self) -> Iterator[UnmetCondition]:
        """Yields the conditions that devices need and that are not met."""
        if not self.partitions:
            yield NO_PARTITION
        if not self.lease.holds():
            yield NO_LEASE

    # --- the lease --------------------------------------------------------------------------------------------------------------

    def _lease_taken(self) -> None:
        self._tell_ready()

    def _lease_passed(self) -> None:
        self._host_counters.leases_lost += 1
        self.ready.clear()
        self._close_all()

    def _renewing(self) -> None:
        self._ended.say_again()
        self.wake_ups.prove()

    def _tell_ready(self) -> None:
        if self._is_serving:
            self.ready.set()

    def _end_lease(self) -> None:
        """Ends the lease once everything is said; else it passes by itself."""
        if self.is_stopping and not self.connections and not self._host_counters.appends_unconfirmed:
            self.lease.end(all_told=self._ended.all_told)

    # --- CommandListener --------------------------------------------------------------------------------------------------------

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        self.partitions = tuple(sorted(partitions.union(self.partitions)))
        _log.info("partitions_assigned", owned=self.partitions)
        self._partitions_gained(partitions)
        self._tell_ready()

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        self.partitions = tuple(partition for partition in self.partitions if partition not in partitions)
        _log.info("partitions_revoked", owned=self.partitions)
        if not self.partitions:
            self.ready.clear()
        self._partitions_lost(partitions)

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        not_here: list[Callable[[], None]] = []
        for value in values:
            try:
                batch = decode_command_batch(value)
            except UnreadableRecord as error:
                self._host_counters.unreadable_commands += 1
                _log.warning("unreadable_command", partition=partition, error=str(error))
                continue
            client_id = batch.client_id
            connection: C | None = None
            mine: list[GatewayCommand] = []
            for command in batch.commands:
                if isinstance(command, OfferPublish):
                    self._offered(client_id, command)
                    continue
                if isinstance(command, AcceptConnection | CloseConnection):
                    self._answered(command.connection_id)
                if isinstance(command, CloseConnection):
                    self._ids.rise_above(command.newest_connection_id)
                found = self.connections.get(command.connection_id)
                if found is None or found.client_id != client_id:
                    not_here.append(partial(self._not_here, client_id, command))
                    continue
                if connection is not None and found is not connection:
                    self._carry_out(connection, mine, batch.code)
                    mine = []
                connection = found
                mine.append(command)
            if connection is not None:
                self._carry_out(connection, mine, batch.code)
        return not_here

    # --- records ----------------------------------------------------------------------------------------------------------------

    def append_event(self, key: bytes, value: bytes, done: Confirmation) -> None:
        """Tell the engine."""
        self.append(self._events_topic, key, value, None, done)

    def append(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers | None,
        done: Confirmation,
        *,
        may_linger: bool = False,
    ) -> None:
        """Appends a record, and counts it as unconfirmed until Kafka confirms it.

        Args:
            done: Called once, later, as in EventLog.
            may_linger: As in EventLog.
        """
        self._host_counters.appends_unconfirmed += 1
        self._kafka.append(topic, key, value, headers, partial(self._confirmed, done), may_linger=may_linger)

    def _confirmed(self, done: Confirmation, error: Exception | None) -> None:
        self._host_counters.appends_unconfirmed -= 1
        if error is not None:
            self._host_counters.appends_failed += 1
            action = getattr(error, "action", AppendFailed.action)
            self.failed_appends.line(error=str(error), action=action)
        done(error)
        if self.is_stopping:
            self._end_lease()
