"""The records of `inflight.events`: what gateways, bridges and the engine tell a session.

Key: the client id. No headers. Value: the version byte, then a `LoggedEvent` (state/events.py) as msgpack.
A record with the key `WAKE_UP_KEY` has an empty value and is for no session.
"""

from typing import Final

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.events import FastSent, LoggedEvent, MessageReturned, PublishReceived
from state.model import ClientId, Message
from state.records.record import VERSION_BYTE, SinkRecord, accepted_at, position, without_version

WAKE_UP_KEY: Final = b"\x00engine-start"
"""Of the record that only moves an offset (streaming/engine/lifecycle/wake_up.py). MQTT allows no U+0000 in a client id
[MQTT-1.5.4-2]."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[LoggedEvent]] = msgspec.msgpack.Decoder(LoggedEvent)


def encode_event(event: LoggedEvent) -> bytes:
    """The value."""
    return VERSION_BYTE + _encoder.encode(event)


def decode_event(data: bytes) -> LoggedEvent:
    """Raises UnreadableRecord for anything but the output of `encode_event` of this or an older version."""
    encoded = without_version(data)
    try:
        return _decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not an event of a gateway: {error}") from error


def completed(event: LoggedEvent, *, topic: str, partition: int, offset: int, accepted_ms: int) -> LoggedEvent:
    """The event with what only its record can say: the id of a publication, and when a returned message was accepted.

    What a gateway has sent was accepted before: its time is Kafka's of the message, if that can be.
    """
    match event:
        case MessageReturned():
            return msgspec.structs.replace(event, message=msgspec.structs.replace(event.message, accepted_ms=accepted_ms))
        case PublishReceived():
            return msgspec.structs.replace(event, publication_id=position(topic, partition, offset))
        case FastSent(message=message):
            taken_ms = accepted_at(message.accepted_ms, now_ms=accepted_ms)
            expires_at_ms = None if message.expiration_ms is None else taken_ms + message.expiration_ms
            message = msgspec.structs.replace(message, accepted_ms=taken_ms, expires_at_ms=expires_at_ms)
            return msgspec.structs.replace(event, message=message)
        case _:
            return event


def returned_record(topic: str, client_id: ClientId, message: Message) -> SinkRecord:
    """A dead letter that goes to the queue of a client. No backend can write events, so its history counts."""
    return SinkRecord(topic, client_id.encode(), encode_event(MessageReturned(message=message)))
