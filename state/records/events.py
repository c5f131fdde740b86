"""Defines the records of `inflight.events`: events that gateways, bridges and the engine send to a session.

Key: the client id. No headers. Value, by its version byte (state/records/record.py):

- version 1: one `LoggedEvent` (state/events.py) as msgpack;
- version 2: an array of `Acknowledgement`s, in their order. Acknowledgements that a gateway has read at once from a device share
  a record, because a record costs more on its way to the session than its content;
- version 3: one event as msgpack that an older engine would misread: `DeadlineReached`, by which the engine calls a session, or a
  `ClientConnected` with `expired`, which it would take for a wrong claim;
- version 4: an array of FastSent and `Acknowledgement`s, in their order: the gateway has accepted the messages at once;
- version 5: a time in milliseconds since 1970, eight bytes, and then a value of another version whose acknowledgements came at
  that time. One for which nobody waits is appended later than it came.

A record with the key `WAKE_UP_KEY` has an empty value and is for no session.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.events import (
    Acknowledgement,
    ClientConnected,
    DeadlineReached,
    FastSent,
    LoggedEvent,
    MessageReturned,
    PubAckReceived,
    PubCompReceived,
    PublishAccepted,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
)
from state.model import ClientId, Message, PacketId
from state.records.record import NEWER_MARK, VERSION_BYTE, SinkRecord, accepted_at, position, without_version

WAKE_UP_KEY: Final = b"\x00engine-start"
"""Key of the record that only advances an offset (streaming/engine/kafka_access.py). MQTT forbids U+0000 in a client id
[MQTT-1.5.4-2]."""

EVENTS_VERSION: Final = 5
EVENTS_VERSION_BYTE: Final = bytes([EVENTS_VERSION])
MAX_EVENTS_IN_RECORD: Final = 32
"""Limit for gateways, because the engine limits its micro-batches by records."""

_PUBACK: Final = PubAckReceived.__struct_config__.tag
_PUBREC: Final = PubRecReceived.__struct_config__.tag
_PUBCOMP: Final = PubCompReceived.__struct_config__.tag
_PUBREL: Final = PubRelReceived.__struct_config__.tag
_SEVERAL: Final = b"\x02" + NEWER_MARK
_THIRD: Final = b"\x03" + NEWER_MARK
_FOURTH: Final = b"\x04" + NEWER_MARK
_FIFTH: Final = b"\x05" + NEWER_MARK
_TIME_BYTES: Final = 8
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[LoggedEvent]] = msgspec.msgpack.Decoder(LoggedEvent)
_decoder_of_several: Final[msgspec.msgpack.Decoder[tuple[Acknowledgement, ...]]] = msgspec.msgpack.Decoder(
    Annotated[tuple[Acknowledgement, ...], msgspec.Meta(min_length=1)]
)
_decoder_of_sent: Final[msgspec.msgpack.Decoder[tuple[FastSent | Acknowledgement, ...]]] = msgspec.msgpack.Decoder(
    Annotated[tuple[FastSent | Acknowledgement, ...], msgspec.Meta(min_length=1)]
)


def encode_event(event: LoggedEvent) -> bytes:
    """Returns the value of a record with one event."""
    if isinstance(event, DeadlineReached) or (isinstance(event, ClientConnected) and event.expired is not None):
        return _THIRD + _encoder.encode(event)
    return VERSION_BYTE + _encoder.encode(event)


# The most frequent events are encoded without making the event. The bytes are those of `encode_event`.


def encode_puback(connection_id: int, packet_id: PacketId, reason_code: int = 0, reason: str = "") -> bytes:
    """Returns the value of a record with a PubAckReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBACK, connection_id, packet_id, reason_code, reason, 0))


def encode_pubrec(
    connection_id: int, packet_id: PacketId, reason_code: int = 0, reason: str = "", *, pubrel_sent: bool = False
) -> bytes:
    """Returns the value of a record with a PubRecReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBREC, connection_id, packet_id, reason_code, pubrel_sent, reason, 0))


def encode_pubcomp(connection_id: int, packet_id: PacketId, reason_code: int = 0) -> bytes:
    """Returns the value of a record with a PubCompReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBCOMP, connection_id, packet_id, reason_code, 0))


def encode_pubrel(connection_id: int, packet_id: PacketId, reason_code: int = 0) -> bytes:
    """Returns the value of a record with a PubRelReceived."""
    return VERSION_BYTE + _encoder.encode((_PUBREL, connection_id, packet_id, reason_code, 0))


