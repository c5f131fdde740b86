"""Records on every topic, for everybody who reads it."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from sinks.bridge.envelope import UnreadableAcknowledgement, read_acknowledgement
from sinks.bridge.presence import read_client_event
from sinks.fast_path.route_table import RouteTable
from sinks.kafka.throttles import ThrottleTable
from sinks.mqtt.gateway import Gateway
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import (
    AcceptConnection,
    CloseConnection,
    CommandBatch,
    OfferPublish,
    OpenFastPath,
    SendPublish,
    SendPubRel,
    SetRoute,
    WithdrawPublish,
)
from state.errors import UnreadableRecord
from state.events import (
    ClientConnected,
    ConnectionLost,
    FastPathClosed,
    FastSent,
    PubAckReceived,
    PublishReceived,
    Subscribed,
)
from state.model import Message, Position, PublishProperties, QoS, Subscription
from state.records.commands import decode_command_batch, encode_command_batch
from state.records.dead_letters import parse_death_headers
from state.records.events import encode_event, joined
from state.records.leases import Lease, decode_lease, encode_lease
from state.records.record import Header
from state.records.routes import route_record
from state.records.throttle import encode_throttle
from streaming.config.settings import Settings
from streaming.engine.operator.cells import EVENTS, MESSAGES
from streaming.history.recent import steps_of
from streaming.history.sources.kafka_rows import RowsOfMessage
from trials.fuzz.mutations import mutated
from trials.fuzz.sessions import CLIENT_ID, FuzzedSession
from trials.fuzz.target import Target

_MESSAGE: Final = Message(
    message_id="m1",
    topic="a/b",
    payload=b"p",
    qos=QoS.EXACTLY_ONCE,
    accepted_ms=1_700_000_000_000,
    properties=PublishProperties(content_type="text", correlation_data=b"\x00", user_properties=(("k", "v"),)),
)
_DEATHS: Final = (
    b'[{"count":2,"exchange":"e","queue":"inflight.queue.c","reason":"expired","routing-keys":["k"],"time":1700000000000}]'
)
_HEADERS: Final = (
    ("mqtt-topic", b"a/b"),
    ("mqtt-qos", b"2"),
    ("mqtt-retain", b"true"),
    ("message-id", b"m1"),
    ("expiration", b"60000"),
    ("priority", b"255"),
    ("payload-format", b"1"),
    ("content-type", b"text/plain"),
    ("response-topic", b"answers/1"),
    ("correlation-data", b"\x00\xff"),
    ("user-b", b"1"),
    ("CC", b'["x"]'),
    ("BCC", b'["y","z"]'),
    ("x-death", _DEATHS),
    ("x-dead-letter-exchange", b"e"),
    ("x-last-death-time", b"1700000000000"),
    ("x-last-death-reason", b"expired"),
    ("foreign", b""),
)
_TEXTS: Final = tuple(value for _, value in _HEADERS)


def fuzzed_headers(dice: random.Random) -> tuple[tuple[str, bytes], ...]:
    """Draws headers that have a meaning, in any order, some of them changed."""
    chosen = dice.choices(_HEADERS, k=dice.randrange(8)) + [_HEADERS[0]] * dice.randrange(2)
    headers = []
    for name, value in chosen:
        if dice.random() < 0.4:
            value = mutated(dice, value, _TEXTS)
        if dice.random() < 0.1:
            name = mutated(dice, name.encode(), [b"user-", b"mqtt-"]).decode(errors="replace")
        headers.append((name, value))
    return tuple(headers)


class Messages(Target):
    """`inflight.messages`: a message or a dead letter, whatever a backend writes. The device takes them all."""

    name = "messages and their headers"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._session = FuzzedSession()
        self._connection_id = 0

    def feed(self, dice: random.Random) -> bool:
        session = self._session
        self._connection_id += 1
        clean = dice.random() < 0.5
        connected = ClientConnected(connection_id=self._connection_id, commands_partition=1, clean_start=clean)
        session.tell(EVENTS, encode_event(connected))
        headers = tuple(Header(name, value) for name, value in fuzzed_headers(dice))
        session.tell(MESSAGES, dice.choice((None, b"", b"p", bytes(300_000))) if dice.random() < 0.2 else b"p", headers)
        answer = session.activate(dice.choice((CLIENT_ID, CLIENT_ID, "")))
        topics = {record.topic for record in answer}
        for record in answer:
            if record.topic.endswith("commands"):
                decode_command_batch(record.value or b"")
            elif record.headers is not None:
                parse_death_headers(record.headers)
        return "inflight.dead-letters" not in topics


_SINGLE_EVENTS: Final = tuple(
    encode_event(event)
    for event in (
        ClientConnected(connection_id=1, commands_partition=1, clean_start=False),
        ConnectionLost(connection_id=1),
        PubAckReceived(connection_id=1, packet_id=1),
        PublishReceived(connection_id=1, packet_id=2, topic="a", payload=b"p"),
        Subscribed(connection_id=1, subscriptions=(Subscription(topic_filter="a/#", qos=QoS.AT_LEAST_ONCE),)),
        FastSent(
            connection_id=1,
            position=Position(0, 7),
            previous=-1,
            packet_id=40_000,
            qos=QoS.AT_LEAST_ONCE,
            message=_MESSAGE,
            sent_ms=1_700_000_000_000,
        ),
        FastPathClosed(connection_id=1),
    )
)
_ACKNOWLEDGEMENTS: Final = tuple(encode_event(PubAckReceived(connection_id=1, packet_id=packet_id)) for packet_id in (1, 2))
_EVENTS: Final = (*_SINGLE_EVENTS, joined(_ACKNOWLEDGEMENTS))


class Events(Target):
    """`inflight.events`, which only gateways may write: a broken one is a dead letter. Each client is one of its own, because the
    session believes an event that can be read."""

    name = "events"

    def feed(self, dice: random.Random) -> bool:
        session = FuzzedSession()
        session.tell(EVENTS, _EVENTS[0])
        for _ in range(dice.randint(1, 4)):
            event = dice.choice(_EVENTS)
            session.tell(EVENTS, event if dice.random() < 0.3 else mutated(dice, event, _EVENTS))
        answer = session.activate()
        session.activate()
        return not any(record.topic.endswith("dead-letters") for record in answer)


_PUBLISH: Final = SendPublish(
    connection_id=77, partition=0, sequence=2, packet_id=1, topic="a", payload=b"p", qos=QoS.AT_LEAST_ONCE
)
_COMMANDS: Final = tuple(
    encode_command_batch(CommandBatch(client_id=CLIENT_ID, commands=(command,)))
    for command in (
        AcceptConnection(connection_id=77, partition=0, sequence=1, send_quota=9, max_awaiting_rel=9),
        _PUBLISH,
        SendPubRel(connection_id=77, partition=0, sequence=3, packet_id=1),
        WithdrawPublish(connection_id=77, partition=0, sequence=4, packet_ids=(1,)),
        OpenFastPath(connection_id=77, partition=0, sequence=5, after=Position(0, 7)),
        CloseConnection(connection_id=77, partition=0, sequence=6, reason_code=0x8E),
        OfferPublish(connection_id=77, position=Position(0, 8), previous=7, timestamp_ms=1, headers=_HEADERS, payload=b"p"),
    )
)


class _Log:
    """Takes everything, and confirms nothing."""

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Any, done: Callable[..., None], **_: Any) -> None:
        pass


class Commands(Target):
    """`inflight.commands`, which only the engine and routers may write: what cannot be read is left out."""

    name = "commands"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._loop = asyncio.new_event_loop()

        async def gateway() -> Gateway:
            return Gateway(GatewaySettings(), _Log(), GatewayCounters())

        self._gateway = self._loop.run_until_complete(gateway())

    def feed(self, dice: random.Random) -> bool:
        command = dice.choice(_COMMANDS)
        unreadable = self._gateway.counters.unreadable_commands
        self._gateway.commands(0, [mutated(dice, command, _COMMANDS)])
        return self._gateway.counters.unreadable_commands == unreadable


class _Record(NamedTuple):
    """A record as kafka-python has it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0
    offset: int = 0
    timestamp: int = 1_700_000_000_000


