"""A device that subscribes and publishes: one socket at a time, and its half of every handshake."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from sinks.mqtt.codec.packets import PubAck, PubComp, Publish, PubRec, PubRel
from tests.properties.fast_path.device import SimulatedDevice
from tests.properties.fast_path.gateways import Gateways
from tests.properties.fast_path.packets import (
    ConnAckToDevice,
    DisconnectToDevice,
    SubAckToDevice,
    answer_packet,
)
from tests.properties.fast_path.simulated_connection import SimulatedConnection
from tests.properties.fast_path.steps import Shared, Step
from tests.properties.routing.account import Account, Subscribing
from tests.properties.routing.scenario import RoutingScenario
from tests.unit.sinks.mqtt.mqtt_bytes import packet, publish, text

_MOST_PUBLICATIONS: Final = 30
_MOST_SUBSCRIBINGS: Final = 8


class RoutingDevice(SimulatedDevice):
    """is_accepted: CONNACK was read on its connection. era: the connection that began its session.

    _own: its QoS 2 publications without PUBREC.
    """

    def __init__(self, client_id: str, shared: Shared, scenario: RoutingScenario, account: Account, gateways: Gateways) -> None:
        super().__init__(client_id, shared, gateways)
        self._scenario, self._account = scenario, account
        self.is_accepted = False
        self.era = 0
        self._eras: set[int] = set()
        self._own: dict[int, tuple[str, str]] = {}
        self._asked: dict[int, Subscribing | tuple[str, int]] = {}
        self._last_id = 0

    # --- what can happen ------------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Step]:
        connection = self.connection
        if connection is not None and connection.down:
            yield self._step(40, "reads and answers", lambda: self._read(connection))
            yield self._step(1, "reads, its answer is lost", lambda: self._read(connection, answers=False))
        elif connection is not None and connection.is_over:
            yield self._step(8, "finds its socket closed", self.leave)
        if connection is not None and self.is_accepted and not connection.is_over:
            yield from self._steps_of_an_accepted_device(connection)
        yield from self._connects(self._scenario.takeovers)

    def _steps_of_an_accepted_device(self, connection: SimulatedConnection) -> Iterator[Step]:
        account, scenario = self._account, self._scenario
        if len(account.subscribings) < _MOST_SUBSCRIBINGS:
            for topic_filter in scenario.filters:
                has = any(self._is_own(each, topic_filter) and not each.dropped for each in account.subscribings)
                for qos in (1, 2):
                    ask = partial(self._subscribe, connection, topic_filter, qos)
                    yield self._step(1 if has else 8, f"subscribes to {topic_filter}, {qos}", ask)
        for topic_filter in scenario.filters:
            if any(self._is_own(each, topic_filter) for each in account.subscribings):
                drop = partial(self._unsubscribe, connection, topic_filter)
                yield self._step(1, f"unsubscribes from {topic_filter}", drop)
        if len(account.publications) < _MOST_PUBLICATIONS:
            for topic in scenario.topics:
                yield self._step(5, f"publishes to {topic}", lambda topic=topic: self._publish(connection, topic))
        if self._shared.faults_left:
            yield self._step(1, "disconnects", lambda: self._disconnect(connection))

    def _step(self, weight: int, what: str, run: Callable[[], object]) -> Step:
        return Step(weight, f"{self.client_id} {what}", run)

    # --- its connections ------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        super().leave()
        self.is_accepted = False
        self._asked.clear()

    def _disconnect(self, connection: SimulatedConnection) -> None:
        connection.up.append(packet(0xE0))
        self.is_accepted = False

    def session_began(self, connection_id: int) -> None:
        """The engine has begun a new session with this connection."""
        self._eras.add(connection_id)

    def _accepted(self, connection: SimulatedConnection, *, session_present: bool) -> None:
        self.is_accepted = True
        connection_id = connection.real.connection_id
        if not session_present:
            self._eras.add(connection_id)
        era = max(began for began in self._eras if began <= connection_id)
        if era != self.era:
            self.era = era
            self._held.clear()
            self._own.clear()
            self._account.era_began(self.client_id, era)
        for packet_id, (name, topic) in self._own.items():  # [MQTT-4.4.0-1]
            connection.up.append(_publish_packet(connection, topic, name, packet_id, first_byte=0x3C))

    # --- what it sends --------------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _is_own(self, each: Subscribing, topic_filter: str) -> bool:
        return each.client == self.client_id and each.era == self.era and each.topic_filter == topic_filter and not each.ended

    def _subscribe(self, connection: SimulatedConnection, topic_filter: str, qos: int) -> None:
        packet_id, options, properties = self._next_id(), qos, b""
        if connection.version == 5:
            options |= (packet_id % 3) << 4  # Retain Handling
            properties = b"\x00"
        subscribing = Subscribing(self.client_id, self.era, topic_filter, qos, connection, self._account.time())
        self._account.subscribings.append(subscribing)
        self._asked[packet_id] = subscribing
        connection.up.append(packet(0x82, packet_id.to_bytes(2, "big"), properties, text(topic_filter), bytes((options,))))

    def _unsubscribe(self, connection: SimulatedConnection, topic_filter: str) -> None:
        packet_id = self._next_id()
        for each in self._account.subscribings:
            if self._is_own(each, topic_filter):
                each.dropped = each.dropped or self._account.time()
        self._asked[packet_id] = topic_filter, self._account.time()
        properties = b"\x00" if connection.version == 5 else b""
        connection.up.append(packet(0xA2, packet_id.to_bytes(2, "big"), properties, text(topic_filter)))

    def _answered(self, packet_id: int) -> None:
        """SUBACK or UNSUBACK."""
        asked = self._asked.pop(packet_id)
        if isinstance(asked, Subscribing):
            asked.acked = self._account.time()
            return
        topic_filter, sent = asked
        for each in self._account.subscribings:
            if self._is_own(each, topic_filter) and 0 < each.dropped <= sent:
                each.ended = self._account.time()

    def _publish(self, connection: SimulatedConnection, topic: str) -> None:
        qos = self._scenario.qos[len(self._account.publications) % len(self._scenario.qos)]
        name = self._account.published(self.client_id, topic, qos, connection)
        packet_id = self._next_id() if qos else None
        if qos == 2 and packet_id is not None:
            self._own[packet_id] = name, topic
        connection.up.append(_publish_packet(connection, topic, name, packet_id, first_byte=0x30 | qos << 1))

    # --- what it reads --------------------------------------------------------------------------------------------------------

    def _read(self, connection: SimulatedConnection, *, answers: bool = True) -> None:
        """The next packet."""
        answer = b""
        received = connection.down.popleft()
        match received:
            case ConnAckToDevice():
                if received.reason_code:
                    self.leave()
                else:
                    self._accepted(connection, session_present=received.session_present)
            case DisconnectToDevice():
                self.leave()
            case SubAckToDevice():
                self._answered(received.packet_id)
            case PubRec():
                if received.packet_id in self._own:
                    self._account.answered(self._own.pop(received.packet_id)[0])
                answer = answer_packet(0x62, received.packet_id)
            case PubAck() | PubComp():
                pass
            case PubRel():
                self._held.pop(received.packet_id, None)
                answer = answer_packet(0x70, received.packet_id)
            case Publish():
                self._take(received)
                if received.qos:
                    answer = answer_packet(0x40 if received.qos == 1 else 0x50, received.packet_id)
        if isinstance(received, Publish | PubRel) and answers and (received.__class__ is PubRel or received.qos == 1):
            connection.unanswered.discard(received.packet_id)
        if answer and answers:
            connection.up.append(answer)

    def _take(self, received: Publish) -> None:
        name = received.payload.decode()
        if self._is_new(received, name):
            self._account.received(self.client_id, self.era, name, received.qos, dup=received.dup)


def _publish_packet(connection: SimulatedConnection, topic: str, name: str, packet_id: int | None, *, first_byte: int) -> bytes:
    v5 = b"" if connection.version == 5 else None
    return publish(topic, name.encode(), first_byte=first_byte, packet_id=packet_id, v5=v5)
