"""The records of `inflight.events`: what gateways, bridges and the engine tell a session.

Key: the client id. No headers. Value, by its version byte (state/records/record.py):

- version 1: one `LoggedEvent` (state/events.py) as msgpack;
- version 2: an array of `Acknowledgement`s, in their order. What a gateway has read of a device at once is in one record: on its
  way to the session a record costs more than what is in it.

A record with the key `WAKE_UP_KEY` has an empty value and is for no session.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.events import (
    Acknowledgement,
    FastSent,
    LoggedEvent,
    MessageReturned,
    PubAckReceived,
    PubCompReceived,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
)
from state.model import ClientId, Message, PacketId
from state.records.record import NEWER_MARK, VERSION_BYTE, SinkRecord, accepted_at, position, without_version

WAKE_UP_KEY: Final = b"\x00engine-start"
"""Of the record that only moves an offset (streaming/engine/lifecycle/wake_up.py). MQTT allows no U+0000 in a client id
[MQTT-1.5.4-2]."""

EVENTS_VERSION: Final = 2
EVENTS_VERSION_BYTE: Final = bytes([EVENTS_VERSION])
MAX_EVENTS_IN_RECORD: Final = 32
"""That a gateway writes: the engine limits its micro-batches by records."""

_PUBACK: Final = PubAckReceived.__struct_config__.tag
_PUBREC: Final = PubRecReceived.__struct_config__.tag
_PUBCOMP: Final = PubCompReceived.__struct_config__.tag
_PUBREL: Final = PubRelReceived.__struct_config__.tag
_SEVERAL: Final = EVENTS_VERSION_BYTE + NEWER_MARK
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[LoggedEvent]] = msgspec.msgpack.Decoder(LoggedEvent)
_decoder_of_several: Final[msgspec.msgpack.Decoder[tuple[Acknowledgement, ...]]] = msgspec.msgpack.Decoder(
    Annotated[tuple[Acknowledgement, ...], msgspec.Meta(min_length=1)]
)


def encode_event(event: LoggedEvent) -> bytes:
    """The value of a record with one event."""
    return VERSION_BYTE + _encoder.encode(event)


# What a gateway hears most often, as `encode_event` writes it, without making the event.


def encode_puback(connection_id: int, packet_id: PacketId, reason_code: int = 0, reason: str = "") -> bytes:
    """The value of a record with a PubAckReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBACK, connection_id, packet_id, reason_code, reason))


def encode_pubrec(
    connection_id: int, packet_id: PacketId, reason_code: int = 0, reason: str = "", *, pubrel_sent: bool = False
) -> bytes:
    """The value of a record with a PubRecReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBREC, connection_id, packet_id, reason_code, pubrel_sent, reason))


def encode_pubcomp(connection_id: int, packet_id: PacketId, reason_code: int = 0) -> bytes:
    """The value of a record with a PubCompReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBCOMP, connection_id, packet_id, reason_code))


def encode_pubrel(connection_id: int, packet_id: PacketId, reason_code: int = 0) -> bytes:
    """The value of a record with a PubRelReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBREL, connection_id, packet_id, reason_code))


def joined(values: Sequence[bytes]) -> bytes:
    """The value of one record in place of several. values: of each, with an `Acknowledgement`; at least one, in their order."""
    return _SEVERAL + _encoder.encode([msgspec.Raw(value[1:]) for value in values])


def decode_events(data: bytes) -> tuple[LoggedEvent, ...]:
    """At least one. Raises UnreadableRecord for anything but the output of `encode_event` or `joined` of this or an older
    version."""
    try:
        if data.startswith(_SEVERAL):
            return _decoder_of_several.decode(memoryview(data)[len(_SEVERAL) :])
        return (_decoder.decode(without_version(data, EVENTS_VERSION)),)
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
