"""Defines the records of `inflight.receipts`: the outcome of a message (JSON schema: docs/reference/receipt.schema.json).

Key: the client id. No headers. Value: a `Receipt` as JSON. If the message's response topic is `client:ID`, its receipt goes to
that client as a message too, in a record of `inflight.messages`.
"""

import hashlib
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from state.errors import UNDECODABLE, UnreadableRecord
from state.model import DestinationKind, Outcome
from state.records.messages import MESSAGE_ID, QOS, TOPIC
from state.records.properties import CONTENT_TYPE, CORRELATION_DATA
from state.records.record import Header, SinkRecord, TimeMs
from state.settings import Topics

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
    destinations: Annotated[tuple[str, ...], Meta(description="where its dead letters went: topic:NAME, client:ID")]
    deaths: Annotated[int, Meta(description="number of deaths of the message so far, in all queues")]
    correlation_data: Annotated[bytes | None, Meta(description="of the message, base64; null = it had none")]
    fast_path: Annotated[bool, Meta(description="true if a gateway sent it before the session had read it")]
    traceparent: Annotated[str | None, Meta(description="W3C Trace Context of the message; null = it had none")]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(dict[str, object])
_LATER_FIELDS: Final = {"fast_path": False, "traceparent": None}
"""Fields that older versions do not write, with their values there. Nor do they write `recorded_ms`: there it is `outcome_ms`."""


def decode_receipt(data: bytes) -> Receipt:
    """Returns the receipt of a record.

    Raises:
        UnreadableRecord: It is no receipt of this or an older version.
    """
    try:
        decoded = _decoder.decode(data)
        return msgspec.convert(_LATER_FIELDS | {"recorded_ms": decoded.get("outcome_ms")} | decoded, Receipt)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a receipt: {error}") from error


def receipt_records(
    receipt: Receipt, response_topic: str | None, topics: Topics, *, max_client_id_bytes: int
) -> Iterator[SinkRecord]:
    """Yields the record of a receipt, and another one if the response topic names a client.

    Args:
        response_topic: Of the message; None = it has none.
        max_client_id_bytes: A longer client id gets no receipt.
    """
    named = _with_topic(receipt, topics)
    value = _encoder.encode(named)
    yield SinkRecord(topics.receipts, receipt.client_id.encode(), value)
    if response_topic is not None and response_topic.startswith(RECIPIENT_PREFIX):
        recipient = response_topic.removeprefix(RECIPIENT_PREFIX).encode()
        if 0 < len(recipient) <= max_client_id_bytes:
            yield _message_record(named, value, response_topic, recipient, topics)


def _with_topic(receipt: Receipt, topics: Topics) -> Receipt:
    """Returns the receipt with the name of the engine's own dead-letter topic."""
    if OWN_TOPIC not in receipt.destinations:
        return receipt
    own = f"{OWN_TOPIC}{topics.dead_letters}"
    named = tuple(own if destination == OWN_TOPIC else destination for destination in receipt.destinations)
    return msgspec.structs.replace(receipt, destinations=named)


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
