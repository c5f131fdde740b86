"""A device and an engine in a few lines around a WireConnection: no sockets, no Kafka, time by hand."""

from collections import defaultdict
from typing import Any

from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefused
from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.effects import Announce, LogIn, LookForLater, LookUp, Register, Registration
from sinks.mqtt.connection.left_session import NO_LEFT_SESSIONS, LeftSessions
from sinks.mqtt.connection.phases import CloseReason
from sinks.mqtt.known_tables import NO_TABLES, KnownTables
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import AcceptConnection, GatewayCommand, SendPublish
from state.events import GatewayEvent
from state.model import QoS, ReasonCode
from state.records.events import decode_events
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

BROKERS_MS = 1_700_000_000_000
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


class Harness:
    """confirming: whether Kafka confirms at once. knows_settings: those of the engine. serves_at_once: as in
    Registration. login: what the host says of it; None = nothing yet. turn: of its CONNECT. total: of all connections.
    effects: of the last call. is_current: the answer to LookUp; None = nothing yet. is_newest: the answer to LookForLater; None =
    nothing yet."""

    def __init__(
        self,
        *,
        partition: int | None = 3,
        knows_settings: bool = True,
        serves_at_once: bool = False,
        login: Grant | LoginRefused | None = EVERYTHING,
        turn: Turn = Turn.NOW,
        total: Unconfirmed | None = None,
        tables: KnownTables = NO_TABLES,
        left_sessions: LeftSessions = NO_LEFT_SESSIONS,
        **settings: Any,
    ) -> None:
        self.login = login
        self.tables = tables
        self.left_sessions = left_sessions
        self.turn = turn
        self.now_ms = 1_000
        self.counters = GatewayCounters()
        self.partition = partition
        self.knows_settings = knows_settings
        self.serves_at_once = serves_at_once
        self.is_late = False
        self.is_current: bool | None = True
        self.is_newest: bool | None = True
        self.looks = 0
        self.confirming = True
        self.waiting: list[Append] = []
        self.events: list[GatewayEvent] = []
        self.event_records: list[bytes] = []
        self.others: defaultdict[AppendTopic, list[Append]] = defaultdict(list)
        self.sequence = 0
        self.announced = 0
        self._output = b""
        self.connection = WireConnection(GatewaySettings(**settings), self.counters, self.now_ms, total)
        self.effects = self.connection.tick(self.now_ms)

    def feed(self, call: str, *arguments: Any) -> None:
        """Calls the connection, and carries its effects out as a host does."""
        self.effects = effects = getattr(self.connection, call)(*arguments, self.now_ms)
        self._output += effects.write
        for append in effects.appends:
            if append.topic is AppendTopic.EVENTS:
                self.event_records.append(append.value)
                self.events += decode_events(append.value)
            else:
                self.others[append.topic].append(append)
        self.waiting += effects.appends
        for request in effects.requests:
            match request:
                case Register():
                    self.feed("registered", request, self._registration(request), self.turn)
                case LogIn() if self.login is not None:
                    self.feed("logged_in", self.login, self.connection.settings.accept_timeout_ms)
                case LookUp() if self.is_current is not None:
                    self.feed("looked_up", self.is_current)
                case LookForLater():
                    self.looks += 1
                    if self.is_newest is not None:
                        self.feed("looked_for_later", self.is_newest, BROKERS_MS)
                case Announce():
                    self.announced += 1

    def _registration(self, request: Register) -> Registration | None:
        if self.partition is None:
            return None
        client_id = request.client_id or "assigned"
        known, at_once = self.knows_settings, self.serves_at_once
        registration = Registration(77, client_id, self.partition, "lease-1", known, at_once, self.is_late, self.tables)
        return registration._replace(left_sessions=self.left_sessions)

    @property
    def uplink(self) -> list[Append]:
        return self.others[AppendTopic.UPLINK]

    @property
    def wants_data(self) -> bool:
        """Returns whether the connection reads; `tick` may be called at any time."""
        self.feed("tick")
        return self.effects.wants_data

    def output(self) -> bytes:
        """Returns the bytes written since the last call."""
        output, self._output = self._output, b""
        return output

    def settle(self) -> bytes:
        """Kafka confirms, if it does; the bytes for the device since the last time."""
        while self.confirming and self.waiting:
            for append in list(self.waiting):
                self.confirm(append)
        return self.output()

    def confirm(self, append: Append, error: Exception | None = None, *, too_large: bool = False) -> None:
        self.waiting.remove(append)
        if error is None and self.connection.settle(append):
            self.feed("write_settled")
            return
        refusal = ReasonCode.PACKET_TOO_LARGE if too_large else ReasonCode.SERVER_BUSY
        self.feed("confirm", append, ReasonCode.SUCCESS if error is None else refusal)

    def send(self, *data: bytes) -> bytes:
        self.feed("receive", b"".join(data))
        return self.settle()

    def close(self, reason: str, reason_code: ReasonCode) -> None:
        """The gateway closes the connection."""
        self.feed("close", CloseReason(reason, "gateway", reason_code), 0)

    def turn_has_come(self) -> bytes:
        self.feed("turn_has_come")
        return self.settle()

    def logged_in(self, login: Grant | LoginRefused) -> bytes:
        self.feed("logged_in", login, self.connection.settings.accept_timeout_ms)
        return self.settle()

    def command(self, kind: type[GatewayCommand], *, sequence: int | None = None, code: str = "", **fields: Any) -> bytes:
        self.sequence += 1
        command = kind(connection_id=77, partition=3, sequence=sequence or self.sequence, **fields)
        self.feed("apply", (command,), code)
        return self.settle()

    def pass_ms(self, ms: int) -> bytes:
        self.now_ms += ms
        self.feed("tick")
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
