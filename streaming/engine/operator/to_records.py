"""Commands of a session → records of Kafka. One call for all commands of one client in one micro-batch.

| command | record |
|---|---|
| gateway commands | `commands`: a `CommandBatch` for each partition of Kafka that a gateway reads, in order |
| `ForwardPublication` | `uplink`: the payload; headers of state/records/uplink.py |
| `SendReceipt` | `receipts`: JSON; where the response topic names a client, `messages`, too (receipts.py) |
| `DeadLetter` to `topic:` | that topic: the payload, the message's headers and its history (death_headers.py) |
| `DeadLetter` to `table:` | the same in `dead_letters`, with the table's name as header `x-dead-letter-table` |
| `DeadLetter` to `client:` | `events`: `MessageReturned`, under that client's id |
| `SetThrottle`, `ClearThrottle` | `throttle`: JSON, and null |
| `RecordTransition` | `ledger`: JSON array of `LedgerRow`, one record for all rows |

Every record has the client id as its key, and one for another client that client's. The records are a function of the
arguments, so a micro-batch that Spark executes again writes the same ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, assert_never

import msgspec

from state.commands import (
    AcceptConnection,
    ClearThrottle,
    CloseConnection,
    Command,
    CommandBatch,
    DeadLetter,
    DropAwaitingRel,
    ForwardPublication,
    GatewayCommand,
    RecordTransition,
    SendPublish,
    SendPubRel,
    SendReceipt,
    SetThrottle,
    WithdrawPublish,
)
from state.dead_letters.dead_letter import fitted, with_death
from state.dead_letters.exchanges import DEAD_LETTERS
from state.events import MessageReturned
from state.model import DeathHistory, DestinationKind
from state.records.codec import encode_command_batch, encode_event
from state.records.dead_letters import DETAIL, TABLE, TRUNCATED
from state.records.throttle import encode_throttle
from state.records.uplink import uplink_headers
from streaming.engine.operator.cells import Header, SinkRecord
from streaming.engine.operator.death_headers import carried_headers, death_headers
from streaming.engine.operator.message_headers import format_message
from streaming.engine.operator.receipts import receipt_records
from streaming.engine.operator.settings import PipelineSettings

_COMMAND_OVERHEAD_BYTES: Final = 128
"""At least the encoded size of a command without its texts and payload."""

_json: Final = msgspec.json.Encoder()


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One element of the JSON array in `inflight.ledger`; a field with its default is left out.

    batch_ms: the time of the micro-batch. The others: state.commands.RecordTransition.
    """

    client_id: str
    batch_ms: int
    transition: str
    time_ms: int
    message_id: str | None = None
    packet_id: int | None = None
    attempt: int = 0
    outcome: str | None = None
    reason_code: int = 0
    detail: str = ""


def to_records(
    commands: Iterable[Command],
    *,
    client_id: str,
    now_ms: int,
    settings: PipelineSettings,
    extra_headers: tuple[Header, ...] = (),
) -> list[SinkRecord]:
    """The records for `commands`, those of one topic in the order of the commands.

    extra_headers: put on every dead letter; says where a record came from that belongs to no session.
    """
    topics, key = settings.topics, client_id.encode()
    records: list[SinkRecord] = []
    batches: dict[int, list[GatewayCommand]] = {}
    rows: list[LedgerRow] = []
    for command in commands:
        match command:
            case RecordTransition():
                rows.append(_ledger_row(command, client_id, now_ms))
            case SendPublish() | SendPubRel() | AcceptConnection() | CloseConnection() | DropAwaitingRel() | WithdrawPublish():
                batches.setdefault(command.partition, []).append(command)
            case SendReceipt():
                if settings.receipts:
                    records += receipt_records(command, settings)
            case ForwardPublication():
                records.append(_uplink_record(command, client_id, key, topics.uplink))
            case DeadLetter():
                records.append(_dead_letter(command, client_id=client_id, settings=settings, extra_headers=extra_headers))
            case SetThrottle():
                records.append(SinkRecord(topics.throttle, key, encode_throttle(command.reason, command.since_ms)))
            case ClearThrottle():
                records.append(SinkRecord(topics.throttle, key, None))
            case _:
                assert_never(command)
    for partition, batch in batches.items():
        if partition >= settings.commands_partitions:
            continue  # the topic was made anew with fewer partitions, so the connection is gone; its messages are sent again
        for part in _parts(batch, settings.max_record_bytes):
            value = encode_command_batch(CommandBatch(client_id=client_id, commands=part))
            records.append(SinkRecord(topics.commands, key, value, partition=partition))
    if rows and settings.ledger:
        records += _ledger_records(rows, key, settings)
    return records


