"""The gateways: the connections of the client in the order in which they were made, and what all of them need."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.effects import Register, Registration
from sinks.mqtt.connection.left_session import LeftSession, LeftSessions
from sinks.mqtt.known_tables import NO_TABLES, KnownTables
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from sinks.routing.settings import FastPathSettings
from state.commands import CloseConnection, Command, CommandBatch, OfferPublish
from state.events import ClientConnected
from state.model import ClientId, Position
from state.records.commands import encode_command_batch
from state.records.events import decode_events
from tests.properties.fast_path.kafka import Kafka
from tests.properties.fast_path.simulated_connection import SimulatedConnection
from tests.properties.fast_path.steps import CLIENT, Shared, Step

_MAX_PAYLOAD_BYTES: Final = 16
_LATE_MS: Final = 50
_FAST_PATH: Final = FastPathSettings(max_payload_bytes=_MAX_PAYLOAD_BYTES)


class _Marks:
    """Says that a session is kept that the client has left here, unless another connection is in the log."""

    def __init__(self, gateways: "Gateways") -> None:
        self._gateways = gateways

    def __getattr__(self, name: str) -> Any:
        return getattr(NO_TABLES, name)

    @property
    def knows_sessions(self) -> bool:
        return True

    def kept_ms(self, client_id: ClientId) -> int:
        left = self._gateways.left_sessions.get(client_id)
        return self._gateways.kept_ms if left is not None and self.marked_by(client_id) == left.connection_id else 0

    def marked_by(self, client_id: ClientId) -> int:
        del client_id
        return self._gateways.newest_in_log


class Gateways:
    """Gives connections their ids, too. left_offers: on the way to what the client has left, while it is away."""

    def __init__(self, shared: Shared, kafka: Kafka, client_id: str = CLIENT, settings: GatewaySettings | None = None) -> None:
        self._shared, self._kafka, self._client_id = shared, kafka, client_id
        fast_path = replace(_FAST_PATH, max_held_bytes=shared.scenario.max_held_bytes)
        self._settings = settings or GatewaySettings(fast_path=fast_path, session=shared.scenario.session)
        self.connections: list[SimulatedConnection] = []
        self.counters = GatewayCounters()
        self.newest: Callable[[ClientId], Position | None] = lambda client_id: None
        self.left_sessions = LeftSessions(lambda client_id: self.newest(client_id))
        self.left_offers: deque[OfferPublish] = deque()
        self._kept_until_ms = 0
        self._marks: KnownTables = _Marks(self)

    @property
    def kept_ms(self) -> int:
        """For how long the session of the client that has left is kept."""
        return max(0, self._kept_until_ms - self._shared.now_ms)

    @property
    def have_all_offers(self) -> bool:
        """Returns False while an offer is on the way to a client that is away, or that the session has not accepted."""
        return not self.left_offers and not any(each.offers and each.awaits_session for each in self.connections)

    @property
    def newest_in_log(self) -> int:
        events = (event for value in self._kafka.events for event in decode_events(value))
        return max((event.connection_id for event in events if isinstance(event, ClientConnected)), default=0)

    def left(self, session: LeftSession | None) -> None:
        """A connection is over."""
        self.left_offers.clear()
        if session is not None:
            self._kept_until_ms = self._shared.now_ms + 1_000 * self._shared.scenario.expiry_s
            self.left_sessions.keep(self._client_id, session)

    def announced(self, connection: SimulatedConnection) -> None:
        """A connection has logged in. What was on the way to what the client had left is on the way to it."""
        self.left_sessions.take(self._client_id)
        connection.offers.extendleft(reversed(self.left_offers))
        self.left_offers.clear()

    def offer_to_left(self, offer: OfferPublish) -> None:
        if self.left_sessions.get(self._client_id) is not None and self.connections[-1].is_over:
            self.left_offers.append(offer)

    def _read_left_offer(self, index: int) -> None:
        offer = self.left_offers[index]
        del self.left_offers[index]
        self.left_sessions.offer(self._client_id, [offer], 0)

    def next_steps(self) -> Iterator[Step]:
        if self.left_offers:
            yield Step(60, "an offer for what was left is read", lambda: self._read_left_offer(0))
            yield Step(1, "the newest offer for it is read first", lambda: self._read_left_offer(-1))
            yield Step(1, "an offer for it is lost", self.left_offers.popleft)
        for connection in self.connections:
            yield from connection.next_steps()

    def goes_on(self) -> bool:
        """Lets one connection do a step that is due. Returns False if no step is due."""
        if self.left_offers:
            self._read_left_offer(0)
            return True
        return any(connection.goes_on() for connection in self.connections)

    def open(self, version: int) -> SimulatedConnection:
        """A device has opened a socket. version: MQTT's."""
        self._shared.now_ms += 1
        real, number = WireConnection(self._settings, self.counters, self._shared.now_ms), len(self.connections) + 1
        connection = SimulatedConnection(number, real, version, self._shared, self._kafka, self)
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
        registration = Registration(connection.opened_ms, request.client_id, 0, "lease", at_once, at_once, is_late)
        if shared.scenario.continues:
            registration = registration._replace(tables=self._marks, left_sessions=self.left_sessions)
        return registration
