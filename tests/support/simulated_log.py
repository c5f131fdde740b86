"""Makes the log of a system that never ran: backends and devices by a script, and the engine's own functions in between.

It has what `inflight what-if` reads: records of messages, events and the ledger, the rows of micro-batches among them.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import msgspec

from state.commands import SendPublish, SendPubRel
from state.events import (
    ClientConnected,
    ClientDisconnected,
    DeadlineReached,
    LoggedEvent,
    PubAckReceived,
    PubCompReceived,
    PubRecReceived,
)
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from state.records.ledger import LedgerRow
from state.records.messages import EXPIRATION, MESSAGE_ID, QOS, TOPIC
from state.records.record import Header
from state.session import Session
from state.session_codec import decode_session, encode_session
from streaming.engine.batch_record import batch_row
from streaming.engine.operator.cells import EVENTS, MESSAGES, SourceRecord, record_order
from streaming.engine.operator.pipeline import PipelineSettings, SettingsOfClients
from streaming.engine.operator.to_events import to_events
from streaming.engine.operator.to_records import to_records
from streaming.spark_internals.checkpoint import LoggedBatch
from streaming.what_if.partition_replay import LEDGER

START_MS = 1_700_000_000_000
BATCH_MS = 500


@dataclass(frozen=True)
class Send:
    """A backend sends a message."""

    qos: int = 1
    ttl_ms: int | None = None
    message_id: str = ""


@dataclass(frozen=True)
class Connect:
    clean: bool = False
    mqtt5: bool = False


@dataclass(frozen=True)
class Disconnect:
    pass


Step = tuple[int, Send | Connect | Disconnect]
"""A time in ms since the beginning, and what happens."""


@dataclass
class ScriptedDevice:
    """Acknowledges after `latency_ms`, while it is connected, each message for which `answers` is true."""

    latency_ms: int = 700
    answers: Callable[[str], bool] = lambda message_id: True
    online: int = 0
    got: set[tuple[str, int]] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """A record of Kafka. source: as in the cells."""

    source: int
    client_id: str
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    headers: tuple[Header, ...] = ()

    def cell(self) -> bytes:
        return msgspec.json.encode(
            SourceRecord(self.source, self.partition, self.offset, self.timestamp_ms, self.headers, self.value)
        )


@dataclass
class SimulatedLog:
    """records: those of messages and events in order, then those of the ledger. batches: the rows of micro-batches."""

    records: list[LogRecord] = field(default_factory=list)
    ledger: list[tuple[str, int, bytes]] = field(default_factory=list)
    batches: list[LedgerRow] = field(default_factory=list)

    def cells(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yields each client with its cells, as the partitions of the job have them."""
        found: defaultdict[str, list[bytes]] = defaultdict(list)
        for record in self.records:
            found[record.client_id].append(record.cell())
        for number, (client_id, at_ms, value) in enumerate(self.ledger):
            found[client_id].append(msgspec.json.encode(SourceRecord(LEDGER, 0, number, at_ms, (), value)))
        yield from sorted(found.items())

    def outcomes(self, *, until_ms: int = 1 << 62) -> dict[str, str]:
        """Returns how each message ended, by its id; those that wait at `until_ms` are missing."""
        rows = (
            row
            for _, at_ms, value in self.ledger
            if at_ms <= until_ms
            for row in msgspec.json.decode(value, type=list[LedgerRow])
        )
        return {row.message_id or "": row.outcome or "" for row in rows if row.transition == "finished"}


