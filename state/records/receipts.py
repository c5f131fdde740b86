"""Defines the records of `inflight.receipts`: the outcome of a message (JSON schema: docs/reference/receipt.schema.json).

Key: the client id. No headers. Value: a `Receipt` as JSON. With `engine.receipts_batched` several receipts of a client in one
micro-batch are one record, whose value is a JSON array of them; a single one is written as without it. If the message's response
topic is `client:ID`, its receipt goes to that client as a message too, in a record of `inflight.messages`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from state.errors import UNDECODABLE, UnreadableRecord
from state.model import ClientId, DestinationKind, Outcome
from state.records.messages import MESSAGE_ID, QOS, TOPIC
from state.records.properties import CONTENT_TYPE, CORRELATION_DATA
from state.records.record import Header, SinkRecord, TimeMs
from state.records.settings import Topics

RECIPIENT_PREFIX: Final = "client:"
"""A response topic with this prefix names a client that gets the receipt."""

OWN_TOPIC: Final = f"{DestinationKind.TOPIC}:"
"""The destination that represents the engine's own dead-letter topic until the record is written."""

_ID_BYTES: Final = 16


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a message in a session. Times are milliseconds since 1970."""

    message_id: Annotated[str, Meta(description="set by the backend, else topic-partition-offset of the record")]
    client_id: Annotated[str, Meta(description="the client in whose queue the message was; the record's key too")]
    outcome: Annotated[Outcome, Meta(description="why the message left that queue")]
    reason_code: Annotated[int, Meta(description="MQTT 5 reason code of the client's acknowledgement; 0 = success or none")]
    attempts: Annotated[int, Meta(description="transmissions that the client could have received")]
    accepted_ms: Annotated[TimeMs, Meta(description="when Kafka stored the message")]
    first_sent_ms: Annotated[TimeMs | None, Meta(description="null = never sent")]
    outcome_ms: Annotated[
        TimeMs, Meta(description="when the client's answer or a fast send of QoS 0 was logged, else recorded_ms")
    ]
    recorded_ms: Annotated[TimeMs, Meta(description="when the session recorded the outcome: time of the engine's micro-batch")]
    detail: Annotated[str, Meta(description="for people; empty = nothing to add")]
    final: Annotated[
        bool, Meta(description="false while a copy is in the queue of another client, whose session will send a receipt too")
    ]
    destinations: Annotated[tuple[str, ...], Meta(description="where its dead letters went: topic:NAME, client:ID, table:NAME")]
    deaths: Annotated[int, Meta(description="number of deaths of the message so far, in all queues")]
    correlation_data: Annotated[bytes | None, Meta(description="of the message, base64; null = it had none")]
    fast_path: Annotated[bool, Meta(description="true if a gateway sent it before the session had read it")]
    traceparent: Annotated[str | None, Meta(description="W3C Trace Context of the message; null = it had none")]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(dict[str, object] | list[dict[str, object]])
_LATER_FIELDS: Final = {"fast_path": False, "traceparent": None}
"""Fields that older versions do not write, with their values there. Nor do they write `recorded_ms`: there it is `outcome_ms`."""


def decode_receipts(data: bytes) -> tuple[Receipt, ...]:
    """Returns the receipts of a record, at least one.

    Raises:
        UnreadableRecord: They are no receipts of this or an older version.
    """
    try:
        decoded = _decoder.decode(data)
        found = decoded if isinstance(decoded, list) else [decoded]
        receipts = tuple(msgspec.convert(_LATER_FIELDS | {"recorded_ms": one.get("outcome_ms")} | one, Receipt) for one in found)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a receipt: {error}") from error
    if not receipts:
        raise UnreadableRecord("not a receipt: an empty array")
    return receipts


def receipt_records(
    receipts: Iterable[tuple[Receipt, str | None]],
    topics: Topics,
    *,
    max_client_id_bytes: int,
    max_record_bytes: int | None = None,
) -> Iterator[SinkRecord]:
    """Yields the records of receipts, and for each one whose response topic names a client another record.

    Args:
        receipts: Each with the response topic of its message; None = it has none.
        max_client_id_bytes: A longer client id gets no receipt.
        max_record_bytes: The largest record of several receipts; None = each receipt has a record of its own.
    """
    values: dict[ClientId, list[bytes]] = {}
    for receipt, response_topic in receipts:
        named = _with_topic(receipt, topics)
        value = _encoder.encode(named)
        if max_record_bytes is None:
            yield SinkRecord(topics.receipts, receipt.client_id.encode(), value)
        else:
            values.setdefault(receipt.client_id, []).append(value)
        if response_topic is not None and response_topic.startswith(RECIPIENT_PREFIX):
            recipient = response_topic.removeprefix(RECIPIENT_PREFIX).encode()
            if 0 < len(recipient) <= max_client_id_bytes:
                yield _message_record(named, value, response_topic, recipient, topics)
    for client_id, of_client in values.items():
        for value in _arrays(of_client, max_record_bytes or 0):
            yield SinkRecord(topics.receipts, client_id.encode(), value)


def _with_topic(receipt: Receipt, topics: Topics) -> Receipt:
    """Returns the receipt with the name of the engine's own dead-letter topic."""
    if OWN_TOPIC not in receipt.destinations:
        return receipt
    own = f"{OWN_TOPIC}{topics.dead_letters}"
    named = tuple(own if destination == OWN_TOPIC else destination for destination in receipt.destinations)
    return msgspec.structs.replace(receipt, destinations=named)


def _arrays(values: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yields arrays of at most `max_bytes`. A single receipt is no array, and is never split."""
    if len(values) == 1:
        yield values[0]
    elif sum(map(len, values)) + len(values) + 1 <= max_bytes:
        yield b"[" + b",".join(values) + b"]"
    else:
        middle = len(values) // 2
        yield from _arrays(values[:middle], max_bytes)
        yield from _arrays(values[middle:], max_bytes)


def _message_record(receipt: Receipt, value: bytes, response_topic: str, recipient: bytes, topics: Topics) -> SinkRecord:
    headers = [
        Header(TOPIC, response_topic.encode()),
        Header(QOS, b"1"),
        Header(MESSAGE_ID, _receipt_id(receipt)),
        Header(CONTENT_TYPE.header, b"application/json"),
    ]
    if receipt.correlation_data is not None:
        headers.append(Header(CORRELATION_DATA.header, receipt.correlation_data))
    return SinkRecord(topics.messages, recipient, value, headers=tuple(headers))


def _receipt_id(receipt: Receipt) -> bytes:
    """Returns an id that is equal when the micro-batch is executed again, so that the recipient's session recognises the copy."""
    content = f"{receipt.message_id}\0{receipt.client_id}\0{receipt.deaths}\0{receipt.recorded_ms}"
    return b"receipt-" + hashlib.blake2b(content.encode(), digest_size=_ID_BYTES).hexdigest().encode()
