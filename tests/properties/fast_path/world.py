"""One client, its session, two gateways' worth of connections, routers and Kafka between them, in single steps of any order.

Real: the session with its blob, the connections with their bytes, the records, the routers' memory. Simulated, as freely as the
promises of docs/protocol.md (7) allow: when what arrives, is confirmed, fails, is lost or comes twice; who freezes, crashes or
loses a partition; how much of which topic a micro-batch reads, and whether it is executed again; what the device does.

`moves` says what can happen next, `check` what must hold always, `come_to_rest` what must hold when everybody behaves.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from sinks.fast_path.router_memory import RouterMemory
from sinks.fast_path.settings import FastPathSettings
from sinks.mqtt.access.grant import EVERYTHING, Grant
from sinks.mqtt.codec.packets import Connect, Publish, PubRel
from sinks.mqtt.connection.appends import Append
from sinks.mqtt.connection.connection import Connection
from sinks.mqtt.connection.handshake import Registration
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import (
    AcceptConnection,
    ClearRoute,
    CloseConnection,
    Command,
    CommandBatch,
    OfferPublish,
    SendReceipt,
    SetRoute,
)
from state.errors import ProtocolViolation
from state.events import ConnectionLost, DeadlineReached, Event, LoggedEvent
from state.model import Outcome, Position, ReasonCode
from state.records.commands import decode_command_batch, encode_command_batch
from state.records.events import completed, decode_event, encode_event
from state.records.messages import message_event
from state.records.record import Header, accepted_at, position
from state.records.settings import RecordLimits
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import Overflow, RetryMqtt5, SessionSettings
from tests.properties.fast_path.device import (
    CLIENT,
    ConnAckToDevice,
    Device,
    DisconnectToDevice,
    ToDevice,
    answer_packet,
    connect_packet,
    read_packets,
)

START_MS: Final = 1_700_000_000_000
PARTITION: Final = 3
MAX_PAYLOAD_BYTES: Final = 16
_NEVER_RECEIVED: Final = (Outcome.EXPIRED, Outcome.MAXLEN, Outcome.OFFLINE, Outcome.TOO_LARGE, Outcome.INVALID)


@dataclass(frozen=True, kw_only=True)
class Story:
    """What stays the same while a world lives. qos: of the messages, in turn. versions: MQTT's, of the connections in turn."""

    session: SessionSettings = field(default_factory=SessionSettings)
    qos: tuple[int, ...] = (1, 2, 0)
    versions: tuple[int, ...] = (4, 5)
    receive_maximum: int = 65_535
    expiry_s: int = 3_600
    clean_starts: bool = False
    lives_s: tuple[int | None, ...] = (None,)
    priorities: tuple[int, ...] = (0,)
    faults: int = 6
    refusals: bool = False
    large: bool = False
    switches: bool = False
    begins_open: bool = True
    routers: int = 1
    stops: bool = True
    haste: int = 2
    """Of the engine: how often it reads messages."""


@dataclass(frozen=True)
class Record:
    """Of `inflight.messages`. name: "" = of another client."""

    offset: int
    name: str
    timestamp_ms: int
    headers: tuple[Header, ...] = ()
    value: bytes = b""


@dataclass(eq=False)
class Line:
    """A connection at its gateway, and what is on the way from and to it.

    waiting: given to Kafka and not in the log. landed: in the log (None) or failed, which the gateway has not heard.
    down: written, and not read by the device; up: the other way.
    """

    number: int
    connection: Connection
    version: int
    waiting: deque[Append] = field(default_factory=deque)
    landed: deque[tuple[Append, Exception | None]] = field(default_factory=deque)
    commands: deque[bytes] = field(default_factory=deque)
    offers: deque[OfferPublish] = field(default_factory=deque)
    down: deque[ToDevice] = field(default_factory=deque)
    up: deque[bytes] = field(default_factory=deque)
    written: set[int] = field(default_factory=set)
    unanswered: set[int] = field(default_factory=set)
    frozen: bool = False
    moved: bool = False
    crashed: bool = False
    is_told_lost: bool = False

    @property
    def is_there(self) -> bool:
        """A gateway that works holds it."""
        return not (self.frozen or self.crashed or self.connection.is_closed)


