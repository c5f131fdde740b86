"""Many sessions and their topics without Spark and Kafka: what dead letters, which go from queue to queue, are tested in.

    engine = EngineModel(policies=(Policy(clients="lamp", dead_letter_exchange="retry"),), exchanges=(…,))
    engine.send("lamp", "on")
    engine.connect("lamp", answer=0x87)          # the device refuses everything for good
    assert engine.read("parking") == ["on"]

Everything goes the way it goes in the engine: Kafka headers → event → session → command → record, with the product's own
functions at each border; only the log is a list and the clock is a number. Every activation is executed twice, as Spark may do,
and both times must write the same records; the state is kept as its blob.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec

from state.commands import SendPublish
from state.dead_letters.exchanges import Exchange, Exchanges
from state.dead_letters.policy import Policy
from state.events import ClientConnected, ConnectionLost, DeadlineReached, LoggedEvent, PubAckReceived
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from state.records.record import Header, SinkRecord
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings
from streaming.engine.operator.cells import EVENTS, MESSAGES, SourceRecord
from streaming.engine.operator.pipeline import PipelineSettings, SessionProfile, SettingsOfClients
from streaming.engine.operator.to_events import to_events
from streaming.engine.operator.to_records import to_records

START_MS = 1_700_000_000_000
Answer = Callable[[SendPublish], int | None]


@dataclass
class Device:
    """answer: the reason code with which it acknowledges a message, None = not at all. sequence: of the last command applied."""

    connection_id: int
    answer: Answer
    received: list[SendPublish] = field(default_factory=list)
    sequence: int = 0


class EngineModel:
    """settings: of all sessions, or by client-id pattern in `profiles`. copies: how often each record is in its log.

    crash_at: (number of an activation from 1, records that it still writes): the engine dies there, before the state is stored.
    """

    def __init__(
        self,
        *,
        policies: Iterable[Policy] = (),
        exchanges: Iterable[Exchange] = (),
        profiles: dict[str, SessionSettings] | None = None,
        copies: int = 1,
        **settings: Any,
    ) -> None:
        self.settings = PipelineSettings(
            commands_partitions=1,
            session=SessionSettings(**settings),
            profiles=tuple(SessionProfile(pattern=pattern, session=session) for pattern, session in (profiles or {}).items()),
            policies=tuple(policies),
            exchanges=Exchanges(declared=tuple(exchanges)),
        )
        self.now_ms = START_MS
        self.logs: dict[str, list[SinkRecord]] = {}
        self.devices: dict[str, Device] = {}
        self.written: list[int] = []  # records, by activation
        self.crash_at: tuple[int, int] | None = None
        self._settings_of = SettingsOfClients(self.settings).of
        self._blobs: dict[str, bytes] = {}
        self._deadlines_ms: dict[str, int] = {}
        self._pending: dict[str, list[SourceRecord]] = {}
        self._offsets: Counter[int] = Counter()
        self._copies = copies

    def reconfigure(self, **changes: Any) -> Self:
        """Changes settings of the pipeline, from the next micro-batch on."""
        self.settings = replace(self.settings, **changes)
        self._settings_of = SettingsOfClients(self.settings).of
        for client_id, session in self._sessions():
            self._set_deadline(client_id, session.next_deadline_ms())
        return self

    # --- who writes into it -------------------------------------------------------------------------------------------------

    def send(self, client_id: str, text: str, *headers: tuple[str, bytes], topic: str | None = None) -> Self:
        """A backend's message; its topic is the client's id unless said otherwise, as in RabbitMQ's default exchange."""
        named = (("mqtt-topic", (topic or client_id).encode()), *headers)
        self._append(MESSAGES, client_id, text.encode(), tuple(Header(name, value) for name, value in named))
        return self.run()

    def connect(self, client_id: str, *, answer: int | Answer | None = 0, **fields: Any) -> Self:
        """A device that answers every message with this reason code (None: with nothing)."""
        connection_id = self.devices[client_id].connection_id + 1 if client_id in self.devices else 1
        answers = answer if callable(answer) else lambda _: answer
        self.devices[client_id] = Device(connection_id, answers)
        given = {"protocol_version": 5, "clean_start": False, "session_expiry_interval_s": 0xFFFF_FFFF, **fields}
        self.event(client_id, ClientConnected(connection_id=connection_id, commands_partition=0, **given))
        return self.run()

    def lose_connection(self, client_id: str) -> Self:
        device = self.devices[client_id]
        self.event(client_id, ConnectionLost(connection_id=device.connection_id))
        return self.run()

    def event(self, client_id: str, event: LoggedEvent) -> None:
        self._append(EVENTS, client_id, encode_event(event))

    def repeat(self, record: SinkRecord) -> Self:
        """Puts a record that the engine has written into its log once more, to be read now."""
        self._deliver(record)
        return self.run()

    # --- the engine ---------------------------------------------------------------------------------------------------------

    def run(self) -> Self:
        """Executes micro-batches until no session has anything to do at this time. Fails if that never happens."""
        for _ in range(3_000):
            due = [client_id for client_id, deadline_ms in self._deadlines_ms.items() if deadline_ms <= self.now_ms]
            clients = list(dict.fromkeys([*self._pending, *due]))
            if not clients:
                return self
            for client_id in clients:
                self._activate(client_id)
        raise AssertionError("the engine does not come to rest: messages go round without end")

    def after(self, seconds: float) -> Self:
        """Time passes, and the engine runs at every deadline on the way."""
        until_ms = self.now_ms + round(seconds * 1_000)
        while True:
            soonest = min(self._deadlines_ms.values(), default=until_ms + 1)
            if soonest > until_ms:
                self.now_ms = until_ms
                return self
            self.now_ms = max(self.now_ms, soonest)
            self.run()

    def _activate(self, client_id: str) -> None:
        records = self._pending.pop(client_id, [])
        records.sort(key=lambda record: (record.source, record.partition, record.offset))
        first, second = self._execute(client_id, records), self._execute(client_id, records)  # Spark may do that
        assert first == second, "a re-executed activation wrote other records or left another state"
        written, blob, deadline_ms = first
        self.written.append(len(written))
        if self.crash_at is not None and self.crash_at[0] == len(self.written):
            for record in written[: self.crash_at[1]]:  # these are in Kafka, the state is not: the same micro-batch runs again
                self._deliver(record)
        for record in written:
            for _ in range(self._copies):
                self._deliver(record)
        if blob is None:
            self._blobs.pop(client_id, None)
        else:
            self._blobs[client_id] = blob
        self._set_deadline(client_id, deadline_ms)

    def _execute(self, client_id: str, records: list[SourceRecord]) -> tuple[list[SinkRecord], bytes | None, int | None]:
        """Returns what the activation writes, the state it leaves (None = none), and the deadline of that."""
        settings, blob = self._settings_of(client_id), self._blobs.get(client_id)
        session = Session(client_id=client_id, settings=settings)
        if blob is not None:
            session = decode_session(blob, client_id=client_id, settings=settings)
        events = [event for record in records for event in to_events(record, self.settings, now_ms=self.now_ms)]
        commands = session.handle_all(events or [DeadlineReached()], now_ms=self.now_ms)
        written = to_records(commands, client_id=client_id, now_ms=self.now_ms, settings=self.settings)
        return (written, None, None) if session.is_empty else (written, encode_session(session), session.next_deadline_ms())

    def _deliver(self, record: SinkRecord) -> None:
        topics, client_id = self.settings.topics, record.key.decode()
        self.logs.setdefault(record.topic, []).append(record)
        if record.topic == topics.events:
            self._append(EVENTS, client_id, record.value)
        elif record.topic == topics.messages:
            self._append(MESSAGES, client_id, record.value, record.headers or ())
        elif record.topic == topics.commands:
            self._to_device(client_id, record.value)

    def _to_device(self, client_id: str, value: bytes) -> None:
        device = self.devices[client_id]
        for command in decode_command_batch(value).commands:
            if command.connection_id != device.connection_id or command.sequence <= device.sequence:
                continue  # as a gateway does
            device.sequence = command.sequence
            if not isinstance(command, SendPublish):
                continue
            device.received.append(command)
            reason_code = device.answer(command)
            if command.packet_id and reason_code is not None:
                self.event(
                    client_id,
                    PubAckReceived(connection_id=device.connection_id, packet_id=command.packet_id, reason_code=reason_code),
                )

    def _append(self, source: int, client_id: str, value: bytes, headers: tuple[Header, ...] = ()) -> None:
        self._offsets[source] += 1
        record = SourceRecord(
            source=source, partition=0, offset=self._offsets[source], timestamp_ms=self.now_ms, headers=headers, value=value
        )
        self._pending.setdefault(client_id, []).append(record)

    def _set_deadline(self, client_id: str, deadline_ms: int | None) -> None:
        if deadline_ms is None:
            self._deadlines_ms.pop(client_id, None)
        else:
            self._deadlines_ms[client_id] = deadline_ms

    def _sessions(self) -> list[tuple[str, Session]]:
        return [(c, decode_session(blob, client_id=c, settings=self._settings_of(c))) for c, blob in self._blobs.items()]

    # --- what can be seen from outside --------------------------------------------------------------------------------------

    def records(self, topic: str = "inflight.dead-letters") -> list[SinkRecord]:
        return self.logs.get(topic, [])

    def read(self, topic: str = "inflight.dead-letters") -> list[str]:
        """The payloads of a topic."""
        return [record.value.decode() for record in self.records(topic)]

    def headers(self, topic: str = "inflight.dead-letters", index: int = -1) -> dict[str, str]:
        """Returns the headers of one record."""
        return {header.key: (header.value or b"").decode() for header in self.records(topic)[index].headers or ()}

    def deaths(self, topic: str = "inflight.dead-letters", index: int = -1) -> list[dict[str, Any]]:
        """`x-death` of one record."""
        return msgspec.json.decode(self.headers(topic, index)["x-death"].encode(), type=list[dict[str, Any]])

    def counts(self, topic: str = "inflight.dead-letters") -> dict[tuple[str, str], int]:
        """(queue, reason) → count of the last record."""
        return {(death["queue"], death["reason"]): death["count"] for death in self.deaths(topic)}

    def received(self, client_id: str) -> list[str]:
        """Returns the payloads that the device of this client got, in order."""
        return [publish.payload.decode() for publish in self.devices[client_id].received]

    def queued(self, client_id: str) -> list[str]:
        for known, session in self._sessions():
            if known == client_id:
                return [delivery.message.payload.decode() for delivery in session.outbound.queue]
        return []

    @property
    def receipts(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(record.value) for record in self.records("inflight.receipts")]

    @property
    def ledger(self) -> list[dict[str, Any]]:
        return [row for record in self.records("inflight.ledger") for row in msgspec.json.decode(record.value)]
