"""The records of `inflight.receipts`: the last word of a session about a message. docs/receipt.schema.json is their JSON schema.

Key: the client id. No headers. Value: a `Receipt` as JSON. Where the message's response topic is `client:ID`, the same value goes
to that client as a message, too: a record of `inflight.messages` with the headers of state/records/messages.py.
"""

import hashlib
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from state.commands import SendReceipt
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import DestinationKind, Outcome
from state.records.messages import CONTENT_TYPE, CORRELATION_DATA, MESSAGE_ID, QOS, TOPIC
from state.records.record import Header, SinkRecord, TimeMs
from state.records.settings import Topics

RECIPIENT_PREFIX: Final = "client:"
"""A response topic that begins so names the client that wants the receipt."""

_ID_BYTES: Final = 16
_encoder: Final = msgspec.json.Encoder()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The last word of a session about a message. Times are milliseconds since 1970."""

    message_id: Annotated[str, Meta(description="the backend's, or topic-partition-offset of its record")]
    client_id: Annotated[str, Meta(description="in whose queue the message was; the record's key, too")]
    outcome: Annotated[Outcome, Meta(description="why the message left that queue")]
    reason_code: Annotated[int, Meta(description="MQTT 5 reason code of the client's acknowledgement; 0 = success or none")]
    attempts: Annotated[int, Meta(description="transmissions that the client could have received")]
    accepted_ms: Annotated[TimeMs, Meta(description="when Kafka took the message")]
    first_sent_ms: Annotated[TimeMs | None, Meta(description="null = never sent")]
    outcome_ms: Annotated[TimeMs, Meta(description="when the outcome was known")]
    detail: Annotated[str, Meta(description="for people; empty = nothing to add")]
    final: Annotated[
        bool, Meta(description="false while a copy waits in the queue of another client, whose session will give a receipt, too")
    ]
    destinations: Annotated[tuple[str, ...], Meta(description="where its dead letters went: topic:NAME, client:ID, table:NAME")]
    deaths: Annotated[int, Meta(description="how often the message has died by now, in all queues")]
    correlation_data: Annotated[bytes | None, Meta(description="of the message, base64; null = it had none")]
    fast_path: Annotated[bool, Meta(description="whether a gateway sent it first, before the session had read it")]


class _WrittenReceipt(Receipt, frozen=True, kw_only=True):
    """As every version has written it. A field that came later has a default."""

    fast_path: bool = False


_decoder: Final = msgspec.json.Decoder(_WrittenReceipt)


def decode_receipt(data: bytes) -> Receipt:
    """Raises UnreadableRecord for anything but a receipt of this or an older version."""
    try:
        return _decoder.decode(data)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a receipt: {error}") from error


def receipt_records(command: SendReceipt, topics: Topics, *, max_client_id_bytes: int) -> Iterator[SinkRecord]:
    """One record, and a second one where the response topic names a client, whose id has at most `max_client_id_bytes`."""
    value = _encoder.encode(_receipt(command, topics))
    yield SinkRecord(topics.receipts, command.client_id.encode(), value)
    response_topic = command.response_topic
    if response_topic is None or not response_topic.startswith(RECIPIENT_PREFIX):
        return
    recipient = response_topic.removeprefix(RECIPIENT_PREFIX).encode()
    if 0 < len(recipient) <= max_client_id_bytes:
        headers = [
            Header(TOPIC, response_topic.encode()),
            Header(QOS, b"1"),
            Header(MESSAGE_ID, _receipt_id(command)),
            Header(CONTENT_TYPE, b"application/json"),
        ]
        if command.correlation_data is not None:
            headers.append(Header(CORRELATION_DATA, command.correlation_data))
        yield SinkRecord(topics.messages, recipient, value, headers=tuple(headers))


def _receipt(command: SendReceipt, topics: Topics) -> Receipt:
    own_topic = f"{DestinationKind.TOPIC}:{topics.dead_letters}"
    return Receipt(
        message_id=command.message_id,
        client_id=command.client_id,
        outcome=command.outcome,
        reason_code=command.reason_code,
        attempts=command.attempts,
        accepted_ms=command.accepted_ms,
        first_sent_ms=command.first_sent_ms,
        outcome_ms=command.outcome_ms,
        detail=command.detail,
        final=all(destination.kind is not DestinationKind.CLIENT for destination in command.destinations),
        destinations=tuple(str(destination) if destination.name else own_topic for destination in command.destinations),
        deaths=command.deaths,
        correlation_data=command.correlation_data,
        fast_path=command.fast_path,
    )


def _receipt_id(command: SendReceipt) -> bytes:
    """The same when the micro-batch is executed again, so that the recipient's session recognises the copy."""
    told = f"{command.message_id}\0{command.client_id}\0{command.deaths}\0{command.outcome_ms}"
    return b"receipt-" + hashlib.blake2b(told.encode(), digest_size=_ID_BYTES).hexdigest().encode()