class World:
    def __init__(self, story: Story) -> None:
        self.story = story
        self.settings = story.session
        self.now_ms = START_MS
        self.device = Device()
        self.lines: list[Line] = []
        self.present: Line | None = None
        """That the device is attached to."""
        self.messages: list[Record] = []
        self.messages_read = 0
        self.events: list[bytes] = []
        self.events_read = 0
        self.limbo: list[bytes] = []
        """Events that may still get into the log."""
        self.blob: bytes | None = None
        self.deadline_ms: int | None = None
        self.again: tuple[int, int, int, SessionSettings] | None = None
        self.routes: list[int | None] = [None]
        self.routers = [RouterMemory(clients=2), RouterMemory(clients=2)]
        self.reads_next: list[int | None] = [None, None]
        self.outcomes: dict[str, Outcome] = {}
        self.sent: dict[str, int] = {}
        self.taken = 0
        self.counters = GatewayCounters()
        self.faults_left = story.faults
        self.next_id = 1_000
        self.told: list[str] = []
        self._gateway_settings = GatewaySettings(fast_path=FastPathSettings(max_payload_bytes=MAX_PAYLOAD_BYTES))
        if story.begins_open:
            self._begin_open()

    def _begin_open(self) -> None:
        """The device is there, its first message has come, and what follows may take the fast path."""
        self._assign(0)
        self._submit()
        self._connect(clean_start=False)
        self._let_all_happen()

    # --- what can happen ----------------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[tuple[int, str, Callable[[], None]]]:
        """(weight, name, what happens)."""
        if len(self.sent) < 40:
            yield 15, "the backend sends", self._submit
        yield 1, "another client's message", lambda: self._append_record("", ())
        yield from self._engine_moves()
        yield from self._router_moves()
        for line in self.lines:
            yield from self._line_moves(line)
        yield from self._device_moves()
        for event in range(min(2, len(self.limbo))):
            yield 2, "a late append lands", lambda event=event: self._land_late(event)

    def step(self, choice: int) -> None:
        moves = list(self.moves())
        left = choice % sum(weight for weight, _, _ in moves)
        for weight, name, happens in moves:
            left -= weight
            if left < 0:
                self.told.append(name)
                happens()
                return

    # --- the backend ----------------------------------------------------------------------------------------------------------

    def _submit(self, *, is_plain: bool = False) -> None:
        """is_plain: of a kind that may take the fast path."""
        story, number = self.story, len(self.sent)
        if is_plain:
            story = replace(story, lives_s=(None,), priorities=(0,), large=False)
        name = f"m{number:03}"
        qos = story.qos[number % len(story.qos)]
        headers = [Header("mqtt-topic", b"t"), Header("mqtt-qos", b"%d" % qos)]
        if number % 3:
            headers.append(Header("message-id", name.encode()))
        life_s = story.lives_s[number % len(story.lives_s)]
        if life_s is not None:
            headers.append(Header("expiration", b"%d" % (life_s * 1_000)))
        priority = story.priorities[number % len(story.priorities)]
        if priority:
            headers.append(Header("priority", b"%d" % priority))
        self.sent[name] = qos
        padding = b" " * 20 if story.large and number % 4 == 3 else b""
        self._append_record(name, tuple(headers), name.encode() + padding)

    def _append_record(self, name: str, headers: tuple[Header, ...], value: bytes = b"") -> None:
        offset = self.messages[-1].offset + 1 if self.messages else 100
        self.messages.append(Record(offset, name, self.now_ms, headers, value))

    # --- the engine -----------------------------------------------------------------------------------------------------------

    def _engine_moves(self) -> Iterator[tuple[int, str, Callable[[], None]]]:
        if self.again is not None:
            again = self.again
            yield 30, "the micro-batch is executed again", lambda: self._batch(*again)
            return
        events, messages = len(self.events) - self.events_read, len(self.messages) - self.messages_read
        for read_events, read_messages in {
            (events, messages),
            (min(1, events), 0),
            (events, 0),
            (0, messages),
            (0, min(1, messages)),
        }:
            if read_events or read_messages:
                yield (
                    self.story.haste if read_messages else 6,
                    f"micro-batch {read_events} {read_messages}",
                    (lambda e=read_events, m=read_messages: self._batch(e, m, self.now_ms, self.settings)),
                )
                if self.faults_left:
                    yield (
                        1,
                        f"micro-batch {read_events} {read_messages}, not committed",
                        (lambda e=read_events, m=read_messages: self._uncommitted(e, m)),
                    )
        deadline_ms = self.deadline_ms
        if deadline_ms is not None:
            yield 1, "time passes until the next timer", lambda: self._timer(deadline_ms)
        yield 2, "a second passes", lambda: self._pass(1_000)
        if self.story.switches:
            yield 1, "the fast path is switched", self._switch

    def _switch(self) -> None:
        self.settings = replace(self.settings, fast_path=not self.settings.fast_path)

    def _pass(self, ms: int) -> None:
        self.now_ms += ms

    def _timer(self, deadline_ms: int) -> None:
        self.now_ms = max(self.now_ms, deadline_ms)
        self._batch(0, 0, self.now_ms, self.settings)

    def _uncommitted(self, read_events: int, read_messages: int) -> None:
        self.faults_left -= 1
        self.again = (read_events, read_messages, self.now_ms, self.settings)
        self._write(self._execute(*self.again)[0], committed=False)

    def _batch(self, read_events: int, read_messages: int, now_ms: int, settings: SessionSettings) -> None:
        commands, self.blob = self._execute(read_events, read_messages, now_ms, settings)
        self.deadline_ms = None if self.blob is None else self._session(settings).next_deadline_ms()
        self.events_read += read_events
        self.messages_read += read_messages
        self.again = None
        self._write(commands, committed=True)
        self.check()

    def _session(self, settings: SessionSettings) -> Session:
        if self.blob is None:
            return Session(client_id=CLIENT, settings=settings)
        return decode_session(self.blob, client_id=CLIENT, settings=settings)

    def _execute(
        self, read_events: int, read_messages: int, now_ms: int, settings: SessionSettings
    ) -> tuple[tuple[Command, ...], bytes | None]:
        """Twice, with the same result."""
        happened: list[Event] = []
        for number in range(self.events_read, self.events_read + read_events):
            event = decode_event(self.events[number])
            happened.append(self._completed(event, number, now_ms))
        for record in self.messages[self.messages_read : self.messages_read + read_messages]:
            if record.name:
                happened.append(self._message(record, now_ms))
        if self.blob is None and not happened:
            return (), None
        results = []
        for _ in range(2):
            session = self._session(settings)
            try:
                commands = session.handle_all(happened or [DeadlineReached()], now_ms=now_ms)
            except ProtocolViolation as violation:
                raise AssertionError(f"the device keeps to the protocol: {violation.reason}") from violation
            results.append((commands, None if session.is_empty else encode_session(session)))
        assert results[0] == results[1], "executed again, the micro-batch gives something else"
        return results[0]

    def _completed(self, event: LoggedEvent, number: int, now_ms: int) -> Any:
        return completed(event, topic="events", partition=0, offset=number, accepted_ms=now_ms)

    def _message(self, record: Record, now_ms: int) -> Event:
        event = message_event(
            record.headers,
            record.value,
            accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
            default_message_id=position("messages", PARTITION, record.offset),
            limits=RecordLimits(),
        )
        return msgspec.structs.replace(event, position=Position(PARTITION, record.offset))

    def _write(self, commands: tuple[Command, ...], *, committed: bool) -> None:
        batches: dict[int, list[Any]] = {}
        for command in commands:
            match command:
                case SendReceipt():
                    if committed:
                        self._receipt(command)
                case AcceptConnection(session_present=False):
                    # Even if this CONNACK never arrives: MQTT has no way to tell the client, at its next CONNECT, that the
                    # session it finds is not the one it knew. "Exactly once" holds for as long as the session lives.
                    self.device.received_ids.clear()
                    batches.setdefault(command.connection_id, []).append(command)
                case SetRoute():
                    self.routes.append(command.connection_id)
                case ClearRoute():
                    self.routes.append(None)
                case _ if hasattr(command, "sequence"):
                    batches.setdefault(command.connection_id, []).append(command)
                case _:
                    pass
        for line in self.lines:
            if batch := batches.pop(line.connection.connection_id, None):
                line.commands.append(encode_command_batch(CommandBatch(client_id=CLIENT, commands=tuple(batch), code="c")))
        for batch in batches.values():  # of an id that its gateway has replaced, because a later one is known
            assert all(isinstance(command, CloseConnection) for command in batch), "a command for a connection that never was"

    def _receipt(self, receipt: SendReceipt) -> None:
        name = self._name(receipt.message_id)
        assert name not in self.outcomes, f"two outcomes of {name}: {self.outcomes[name]}, then {receipt.outcome}"
        got = self.device.got[name]
        if receipt.outcome is Outcome.DELIVERED:
            assert got, f"{name} is delivered, and the device never got it"
        elif receipt.outcome in _NEVER_RECEIVED and name not in self.device.refused:  # a repetition may cross its refusal
            assert not got, f"{name} has ended as {receipt.outcome}, and the device has it"
        self.outcomes[name] = receipt.outcome

    def _name(self, message_id: str) -> str:
        if message_id.startswith("m") and not message_id.startswith("messages"):
            return message_id
        offset = int(message_id.rpartition("-")[2])
        return next(record.name for record in self.messages if record.offset == offset)

    # --- routers --------------------------------------------------------------------------------------------------------------

    def _router_moves(self) -> Iterator[tuple[int, str, Callable[[], None]]]:
        for number in range(self.story.routers):
            reads_next = self.reads_next[number]
            if reads_next is None:
                yield 8 if number == 0 else 2, f"router {number} is assigned", lambda n=number: self._assign(n)
                continue
            if reads_next < len(self.messages):
                yield 40, f"router {number} reads", lambda n=number: self._route(n)
            if self.faults_left:
                yield 3, f"router {number} is revoked", lambda n=number: self._revoke(n)

    def _assign(self, number: int) -> None:
        self.reads_next[number] = len(self.messages)
        next_offset = self.messages[-1].offset + 1 if self.messages else 100
        self.routers[number].assigned(PARTITION, next_offset)

    def _revoke(self, number: int) -> None:
        self.faults_left -= 1
        self.reads_next[number] = None
        self.routers[number].revoked(PARTITION)

    def _route(self, number: int) -> None:
        reads_next = self.reads_next[number]
        assert reads_next is not None
        self.reads_next[number] = reads_next + 1
        record = self.messages[reads_next]
        key = ((record.name and CLIENT) or f"other-{record.offset % 3}").encode()
        previous = self.routers[number].previous(PARTITION, key, record.offset)
        if not record.name:
            return
        offered = {line for line in self.lines if line.connection.connection_id == self.routes[-1]} | set(self.lines[-1:])
        for line in self.lines:
            if line in offered:
                line.offers.append(
                    OfferPublish(
                        connection_id=line.connection.connection_id,
                        position=Position(PARTITION, record.offset),
                        previous=previous,
                        timestamp_ms=record.timestamp_ms,
                        headers=tuple((header.key, header.value) for header in record.headers),
                        payload=record.value,
                    )
                )

    # --- connections ----------------------------------------------------------------------------------------------------------

    def await_turn(self, connection: Connection) -> Turn:
        return Turn.NOW

    def register(self, connection: Connection) -> Registration:
        self.next_id += 1
        return Registration(self.next_id, 0, "lease")

    def log_in(self, connection: Connection, connect: Connect) -> Grant:
        return EVERYTHING

    def admitted(self, connection: Connection) -> None:
        pass

    def new_client_id(self) -> str:
        raise AssertionError("the device has a client id")

    def _line_moves(self, line: Line) -> Iterator[tuple[int, str, Callable[[], None]]]:
        label = f"k{line.number}:"
        if line.waiting:
            yield 30, f"{label} an append lands", lambda: self._land(line)
            if self.faults_left and line.is_there:
                for index in range(min(3, len(line.waiting))):
                    yield 4, f"{label} append {index} fails", lambda i=index: self._fail(line, i, lands_late=False)
                    yield 4, f"{label} append {index} fails and lands late", lambda i=index: self._fail(line, i, lands_late=True)
        if (line.crashed or line.moved) and line.commands:
            yield 4, f"{label} another gateway reads a command", lambda: self._read_for_another(line)
        if (line.crashed or line.moved) and not line.is_told_lost:
            yield 1, f"{label} its lease has expired", lambda: self._told_lost(line)
        if line.frozen:
            if not line.moved:
                yield 2, f"{label} its lease passes", lambda: setattr(line, "moved", True)
            yield 4, f"{label} its gateway wakes up", lambda: self._wake(line)
        if not line.is_there:
            return
        if line.landed:
            yield 30, f"{label} hears of an append", lambda: self._confirm(line)
        if line.commands:
            yield 30, f"{label} reads commands", lambda: self._read_commands(line)
        if line.offers:
            yield 60, f"{label} reads an offer", lambda: self._offer(line, 0)
            yield 8, f"{label} reads an offer, which comes again", lambda: self._offer(line, 0, again=True)
            yield 1, f"{label} reads the newest offer first", lambda: self._offer(line, -1)
            yield 1, f"{label} an offer is lost", lambda: line.offers.popleft() and None
            yield 1, f"{label} is under pressure", lambda: self._offer(line, 0, under_pressure=True)
        if line.up:
            yield 30, f"{label} hears the device", lambda: self._hear(line)
        if line is not self.present:
            yield 3, f"{label} notices that the device has left", lambda: self._left(line)
        if self.faults_left and self.story.stops:
            yield 2, f"{label} its gateway freezes", lambda: self._freeze(line)
            yield 2, f"{label} its gateway crashes", lambda: self._crash(line)

    def _land(self, line: Line) -> None:
        append = line.waiting.popleft()
        self.events.append(append.value)
        line.is_told_lost |= append.is_farewell
        line.landed.append((append, None))

    def _fail(self, line: Line, index: int, *, lands_late: bool) -> None:
        self.faults_left -= 1
        append = line.waiting[index]
        del line.waiting[index]
        if append.is_farewell:  # said again until it is in the log
            line.waiting.append(append)
            return
        if lands_late:
            self.limbo.append(append.value)
        line.landed.append((append, ConnectionError("Kafka")))

    def _land_late(self, index: int) -> None:
        self.events.append(self.limbo.pop(index))

    def _confirm(self, line: Line) -> None:
        append, error = line.landed.popleft()
        line.connection.confirm(append, error, self.now_ms)
        self._follow(line)

    def _read_commands(self, line: Line) -> None:
        batch = decode_command_batch(line.commands.popleft())
        for command in batch.commands:
            assert not isinstance(command, OfferPublish)
            line.connection.apply(command, self.now_ms, batch.code)
        self._follow(line)

    def _offer(self, line: Line, index: int, *, again: bool = False, under_pressure: bool = False) -> None:
        offer = line.offers[index]
        if not again:
            del line.offers[index]
        line.connection.offer(offer, self.now_ms, self.now_ms, under_pressure=under_pressure)
        self._follow(line)

    def _hear(self, line: Line) -> None:
        line.connection.receive(line.up.popleft(), self.now_ms)
        self._follow(line)

    def _left(self, line: Line) -> None:
        line.up.clear()
        line.connection.peer_closed(self.now_ms)
        self._follow(line)

    def _follow(self, line: Line) -> None:
        """What a host does after every call."""
        connection = line.connection
        line.waiting += connection.take_appends()
        packets = read_packets(connection.take_output(), line.version)
        for packet in packets:
            if isinstance(packet, Publish) and packet.qos and not (packet.dup and packet.packet_id in line.written):
                line.written.add(packet.packet_id)
                assert packet.dup or packet.packet_id not in line.unanswered, f"packet id {packet.packet_id} twice on the wire"
                line.unanswered.add(packet.packet_id)
                limit = self.story.receive_maximum
                assert line.version < 5 or len(line.unanswered) <= limit, "more than the Receive Maximum"
        if line is self.present:
            line.down += packets
        if connection.is_closed:
            line.up.clear()

    def _freeze(self, line: Line) -> None:
        self.faults_left -= 1
        line.frozen = True

    def _wake(self, line: Line) -> None:
        line.frozen = False
        if line.moved:  # the host looks at its lease before anything else, and closes what it holds
            line.connection.shut("the lease of the gateway has passed", ReasonCode.SERVER_BUSY, at_once=True)
            line.waiting += line.connection.take_appends()
            packets = read_packets(line.connection.take_output(), line.version)
            assert all(isinstance(packet, DisconnectToDevice | ConnAckToDevice) for packet in packets), packets
            if line is self.present:
                line.down += packets

    def _crash(self, line: Line) -> None:
        self.faults_left -= 1
        line.crashed = True
        self.limbo += [append.value for append in line.waiting]
        line.waiting.clear()

    def _read_for_another(self, line: Line) -> None:
        for command in decode_command_batch(line.commands.popleft()).commands:
            if not isinstance(command, CloseConnection | OfferPublish) and not line.is_told_lost:
                self._told_lost(line)

    def _told_lost(self, line: Line) -> None:
        line.is_told_lost = True
        self.events.append(encode_event(ConnectionLost(connection_id=line.connection.connection_id, reason="gone")))

    # --- the device -----------------------------------------------------------------------------------------------------------

    def _device_moves(self) -> Iterator[tuple[int, str, Callable[[], None]]]:
        line = self.present
        if line is not None and line.down:
            yield 40, "the device reads and answers", lambda: self._device_reads(line)
            yield 1, "the device reads, its answer is lost", lambda: self._device_reads(line, answers=False)
            if self.story.refusals and line.version == 5:
                yield 1, "the device refuses", lambda: self._device_reads(line, reason_code=0x97)
        elif line is not None and (line.crashed or line.connection.is_closed):
            yield 8, "the device finds its socket closed", self._leave
        if len(self.lines) < 6 and (line is None or self.faults_left):
            for clean_start in (False, True) if self.story.clean_starts else (False,):
                yield (
                    8 if line is None else 2,
                    f"the device connects, clean start {clean_start}",
                    (lambda c=clean_start: self._connect(clean_start=c)),
                )

    def _leave(self) -> None:
        self.present = None

    def _connect(self, *, clean_start: bool, expiry_s: int | None = None) -> None:
        if self.present is not None:
            self.faults_left = max(0, self.faults_left - 1)
            self.present.down.clear()
        number = len(self.lines) + 1
        version = self.story.versions[number % len(self.story.versions)]
        line = Line(number, Connection(self._gateway_settings, self, self.counters, self.now_ms), version)
        self.lines.append(line)
        self.present = line
        line.up.append(
            connect_packet(
                version,
                clean_start=clean_start,
                expiry_s=self.story.expiry_s if expiry_s is None else expiry_s,
                receive_maximum=self.story.receive_maximum,
            )
        )

    def _device_reads(self, line: Line, *, answers: bool = True, reason_code: int = 0) -> None:
        packet = line.down.popleft()
        device = self.device
        answer = b""
        match packet:
            case ConnAckToDevice():
                if packet.reason_code:
                    self.present = None
                elif not packet.session_present:
                    device.received_ids.clear()
            case DisconnectToDevice():
                self.present = None
            case PubRel():
                device.received_ids.pop(packet.packet_id, None)
                answer = answer_packet(0x70, packet.packet_id)
                if answers:
                    line.unanswered.discard(packet.packet_id)
            case Publish():
                name = packet.payload.decode().rstrip()
                if reason_code and packet.qos and packet.packet_id not in device.received_ids and not device.got[name]:
                    device.refused.add(name)
                    line.unanswered.discard(packet.packet_id)
                else:
                    reason_code = 0
                    self._device_takes(packet, name)
                if packet.qos:
                    answer = answer_packet(0x40 if packet.qos == 1 else 0x50, packet.packet_id, reason_code)
                    if answers and packet.qos == 1:
                        line.unanswered.discard(packet.packet_id)
        if answer and answers:
            line.up.append(answer)

    def _device_takes(self, publish: Publish, name: str) -> None:
        device = self.device
        is_first = not device.got[name]
        device.take(publish)
        if self.sent[name] == 2:
            assert device.got[name] == 1, f"{name} twice at QoS 2"
        if is_first:
            outcome = self.outcomes.get(name)
            assert outcome not in _NEVER_RECEIVED or name in device.refused, f"{name} comes after its end as {outcome}"
            if name not in device.refused and self._keeps_order(self.sent[name]):
                for other in device.order[:-1]:
                    assert other < name or self.sent[other] != self.sent[name], f"{name} comes after {other}"

    def _keeps_order(self, qos: int) -> bool:
        """QoS 0 may pass by an earlier message where it has no place or no time to wait (state/outbound/admission.py)."""
        limits = self.story.session
        is_long = 0 not in self.story.lives_s and limits.mqueue_store_qos0 and limits.max_mqueue_len > len(self.sent)
        return set(self.story.priorities) == {0} and (qos > 0 or is_long)

    # --- what must hold -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        session = self._session(self.settings)
        outbound = session.outbound
        entries = list(outbound.window)
        held = [self._name(d.message.message_id) for d in (*(entry.delivery for entry in entries), *outbound.queue)]
        assert len(held) == len(set(held)), f"held twice: {held}"
        assert not set(held) & self.outcomes.keys(), "held, and has its outcome"
        for record in self.messages[: self.messages_read]:
            if record.name:
                assert record.name in held or record.name in self.outcomes, f"{record.name} is nowhere: lost"

    def come_to_rest(self) -> None:
        """Everybody behaves from now on: all that was sent gets its outcome, and the path is open for the next message."""
        self.faults_left = 0
        self.settings = replace(self.story.session, fast_path=True)
        for line in self.lines:
            if line.frozen:
                self._wake(line)
        for _ in range(400):
            if self.present is None or self.present.crashed or self.present.connection.is_closed:
                self.told.append("the device comes back")
                self.present = None
                self._connect(clean_start=False, expiry_s=3_600)
            self._let_all_happen()
            if self._is_at_rest():
                break
            if self.deadline_ms is not None:
                self._timer(self.deadline_ms)
            elif self.present is not None:  # an answer of the device was lost, and nobody waits for it
                self.present.connection.peer_closed(self.now_ms)
                self._follow(self.present)
        assert self.outcomes.keys() == self.sent.keys(), f"no outcome: {self.sent.keys() - self.outcomes.keys()}"
        if self.story.session.delivery_limit < 0:  # else a message that was given up may hold a slot until it is answered
            self._is_open_again()

    def _is_open_again(self) -> None:
        """A message or two by the slow path, and the next one takes the fast path."""
        taken_before = self.counters.offers_taken
        for _ in range(3):
            if self.reads_next[0] is None:
                self._assign(0)
            self._submit(is_plain=True)
            while self.reads_next[0] < len(self.messages):
                self._route(0)
            line = self.present
            assert line is not None
            while line.offers:
                self._offer(line, 0)
            self._let_all_happen()
        assert self.counters.offers_taken > taken_before, "the fast path stays closed"

    def _is_at_rest(self) -> bool:
        return self.outcomes.keys() == self.sent.keys()

    def _let_all_happen(self) -> None:
        while self._something_happens():
            pass

    def _something_happens(self) -> bool:
        if self.again is not None:
            self._batch(*self.again)
            return True
        for line in self.lines:
            if line.waiting:
                self._land(line)
                return True
            if line.crashed and line.commands:
                self._read_for_another(line)
                return True
            if line.crashed and not line.is_told_lost:
                self._told_lost(line)
                return True
            if not line.is_there:
                continue
            if line is not self.present:
                self._left(line)
                return True
            for pending, happens in (
                (line.landed, self._confirm),
                (line.commands, self._read_commands),
                (line.offers, lambda one: self._offer(one, 0)),
                (line.up, self._hear),
                (line.down, self._device_reads),
            ):
                if pending:
                    happens(line)
                    return True
        if self.events_read < len(self.events) or self.messages_read < len(self.messages):
            self._batch(len(self.events) - self.events_read, len(self.messages) - self.messages_read, self.now_ms, self.settings)
            return True
        return False


