"""The gateways of one client, and a router of all clients."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from sinks.fast_path.offering import LocalConnection, OfferRouter, Offers
from sinks.fast_path.router_memory import RouterMemory
from sinks.mqtt.connection.effects import Register, Registration
from sinks.mqtt.known_tables import RoutingView
from sinks.mqtt.settings import GatewaySettings
from sinks.routing.settings import FastPathSettings
from state.model import Position
from tests.properties.fast_path.gateways import Gateways
from tests.properties.fast_path.kafka import PARTITION
from tests.properties.fast_path.simulated_connection import SimulatedConnection
from tests.properties.fast_path.steps import Shared, Step
from tests.properties.routing.log import ClientLog, Kafka
from tests.properties.routing.matchers import MatcherProcess
from tests.properties.routing.scenario import ROUTING

_MAX_PAYLOAD_BYTES: Final = 1_000


class RoutingGateways(Gateways):
    """Each connection is in one of the processes, whose tables it asks."""

    def __init__(self, shared: Shared, log: ClientLog, matchers: list[MatcherProcess]) -> None:
        settings = GatewaySettings(
            fast_path=FastPathSettings(max_payload_bytes=_MAX_PAYLOAD_BYTES), routing=ROUTING, session=shared.scenario.session
        )
        super().__init__(shared, cast(Any, log), log.client_id, settings)
        self.read_to: Callable[[], Position | None] = lambda: None
        self._views = [
            RoutingView(ROUTING, matcher, lambda matcher=matcher: matcher.is_complete, lambda: 0) for matcher in matchers
        ]
        self._matchers = matchers

    def register(self, connection: SimulatedConnection, request: Register) -> Registration:
        registration = super().register(connection, request)
        tables = self._views[self.process_of(connection)]
        return registration._replace(tables=tables, knows_settings=True, read_to=self.read_to())

    def is_newest(self, connection: SimulatedConnection) -> bool:
        process = self.process_of(connection)
        self._matchers[process].await_tables()
        return self._views[process].marked_by(connection.real.client_id) == connection.real.connection_id

    def process_of(self, connection: SimulatedConnection) -> int:
        return self.connections.index(connection) % len(self._views)

    def lower_list_read(self, process: int) -> None:
        """A list of this client that is lower than one before it was read in a process."""
        newest = self.connections[-1] if self.connections else None
        if newest is not None and newest.is_there and self.process_of(newest) == process:
            newest.repeat_list()


class _NoRoutes:
    """All connections of the world are in the process of its router."""

    generation = 0

    def of(self, key: bytes) -> None:
        return None


class Router:
    """A router with so little memory that it forgets clients."""

    def __init__(self, shared: Shared, kafka: Kafka, gateways: Mapping[str, RoutingGateways]) -> None:
        self._shared, self._kafka, self._gateways = shared, kafka, gateways
        self._memory = RouterMemory(clients=1)
        self._offering = OfferRouter(
            self._memory, cast(Any, _NoRoutes()), self._newest_connection, max_payload_bytes=_MAX_PAYLOAD_BYTES
        )
        self._reads_next: int | None = None

    def next_steps(self) -> Iterator[Step]:
        if self._reads_next is None:
            yield Step(8, "the router is assigned", self.assign)
            return
        if self._reads_next < len(self._kafka.messages.records):
            yield Step(40, "the router reads", self.read)
        if self._shared.faults_left:
            yield Step(1, "the router is revoked", self._revoke)

    def read_to(self) -> Position | None:
        offset = self._memory.read_to(PARTITION)
        return None if offset is None else Position(PARTITION, offset)

    def assign(self) -> None:
        """Assigns the partition; the router reads from its end."""
        self._reads_next = self._kafka.messages.end
        self._memory.assigned(PARTITION, self._kafka.messages.end)

    def _revoke(self) -> None:
        self._shared.faults_left -= 1
        self._reads_next = None
        self._memory.revoked(PARTITION)

    def read(self) -> None:
        """Reads the next record, which must exist."""
        assert self._reads_next is not None
        record = self._kafka.messages.records[self._reads_next]
        self._reads_next += 1
        offers = Offers()
        self._offering.read(PARTITION, cast(Any, [record]), offers, under_pressure=False)
        for client_id, offer in offers.here:
            self._gateways[client_id].connections[-1].offers.append(offer)

    def _newest_connection(self, client_id: str) -> LocalConnection | None:
        connections = self._gateways[client_id].connections
        return connections[-1].real if connections and connections[-1].is_there else None
