"""A device, two gateways and an engine in random histories, and the promise that a device publishes behind its wills.

The connections, the tables and the session are the product's. Kafka confirms the records of a gateway in any order between
partitions. The engine writes the records of a micro-batch in any order, and may be killed before the commit: it executes the
micro-batch again then. The device connects again when it has CONNACK, or when its gateway is killed.
"""

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, get_args

from sinks.mqtt.access.grant import EVERYTHING
from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.effects import LogIn, LookUp, Register, Registration
from sinks.mqtt.known_tables import RoutingView
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from state.commands import AcceptConnection, Command, EndSessionMark, ForwardPublication, GatewayCommand, MarkSession
from state.events import ClientDisconnected, ConnectionLost, DeadlineReached, Event, GatewayEvent
from state.model import ReasonCode
from state.records.events import decode_events
from state.records.session_marks import ALL_MARKED, encode_mark, mark_key, mark_record
from state.records.subscriptions import decode_subscriptions
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

CLIENT = "c1"
CLEAN, WILL = 0x02, 0x04
_KEY = mark_key(CLIENT)
_SESSION = SessionSettings(routing=True, fast_path=False)
_ROUTING = RoutingSettings(enabled=True)
_SETTINGS = GatewaySettings(routing=_ROUTING, session=_SESSION)
_NOW_MS = 1_000
_CLOSES = {"DISCONNECT 0": b"\xe0\x00", "DISCONNECT 4": b"\xe0\x01\x04", "reset": b""}

_WRITTEN = (*get_args(GatewayCommand), ForwardPublication, MarkSession, EndSessionMark)

Mark = tuple[bytes | None, list[tuple[str, bytes]]]
"""Value and headers."""


class Wire:
    """One connection of the device. It publishes its number behind CONNECT."""

    def __init__(self, gateway: "Gateway", number: int, *, has_will: bool, expiry_s: int, clean: bool) -> None:
        self.gateway, self.number, self.has_will = gateway, number, has_will
        self.has_connack = self.is_over = self.is_orphan = False
        self.connection = WireConnection(_SETTINGS, GatewayCounters(), _NOW_MS)
        self.feed("tick")
        will = b"\x00" + text("t") + text("gone") if has_will else b""
        properties, flags = b"\x11" + expiry_s.to_bytes(4), clean * CLEAN | has_will * WILL
        self.feed("receive", connect(level=5, flags=flags, properties=properties, payload=text(CLIENT) + will))
        self.feed("receive", publish("t", b"%d" % number, first_byte=0x32, packet_id=1, v5=b""))

    def feed(self, call: str, *arguments: Any) -> None:
        effects = getattr(self.connection, call)(*arguments, _NOW_MS)
        self.has_connack |= effects.write[:1] == b"\x20"
        self.is_over |= effects.close
        for append in effects.appends:
            self.gateway.pending[append.topic, append.key].append((self, append))
        for request in effects.requests:
            match request:
                case Register():
                    tables = self.gateway.view
                    registration = Registration(self.number, CLIENT, 0, "lease", True, True, False, tables)
                    self.feed("registered", request, registration, Turn.NOW)
                case LogIn():
                    self.feed("logged_in", EVERYTHING, 30_000)
                case LookUp():
                    self.gateway.asking.append(self)

    def end(self, how: str) -> None:
        if _CLOSES[how]:
            self.feed("receive", _CLOSES[how])
        self.feed("peer_closed")


class Gateway:
    """Holds connections, and follows the marks.

    Attributes:
        pending: Records that Kafka has not confirmed, by partition.
        asking: Connections whose CONNECT waits for the tables.
    """

    def __init__(self) -> None:
        self.pending: defaultdict[tuple[AppendTopic, bytes | None], deque[tuple[Wire, Append]]] = defaultdict(deque)
        self.asking: list[Wire] = []
        self.tables = RoutingTables()
        self.view = RoutingView(_ROUTING, self.tables, lambda: True, lambda: _NOW_MS)
        self.begin()

    def begin(self) -> None:
        self.tables.clear()
        self.tables.read_list(ALL_MARKED, encode_mark(0), [])
        self.read = 0