def dead_letter_record(
    letter: DeadLetter, *, client_id: str, settings: PipelineSettings, extra_headers: tuple[Header, ...] = ()
) -> SinkRecord:
    """The record of `inflight.dead-letters`: sent to `inflight.messages` as it is, it would be the same message again.

    A payload over `max_payload_bytes`, and headers over `max_headers_bytes`, never were a message; they are cut, so that no
    broker refuses the dead letter. The whole record stays in its topic for as long as that keeps it.
    """
    message, topics = letter.message, settings.topics
    history = message.history
    if history is None:  # it never reached a session
        history = _history_of_refusal(letter, client_id)
    to = letter.destination
    kept = [*format_message(message), *carried_headers(message.headers)]
    if sum(len(header.key) + len(header.value or b"") for header in kept) > settings.max_headers_bytes:
        kept = [_shortened(header) for header in kept[:32]]
    headers = [*kept, *extra_headers, *death_headers(fitted(history, settings.max_headers_bytes // 2))]
    if letter.detail:
        headers.append(Header(DETAIL, letter.detail.encode()))
    if to is not None and to.kind is DestinationKind.TABLE:
        headers.append(Header(TABLE, to.name.encode()))
    payload = message.payload
    if len(payload) > settings.max_payload_bytes:
        headers.append(Header(TRUNCATED, b"%d" % len(payload)))
        payload = payload[: settings.max_payload_bytes]
    topic = to.name if to is not None and to.kind is DestinationKind.TOPIC else ""
    return SinkRecord(topic or topics.dead_letters, client_id.encode(), payload, headers=tuple(headers))


def _dead_letter(
    letter: DeadLetter, *, client_id: str, settings: PipelineSettings, extra_headers: tuple[Header, ...]
) -> SinkRecord:
    """To a client it goes as an event, which no backend can write; to everything else as a record with headers."""
    to, history = letter.destination, letter.message.history
    if to is None or to.kind is not DestinationKind.CLIENT or history is None:
        return dead_letter_record(letter, client_id=client_id, settings=settings, extra_headers=extra_headers)
    target = to.name.encode()
    if len(target) > settings.max_client_id_bytes:
        detail = f"{letter.detail}; the exchange routed it to a client whose id has {len(target)} bytes, which no client can have"
        lost = msgspec.structs.replace(letter, destination=None, detail=detail.removeprefix("; "))
        return dead_letter_record(lost, client_id=client_id, settings=settings, extra_headers=extra_headers)
    message = msgspec.structs.replace(letter.message, history=fitted(history, settings.max_headers_bytes // 2))
    return SinkRecord(settings.topics.events, target, encode_event(MessageReturned(message=message)))


def _history_of_refusal(letter: DeadLetter, client_id: str) -> DeathHistory:
    dead = with_death(letter.message, queue=client_id, reason=letter.reason, time_ms=letter.time_ms, exchange=DEAD_LETTERS)
    assert dead.history is not None
    return dead.history


def _shortened(header: Header) -> Header:
    return Header(header.key[:256], (header.value or b"")[:1_024])


def _uplink_record(command: ForwardPublication, client_id: str, key: bytes, topic: str) -> SinkRecord:
    headers = uplink_headers(
        client_id=client_id,
        topic=command.topic,
        qos=command.qos,
        retain=command.retain,
        properties=command.properties,
        inflight_id=command.publication_id,
        expiry_interval_s=command.expiry_interval_s,
    )
    return SinkRecord(topic, key, command.payload, headers=tuple(Header(name, value) for name, value in headers))


def _ledger_row(command: RecordTransition, client_id: str, now_ms: int) -> LedgerRow:
    return LedgerRow(
        client_id=client_id,
        batch_ms=now_ms,
        transition=command.transition.value,
        time_ms=command.time_ms,
        message_id=command.message_id,
        packet_id=command.packet_id,
        attempt=command.attempt,
        outcome=None if command.outcome is None else command.outcome.value,
        reason_code=command.reason_code,
        detail=command.detail,
    )


def _ledger_records(rows: list[LedgerRow], key: bytes, settings: PipelineSettings) -> Iterator[SinkRecord]:
    value = _json.encode(rows)
    if len(value) <= settings.max_record_bytes or len(rows) == 1:
        yield SinkRecord(settings.topics.ledger, key, value)
        return
    middle = len(rows) // 2
    yield from _ledger_records(rows[:middle], key, settings)
    yield from _ledger_records(rows[middle:], key, settings)


def _parts(commands: Sequence[GatewayCommand], limit_bytes: int) -> Iterator[tuple[GatewayCommand, ...]]:
    """Divides a batch so that no record is over `limit_bytes`; a single command never is (PipelineSettings)."""
    part: list[GatewayCommand] = []
    size = 0
    for command in commands:
        weight = _weight(command)
        if part and size + weight > limit_bytes:
            yield tuple(part)
            part, size = [], 0
        part.append(command)
        size += weight
    yield tuple(part)


def _ids(command: GatewayCommand) -> int:
    match command:
        case AcceptConnection():
            return len(command.awaiting_rel)
        case DropAwaitingRel() | WithdrawPublish():
            return len(command.packet_ids)
        case _:
            return 0


def _weight(command: GatewayCommand) -> int:
    """An upper estimate of the encoded size, in bytes."""
    if not isinstance(command, SendPublish):
        return _COMMAND_OVERHEAD_BYTES + 3 * _ids(command)
    properties = command.properties
    texts = [command.topic, command.message_id, properties.content_type or "", properties.response_topic or ""]
    texts += [text for pair in properties.user_properties for text in pair]
    return (
        _COMMAND_OVERHEAD_BYTES
        + len(command.payload)
        + len(properties.correlation_data or b"")
        + sum(4 * len(text) + 8 for text in texts)
    )