def joined(values: Sequence[bytes], *, has_fast_sent: bool = False) -> bytes:
    """Returns the value of one record that replaces several.

    Args:
        values: Values with one `Acknowledgement` or FastSent each; at least one, in their order.
        has_fast_sent: True if one has a FastSent.
    """
    return (_FOURTH if has_fast_sent else _SEVERAL) + _encoder.encode([msgspec.Raw(value[1:]) for value in values])


def happened_at(value: bytes, at_ms: int) -> bytes:
    """Returns the value of a record whose acknowledgements came before it is appended.

    Args:
        value: Of `encode_event` or `joined`.
        at_ms: Milliseconds since 1970, by the clock of the brokers.
    """
    return _FIFTH + at_ms.to_bytes(_TIME_BYTES) + value


def decode_events(data: bytes) -> tuple[LoggedEvent, ...]:
    """Returns the events of a record, at least one.

    Raises:
        UnreadableRecord: `encode_event`, `joined` or `happened_at` of this or an older version did not write it.
    """
    if not data.startswith(_FIFTH):
        return _decoded(data)
    begin = len(_FIFTH) + _TIME_BYTES
    at_ms = int.from_bytes(data[len(_FIFTH) : begin])
    return tuple(
        msgspec.structs.replace(event, logged_ms=at_ms) if isinstance(event, Acknowledgement) else event
        for event in _decoded(data[begin:])
    )


def _decoded(data: bytes) -> tuple[LoggedEvent, ...]:
    try:
        if data.startswith(_SEVERAL):
            return _decoder_of_several.decode(memoryview(data)[len(_SEVERAL) :])
        if data.startswith(_THIRD):
            return (_decoder.decode(memoryview(data)[len(_THIRD) :]),)
        if data.startswith(_FOURTH):
            return _decoder_of_sent.decode(memoryview(data)[len(_FOURTH) :])
        return (_decoder.decode(without_version(data, EVENTS_VERSION)),)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not an event of a gateway: {error}") from error


def completed(
    event: LoggedEvent, *, topic: str, partition: int, offset: int, accepted_ms: int, timestamp_ms: int = 0
) -> LoggedEvent:
    """Returns the event with what follows from its record: the id of a publication, the acceptance time of a message, and the
    times of a CONNECT, an acknowledgement, a fast send, a claim and an accepted publication.

    An acknowledgement that has its own time keeps it, if it is not later than the record. A message of FastSent was accepted
    earlier: its time is Kafka's timestamp of the message, if that is valid.

    Args:
        accepted_ms: `accepted_at` of the record.
        timestamp_ms: Its timestamp, which may be later than the time of the micro-batch.
    """
    match event:
        case FastSent(message=message):
            taken_ms = accepted_at(message.accepted_ms, now_ms=accepted_ms)
            expires_at_ms = None if message.expiration_ms is None else taken_ms + message.expiration_ms
            if (message.accepted_ms, message.expires_at_ms) != (taken_ms, expires_at_ms):
                message = msgspec.structs.replace(message, accepted_ms=taken_ms, expires_at_ms=expires_at_ms)
            return msgspec.structs.replace(event, message=message, logged_ms=accepted_ms)
        case PubAckReceived() | PubRecReceived() | PubCompReceived() | PubRelReceived():
            if 0 < event.logged_ms <= accepted_ms:
                return event
            return msgspec.structs.replace(event, logged_ms=accepted_ms)
        case ClientConnected(expired=expired):
            if expired is not None:
                expired = msgspec.structs.replace(expired, claimed_ms=timestamp_ms)
            return msgspec.structs.replace(event, expired=expired, logged_ms=accepted_ms)
        case MessageReturned():
            return msgspec.structs.replace(event, message=msgspec.structs.replace(event.message, accepted_ms=accepted_ms))
        case PublishAccepted(since_ms=0):
            return msgspec.structs.replace(event, since_ms=accepted_ms)
        case PublishReceived():
            return msgspec.structs.replace(event, publication_id=position(topic, partition, offset))
        case _:
            return event


def returned_record(topic: str, client_id: ClientId, message: Message) -> SinkRecord:
    """Returns the record of a dead letter that goes to a client's queue. No backend may write events, so its history is
    trusted."""
    return SinkRecord(topic, client_id.encode(), encode_event(MessageReturned(message=message)))
