"""The gateways: the connections of the client in the order in which they were made, and what all of them need."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from sinks.fast_path.settings import FastPathSettings
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.effects import Register, Registration
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import CloseConnection, Command, CommandBatch
from state.records.commands import encode_command_batch
from tests.properties.fast_path.kafka import Kafka
from tests.properties.fast_path.simulated_connection import SimulatedConnection
from tests.properties.fast_path.steps import CLIENT, Shared, Step

_MAX_PAYLOAD_BYTES: Final = 16
_LATE_MS: Final = 50
_FAST_PATH: Final = FastPathSettings(max_payload_bytes=_MAX_PAYLOAD_BYTES)


class Gateways:
    """Gives connections their ids, too."""

    def __init__(self, shared: Shared, kafka: Kafka, client_id: str = CLIENT, settings: GatewaySettings | None = None) -> None:
        self._shared, self._kafka, self._client_id = shared, kafka, client_id
        fast_path = replace(_FAST_PATH, max_held_bytes=shared.scenario.max_held_bytes)
        self._settings = settings or GatewaySettings(fast_path=fast_path, session=shared.scenario.session)
        self.connections: list[SimulatedConnection] = []
        self.counters = GatewayCounters()

    def next_steps(self) -> Iterator[Step]:
        for connection in self.connections:
            yield from connection.next_steps()

    def goes_on(self) -> bool:
        """Lets one connection do a step that is due. Returns False if no step is due."""
        return any(connection.goes_on() for connection in self.connections)

    def open(self, version: int) -> SimulatedConnection:
        """A device has opened a socket. version: MQTT's."""
        self._shared.now_ms += 1
        real, number = WireConnection(self._settings, self.counters, self._shared.now_ms), len(self.connections) + 1
        connection = SimulatedConnection(number, real, version, self._shared, self._kafka, self.register, self.is_newest)
        self.connections.append(connection)
        return connection

    def command(self, commands: Iterable[Command]) -> None:
        """The engine writes a batch for each connection to which it has something to say."""
        batches: dict[int, list[Any]] = {}
        for command in commands:
            if hasattr(command, "sequence"):
                batches.setdefault(command.connection_id, []).append(command)
        for connection in self.connections:
            if batch := batches.pop(connection.real.connection_id, None):
                connection.commands.append(
                    encode_command_batch(CommandBatch(client_id=self._client_id, commands=tuple(batch), code="c"))
                )
        for batch in batches.values():  # of an id that its gateway has replaced, because a later one is known
            assert all(isinstance(command, CloseConnection) for command in batch), "a command for a connection that never was"

    def reached_by(self, route: int | None) -> list[SimulatedConnection]:
        """The connection of a route, and the newest one, whose gateway is the router's own."""
        return [one for one in self.connections if one is self.connections[-1] or one.real.connection_id == route]

    def is_newest(self, connection: SimulatedConnection) -> bool:
        """Returns True if no later connection of the client is known."""
        raise AssertionError("only a gateway with routing has to know")

    def register(self, connection: SimulatedConnection, request: Register) -> Registration:
        """The ids are times. A CONNECT has that of its coming, whenever its gateway reads it."""
        shared = self._shared
        at_once = shared.scenario.serves_at_once
        if request.refusal is not None:  # refused although it was prompt, and registered again
            shared.now_ms += 1
            return Registration(shared.now_ms, request.client_id, 0, "lease", at_once, at_once)
        is_late = shared.now_ms - connection.opened_ms >= _LATE_MS
        return Registration(connection.opened_ms, request.client_id, 0, "lease", at_once, at_once, is_late)