@dataclass(slots=True)
class World:
    """The log and everybody who writes it.

    Attributes:
        uplink: The number of the connection, and whether it is its will.
        withdrawn: Connections whose will DISCONNECT has withdrawn; accepted: those that the session has accepted.
        has_repeated: The matcher has repeated a mark, which may outlive the end of the newer one.
        batch: The commands of the micro-batch; output: those whose records are not written.
    """

    choice: random.Random
    gateways: list[Gateway] = field(default_factory=lambda: [Gateway(), Gateway()])
    wires: list[Wire] = field(default_factory=list)
    events: deque[Event] = field(default_factory=deque)
    marks: list[Mark] = field(default_factory=list)
    uplink: list[tuple[int, bool]] = field(default_factory=list)
    session: Session = field(default_factory=lambda: Session(client_id=CLIENT, settings=_SESSION))
    output: list[Command] = field(default_factory=list)
    batch: list[Command] = field(default_factory=list)
    withdrawn: set[int] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)
    now_ms: int = 1
    was_killed: bool = False
    has_repeated: bool = False

    # --- the device -----------------------------------------------------------------------------------------------------------

    def connects(self) -> None:
        newest = self.wires[-1] if self.wires else None
        if newest is not None and not (newest.has_connack or newest.is_over):
            return
        has_will, clean = self.choice.random() < 0.6, self.choice.random() < 0.8
        gateway, expiry_s = self.choice.choice(self.gateways), self.choice.choice([0, 600])
        self.wires.append(Wire(gateway, len(self.wires) + 1, has_will=has_will, expiry_s=expiry_s, clean=clean))

    def leaves(self) -> None:
        if self.wires and self.wires[-1].has_connack and not self.wires[-1].is_over:
            self.wires[-1].end(self.choice.choice([*_CLOSES]))

    # --- gateways and Kafka -----------------------------------------------------------------------------------------------------

    def kafka_confirms(self) -> bool:
        """A record of some gateway gets into the log."""
        queues = [queue for gateway in self.gateways for queue in gateway.pending.values() if queue]
        if not queues:
            return False
        wire, append = self.choice.choice(queues).popleft()
        if append.topic is AppendTopic.EVENTS:
            self._log_events(append)
        elif append.topic is AppendTopic.UPLINK:
            self.uplink.append((int(append.value), False))
        elif append.key == _KEY:
            self.marks.append((append.value or None, append.headers or []))
        if wire.connection.settle(append):
            wire.feed("write_settled")
        else:
            wire.feed("confirm", append, ReasonCode.SUCCESS)
        return True

    def _log_events(self, append: Append) -> None:
        for event in decode_events(append.value):
            assert isinstance(event, GatewayEvent)
            self.events.append(event)
            if isinstance(event, ClientDisconnected) and not event.reason_code:
                self.withdrawn.add(event.connection_id)

    def table_answers(self) -> bool:
        for gateway in self.gateways:
            waits = any(append.delays_lookups for queue in gateway.pending.values() for _, append in queue)
            if gateway.asking and not waits:
                is_current = self.choice.random() < 0.9
                if is_current:
                    self.reads_marks(gateway)
                gateway.asking.pop(0).feed("looked_up", is_current)
                return True
        return False

    def reads_marks(self, gateway: Gateway) -> None:
        """The first gateway has the matcher, which repeats a mark behind a lower one."""
        while gateway.read < len(self.marks):
            value, headers = self.marks[gateway.read]
            gateway.read += 1
            gateway.tables.read_list(_KEY, value, headers, _NOW_MS)
            newest = gateway.tables.sessions.get(CLIENT.encode())
            if gateway is not self.gateways[0] or newest is None:
                continue
            if value is None or decode_subscriptions(value).connection_id < newest.connection_id:
                self.marks.append((encode_mark(newest.connection_id), []))
                self.has_repeated = True

    def table_is_read_anew(self) -> None:
        """Compaction has left the last mark."""
        gateway = self.choice.choice(self.gateways)
        self.reads_marks(self.gateways[0])
        gateway.begin()
        gateway.read = max(0, len(self.marks) - 1)

    def gateway_is_killed(self) -> None:
        """Lets what it has sent get into the log, or not. Nobody says that its connections are over."""
        gateway = self.choice.choice(self.gateways)
        if any(wire.gateway is gateway and not (wire.has_connack or wire.is_over) for wire in self.wires):
            return
        for queue in gateway.pending.values():
            for wire, append in list(queue)[: self.choice.randint(0, len(queue))]:
                if append.topic is AppendTopic.UPLINK:
                    self.uplink.append((wire.number, False))
                elif append.topic is AppendTopic.EVENTS:
                    self._log_events(append)
        for wire in self.wires:
            if wire.gateway is gateway and not wire.is_over:
                wire.is_over = wire.is_orphan = self.was_killed = True
        gateway.pending.clear()
        gateway.begin()

    def lease_passes(self) -> None:
        """The engine ends a connection of a gateway that is gone."""
        connection = self.session.connection
        if connection is not None and self.wires[connection.connection_id - 1].is_orphan and not self.events:
            self.events.append(ConnectionLost(connection_id=connection.connection_id))

    # --- the engine -----------------------------------------------------------------------------------------------------------

    def engine_works(self) -> bool:
        """Begins a micro-batch, or writes a record of it."""
        if self.output:
            chosen = self.choice.choice(self.output)
            if isinstance(chosen, GatewayCommand):  # they keep their order
                chosen = next(command for command in self.output if isinstance(command, GatewayCommand))
            self.output.remove(chosen)
            self._write(chosen)
            return True
        deadline_ms = self.session.next_deadline_ms()
        self.now_ms += 1
        if not self.events and (deadline_ms is None or deadline_ms > self.now_ms):
            return False
        events = [self.events.popleft() for _ in range(self.choice.randint(1, len(self.events)))] if self.events else []
        commands = self.session.handle_all(events or [DeadlineReached()], now_ms=self.now_ms)
        self.session = decode_session(encode_session(self.session), client_id=CLIENT, settings=_SESSION)
        self.batch = [one for one in commands if isinstance(one, _WRITTEN)]
        self.output = list(self.batch)
        return True

    def engine_is_killed(self) -> None:
        """It executes the micro-batch again, with the same result."""
        if self.output:
            self.output = list(self.batch)

    def _write(self, command: Command) -> None:
        match command:
            case ForwardPublication():
                self.uplink.append((int(command.publication_id.split(":")[1]), True))
            case MarkSession() | EndSessionMark():
                record = mark_record("subscriptions", CLIENT, command)
                self.marks.append((record.value, [(header.key, header.value or b"") for header in record.headers or ()]))
            case _ if isinstance(command, GatewayCommand):
                wire = self.wires[command.connection_id - 1]
                if isinstance(command, AcceptConnection):
                    self.accepted.add(wire.number)
                if not wire.is_over:
                    wire.feed("apply", (command,), "")

    # --- the promise ------------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        published = 0
        for number, is_will in self.uplink:
            assert not is_will or number >= published, f"the will of {number} is behind a publication of {published}"
            published = published if is_will else max(published, number)

    def settle(self) -> None:
        """Everything comes to rest, and the device connects once more and leaves for good."""
        self._rest()
        self.wires.append(Wire(self.gateways[0], len(self.wires) + 1, has_will=False, expiry_s=0, clean=True))
        self._rest()
        last = self.wires[-1]
        assert last.has_connack
        assert (last.number, False) in self.uplink
        last.end("DISCONNECT 0")
        self._rest()
        wills = {number for number, is_will in self.uplink if is_will}
        known = {wire.number for wire in self.wires if wire.has_will} & self.accepted - self.withdrawn
        assert self.was_killed or known <= wills, "each will is published that was not withdrawn"
        self.reads_marks(self.gateways[0])
        newest = self.gateways[0].tables.sessions.get(CLIENT.encode())
        is_left = newest is not None and not newest.wills_settled
        assert not is_left or self.was_killed or self.has_repeated, "no mark is left of a client that has gone"

    def _rest(self) -> None:
        for _ in range(1_000):
            if not (self.table_answers() or self.kafka_confirms() or self.engine_works()):
                return
        raise AssertionError("it comes to no rest")


def run_history(seed: int, steps: int = 60) -> None:
    world = World(random.Random(seed))
    common = (world.kafka_confirms, world.engine_works, world.table_answers)
    rare = (world.connects, world.leaves, world.engine_is_killed, world.table_is_read_anew, world.lease_passes)
    for _ in range(steps):
        if world.choice.random() < 0.02:
            world.gateway_is_killed()
        world.choice.choice(common if world.choice.random() < 0.75 else rare)()
        world.check()
    world.settle()
    world.check()