_LEDGER: Final = (
    b'[{"client_id":"c","message_id":"m1","transition":"sent","time_ms":1700000000000,"batch_ms":1700000000000,"attempt":1,'
    b'"packet_id":1,"reason_code":0,"detail":"d"}]'
)
_RECEIPT: Final = (
    b'{"message_id":"m1","client_id":"c","outcome":"delivered","reason_code":0,"attempts":1,"accepted_ms":1700000000000,'
    b'"first_sent_ms":null,"outcome_ms":1700000000000,"detail":"","final":true,"destinations":[],"deaths":0,'
    b'"correlation_data":null,"fast_path":false}'
)
_ROUTE: Final = route_record("r", CLIENT_ID, SetRoute(connection_id=1, partition=1)).value or b""
_LEASE: Final = encode_lease(Lease("gateway", 30_000))
_THROTTLE: Final = encode_throttle("lag", 1_700_000_000_000)
_DEEP: Final = b"[" * 100_000


class OtherTopics(Target):
    """Routes, leases, throttle, ledger, receipts and dead letters, and what devices and brokers say to a bridge."""

    name = "other topics, bridge"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._routes = RouteTable()
        self._routes.follow(0)
        self._throttle = ThrottleTable()
        self._topics = Settings().topics

    def feed(self, dice: random.Random) -> bool:
        topics = self._topics
        match dice.randrange(7):
            case 0:
                self._routes.read(0, dice.choice((None, b"c", b"\xff")), self._changed(dice, _ROUTE))
                return self._routes.of(b"c") is not None
            case 1:
                try:
                    decode_lease(self._changed(dice, _LEASE))
                except UnreadableRecord:
                    return False
                return True
            case 2:
                self._throttle.apply(dice.choice((None, b"c", b"\xff")), self._changed(dice, _THROTTLE))
                return True
            case 3:
                record = _Record(topics.ledger, CLIENT_ID.encode(), self._changed(dice, _LEDGER))
                rows = RowsOfMessage("m1", topics, None)
                rows.add(record)
                return bool(rows.rows.ledger) | bool(list(steps_of([record], CLIENT_ID)))
            case 4:
                rows = RowsOfMessage("m1", topics, CLIENT_ID)
                rows.add(_Record(topics.receipts, CLIENT_ID.encode(), self._changed(dice, _RECEIPT)))
                return bool(rows.rows.receipts)
            case 5:
                rows = RowsOfMessage("m1", topics, None)
                headers = fuzzed_headers(dice)
                parse_death_headers([Header(name, value) for name, value in headers])
                rows.add(_Record(dice.choice((topics.dead_letters, topics.messages)), CLIENT_ID.encode(), b"p", headers))
                return bool(rows.rows.dead_letters or rows.rows.submitted)
            case _:
                read_client_event(self._changed(dice, b'{"clientid":"c","event":"client.connected"}'))
                try:
                    read_acknowledgement(self._changed(dice, b'{"id":"m1","reason_code":0}'), dice.choice((None, b"\xff", b"m")))
                except UnreadableAcknowledgement:
                    return False
                return True

    def _changed(self, dice: random.Random, value: bytes) -> bytes:
        return _DEEP if dice.random() < 0.01 else mutated(dice, value, (_ROUTE, _LEASE, _LEDGER, _RECEIPT, _THROTTLE))
