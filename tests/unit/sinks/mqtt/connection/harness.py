"""A device and an engine in a few lines around a Connection: no sockets, no Kafka, time by hand."""

from typing import Any

from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefused
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.connection.appends import Append
from sinks.mqtt.connection.connection import Connection
from sinks.mqtt.connection.handshake import Registration
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import (
    AcceptConnection,
    GatewayCommand,
    SendPublish,
)
from state.events import (
    GatewayEvent,
)
from state.model import QoS
from state.records.events import decode_events
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


class Harness:
    """confirming: whether Kafka confirms at once. knows_settings: those of the engine. login: what the host says of it; None =
    nothing yet. turn: of its CONNECT. total: of all connections."""

    def __init__(
        self,
        *,
        partition: int | None = 3,
        knows_settings: bool = True,
        login: Grant | LoginRefused | None = EVERYTHING,
        turn: Turn = Turn.NOW,
        total: Unconfirmed | None = None,
        **settings: Any,
    ) -> None:
        self.login = login
        self.turn = turn
        self.now_ms = 1_000
        self.counters = GatewayCounters()
        self.partition = partition
        self.knows_settings = knows_settings
        self.is_late = False
        self.confirming = True
        self.waiting: list[Append] = []
        self.events: list[GatewayEvent] = []
        self.event_records: list[bytes] = []
        self.uplink: list[Append] = []
        self.sequence = 0
        self.connection = Connection(GatewaySettings(**settings), self, self.counters, self.now_ms, total)

    # Registrar
    def await_turn(self, connection: Connection) -> Turn:
        return self.turn

    def register(self, connection: Connection) -> Registration | None:
        return None if self.partition is None else Registration(77, self.partition, "lease-1", self.knows_settings, self.is_late)

    def log_in(self, connection: Connection, connect: Connect) -> Grant | LoginRefused | None:
        return self.login

    def admitted(self, connection: Connection) -> None:
        pass

    def new_client_id(self) -> str:
        return "assigned"

    # host
    def settle(self) -> bytes:
        """What a host does after each call; the bytes for the device."""
        output = b""
        while True:
            output += self.connection.take_output()
            appends = self.connection.take_appends()
            for append in appends:
                if append.is_uplink:
                    self.uplink.append(append)
                else:
                    self.event_records.append(append.value)
                    self.events += decode_events(append.value)
            self.waiting += appends
            if not (self.confirming and self.waiting):
                return output
            for append in list(self.waiting):
                self.confirm(append)

    def confirm(self, append: Append, error: Exception | None = None, *, too_large: bool = False) -> None:
        self.waiting.remove(append)
        self.connection.confirm(append, error, self.now_ms, too_large=too_large)

    def send(self, *data: bytes) -> bytes:
        self.connection.receive(b"".join(data), self.now_ms)
        return self.settle()

    def turn_has_come(self) -> bytes:
        self.connection.turn_has_come(self.now_ms)
        return self.settle()

    def logged_in(self, login: Grant | LoginRefused) -> bytes:
        self.connection.logged_in(login, self.now_ms)
        return self.settle()

    def command(self, kind: type[GatewayCommand], *, sequence: int | None = None, code: str = "", **fields: Any) -> bytes:
        self.sequence += 1
        command = kind(connection_id=77, partition=3, sequence=sequence or self.sequence, **fields)
        self.connection.apply(command, self.now_ms, code)
        return self.settle()

    def pass_ms(self, ms: int) -> bytes:
        self.now_ms += ms
        self.connection.tick(self.now_ms)
        return self.settle()

    def last(self, kind: type[Any]) -> Any:
        event = self.events[-1]
        assert isinstance(event, kind), event
        return event


def connected(
    level: int = 4, *, keep_alive_s: int = 10, properties: bytes = b"", accept: dict[str, Any] | None = None, **others: Any
) -> Harness:
    harness = Harness(**others)
    assert harness.send(connect(level=level, flags=0x00, keep_alive_s=keep_alive_s, properties=properties)) == b""
    answer = harness.command(AcceptConnection, **{"send_quota": 2, "max_awaiting_rel": 2, **(accept or {})})
    assert answer[0] == 0x20
    assert answer[3] == 0
    return harness


def send_publish(harness: Harness, packet_id: int, *, qos: int = 1, dup: bool = False, payload: bytes = b"p") -> bytes:
    return harness.command(SendPublish, packet_id=packet_id, topic="t", payload=payload, qos=QoS(qos), dup=dup)


def written(packet_id: int, *, qos: int = 1, dup: bool = False) -> bytes:
    return publish("t", b"p", first_byte=0x30 | qos << 1 | dup << 3, packet_id=packet_id if qos else None)


def ack(first_byte: int, packet_id: int) -> bytes:
    return bytes((first_byte, 2)) + packet_id.to_bytes(2, "big")