def story_of(number: int) -> Story:
    """One of many, the same for the same number."""
    import random

    pick = random.Random(number).choice
    return Story(
        session=SessionSettings(
            max_inflight=pick([1, 2, 3]),
            prefetch=pick([0, 0, 2]),
            max_mqueue_len=pick([1, 2, 1_000, 1_000]),
            overflow=pick(list(Overflow)),
            mqueue_store_qos0=pick([True, True, False]),
            delivery_limit=pick([-1, 2, 20]),
            deduplication_window=pick([0, 3, 100]),
            retry_mqtt5=pick(list(RetryMqtt5)),
        ),
        qos=pick([(2,), (1,), (2, 1, 0), (1, 2), (0, 2), (0,)]),
        versions=pick([(4,), (5,), (4, 5)]),
        receive_maximum=pick([1, 2, 65_535]),
        expiry_s=pick([0, 60, 3_600, 3_600]),
        clean_starts=pick([False, False, True]),
        lives_s=pick([(None,), (None,), (None, 1, 20), (None, 0)]),
        priorities=pick([(0,), (0,), (0,), (0, 5)]),
        faults=pick([0, 2, 6]),
        refusals=pick([False, False, True]),
        large=pick([False, True]),
        switches=pick([False, False, False, True]),
        begins_open=pick([True, True, True, False]),
        routers=pick([1, 1, 2]),
        stops=pick([True, True, False]),
        haste=pick([1, 3, 10]),
    )
