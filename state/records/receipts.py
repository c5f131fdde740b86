"""The records of `inflight.receipts`: the last word of a session about a message. docs/receipt.schema.json is their JSON schema.

Key: the client id. No headers. Value: a `Receipt` as JSON. Where the message's response topic is `client:ID`, the same value goes
to that client as a message, too: a record of `inflight.messages` with the headers of state/records/messages.py.
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
from state.records.settings import Topics

RECIPIENT_PREFIX: Final = "client:"
"""A response topic that begins so names the client that wants the receipt."""

OWN_TOPIC: Final = f"{DestinationKind.TOPIC}:"
"""The destination that stands for the engine's own dead-letter topic until the record is written."""

_ID_BYTES: Final = 16


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


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(dict[str, object])
_LATER_FIELDS: Final = {"fast_path": False}
"""The fields that older versions have not written, with the value that this means."""


def decode_receipt(data: bytes) -> Receipt:
    """Raises UnreadableRecord for anything but a receipt of this or an older version."""
    try:
        return msgspec.convert(_LATER_FIELDS | _decoder.decode(data), Receipt)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a receipt: {error}") from error


def receipt_records(
    receipt: Receipt, response_topic: str | None, topics: Topics, *, max_client_id_bytes: int
) -> Iterator[SinkRecord]:
    """Yields a record, and a second one where the response topic names a client.

    response_topic: of the message, None = it has none. max_client_id_bytes: a longer client id gets no receipt.
    """
    if OWN_TOPIC in receipt.destinations:
        own = f"{OWN_TOPIC}{topics.dead_letters}"
        named = tuple(own if destination == OWN_TOPIC else destination for destination in receipt.destinations)
        receipt = msgspec.structs.replace(receipt, destinations=named)
    value = _encoder.encode(receipt)
    yield SinkRecord(topics.receipts, receipt.client_id.encode(), value)
    if response_topic is None or not response_topic.startswith(RECIPIENT_PREFIX):
        return
    recipient = response_topic.removeprefix(RECIPIENT_PREFIX).encode()
    if 0 < len(recipient) <= max_client_id_bytes:
        headers = [
            Header(TOPIC, response_topic.encode()),
            Header(QOS, b"1"),
            Header(MESSAGE_ID, _receipt_id(receipt)),
            Header(CONTENT_TYPE.header, b"application/json"),
        ]
        if receipt.correlation_data is not None:
            headers.append(Header(CORRELATION_DATA.header, receipt.correlation_data))
        yield SinkRecord(topics.messages, recipient, value, headers=tuple(headers))


def _receipt_id(receipt: Receipt) -> bytes:
    """Returns the same id when the micro-batch is executed again, so the recipient's session recognises the copy."""
    content = f"{receipt.message_id}\0{receipt.client_id}\0{receipt.deaths}\0{receipt.outcome_ms}"
    return b"receipt-" + hashlib.blake2b(content.encode(), digest_size=_ID_BYTES).hexdigest().encode()