class SimulatedSystem:
    """Runs scripts. Each client's records are in partition 0, so ids of messages do not depend on settings."""

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings
        self.log = SimulatedLog()
        self._settings_of = SettingsOfClients(settings).of
        self._blobs: dict[str, bytes] = {}
        self._timers: dict[str, int] = {}
        self._offsets: Counter[int] = Counter()
        self._numbers = count()
        self._pending: list[tuple[int, int, str, LoggedEvent | Send]] = []
        self._devices: dict[str, ScriptedDevice] = {}
        self._connection_ids: Counter[str] = Counter()

    def run(self, scripts: Mapping[str, Iterable[Step]], devices: Mapping[str, ScriptedDevice], *, for_ms: int) -> SimulatedLog:
        """Runs the scripts of all clients for some time."""
        self._devices = dict(devices)
        steps = [(at_ms, client_id, step) for client_id, script in scripts.items() for at_ms, step in script]
        steps.sort(key=lambda step: step[:2])
        position, before = 0, LoggedBatch(START_MS, {})
        for at_ms in range(BATCH_MS, for_ms + 1, BATCH_MS):
            while position < len(steps) and steps[position][0] <= at_ms:
                moment, client_id, step = steps[position]
                self._step(moment, client_id, step)
                position += 1
            waiting: defaultdict[str, list[SourceRecord]] = defaultdict(list)
            while self._pending and self._pending[0][0] <= at_ms:
                moment, _, client_id, what = heapq.heappop(self._pending)
                if (record := self._append(moment, client_id, what)) is not None:
                    waiting[client_id].append(record)
            now_ms = START_MS + at_ms
            due = [client_id for client_id, timer_ms in self._timers.items() if timer_ms < now_ms and client_id not in waiting]
            for client_id in (*waiting, *due):
                self._activate(client_id, waiting.get(client_id, []), now_ms)
            ends = {"inflight.messages": {0: self._offsets[MESSAGES]}, "inflight.events": {0: self._offsets[EVENTS]}}
            batch = LoggedBatch(now_ms, ends)
            if (row := batch_row(batch, before)) is not None:
                self.log.batches.append(row)
            before = batch
        return self.log

    def _step(self, at_ms: int, client_id: str, step: Send | Connect | Disconnect) -> None:
        device = self._devices[client_id]
        match step:
            case Send():
                self._later(at_ms, client_id, step)
            case Connect():
                self._connection_ids[client_id] += 1
                device.online = connection_id = self._connection_ids[client_id] * 1_000
                version, expiry = (5, 3_600) if step.mqtt5 else (4, None)
                event = ClientConnected(
                    connection_id=connection_id,
                    commands_partition=0,
                    clean_start=step.clean,
                    protocol_version=version,
                    session_expiry_interval_s=expiry,
                )
                self._later(at_ms, client_id, event)
            case Disconnect():
                self._later(at_ms, client_id, ClientDisconnected(connection_id=device.online))
                device.online = 0

    def _later(self, at_ms: int, client_id: str, what: LoggedEvent | Send) -> None:
        heapq.heappush(self._pending, (at_ms, next(self._numbers), client_id, what))

    def _append(self, at_ms: int, client_id: str, what: LoggedEvent | Send) -> SourceRecord | None:
        source = MESSAGES if isinstance(what, Send) else EVENTS
        headers: list[Header] = []
        if isinstance(what, Send):
            value = b"p"
            headers = [Header(TOPIC, b"t"), Header(QOS, b"%d" % what.qos)]
            if what.ttl_ms is not None:
                headers.append(Header(EXPIRATION, b"%d" % what.ttl_ms))
            if what.message_id:
                headers.append(Header(MESSAGE_ID, what.message_id.encode()))
        else:
            match what:
                case PubAckReceived() | PubRecReceived() | PubCompReceived() if self._is_over(client_id, what.connection_id):
                    return None
            value = encode_event(what)
        record = LogRecord(
            source=source,
            client_id=client_id,
            partition=0,
            offset=self._offsets[source],
            timestamp_ms=START_MS + at_ms,
            value=value,
            headers=tuple(headers),
        )
        self._offsets[source] += 1
        self.log.records.append(record)
        return SourceRecord(source, 0, record.offset, record.timestamp_ms, record.headers, value)

    def _is_over(self, client_id: str, connection_id: int) -> bool:
        return self._devices[client_id].online != connection_id

    def _activate(self, client_id: str, records: list[SourceRecord], now_ms: int) -> None:
        settings = self._settings_of(client_id)
        blob = self._blobs.pop(client_id, None)
        if blob is None:
            session = Session(client_id=client_id, settings=settings)
        else:
            session = decode_session(blob, client_id=client_id, settings=settings)
        events = [
            event for record in sorted(records, key=record_order) for event in to_events(record, self.settings, now_ms=now_ms)
        ]
        commands = session.handle_all(events or [DeadlineReached()], now_ms=now_ms)  # type: ignore[arg-type]
        for record in to_records(commands, client_id=client_id, now_ms=now_ms, settings=self.settings):
            if record.topic == "inflight.ledger":
                self.log.ledger.append((client_id, now_ms, record.value or b""))
            elif record.topic == "inflight.commands":
                for command in decode_command_batch(record.value or b"").commands:
                    self._react(client_id, command, now_ms - START_MS)
        self._timers.pop(client_id, None)
        if not session.is_empty:
            self._blobs[client_id] = encode_session(session)
            if (deadline_ms := session.next_deadline_ms()) is not None:
                self._timers[client_id] = max(now_ms + 1, deadline_ms)

    def _react(self, client_id: str, command: object, at_ms: int) -> None:
        device = self._devices[client_id]
        match command:
            case SendPublish(packet_id=packet_id, connection_id=connection) if packet_id and connection == device.online:
                got = (command.message_id, connection)
                if got in device.got or not device.answers(command.message_id):
                    return
                device.got.add(got)  # TCP has brought it; a copy on the same connection is answered with it
                if command.qos == 1:
                    self._later(
                        at_ms + device.latency_ms, client_id, PubAckReceived(connection_id=connection, packet_id=packet_id)
                    )
                else:
                    received = PubRecReceived(connection_id=connection, packet_id=packet_id, pubrel_sent=True)
                    completed = PubCompReceived(connection_id=connection, packet_id=packet_id)
                    self._later(at_ms + device.latency_ms, client_id, received)
                    self._later(at_ms + 2 * device.latency_ms, client_id, completed)
            case SendPubRel(packet_id=packet_id, connection_id=connection) if connection == device.online:
                completed = PubCompReceived(connection_id=connection, packet_id=packet_id)
                self._later(at_ms + device.latency_ms, client_id, completed)
            case _:
                pass
