"""Defines how a record of `inflight.messages` names its recipients, and how their messages are numbered by their source.

A record without a key has a header `recipient-CLIENT` for each client that it is for, at most `MAX_RECIPIENTS`. So one record
carries a payload once for many clients. A client is named once, and its id must be in the record's partition (by Kafka's default
partitioner), where its other messages are.

The value of the header is empty if a backend names the client: the message is then as any other. The matcher writes the version
byte, then a `Routing` (state/model.py) as msgpack.
"""

import zlib
from enum import IntEnum
from typing import Final

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.model import Routing
from state.records.record import VERSION_BYTE, without_version

RECIPIENT_PREFIX: Final = "recipient-"
MAX_RECIPIENTS: Final = 500
"""Recipients of one record."""
MAX_EXPANDED_BYTES: Final = 4 << 20
"""Greatest product of recipients and payload, because each recipient's session gets a copy. One recipient is always allowed."""

_KIND_BITS: Final = 3
_PARTITION_BITS: Final = 20

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Routing)


class SourceKind(IntEnum):
    """Says what a mark counts in a source (`Routing.mark`)."""

    UPLINK = 0
    """Offsets of `inflight.uplink`."""
    UPLINK_BATCH = 1
    """Times of micro-batches, whose publications the engine wrote to `inflight.uplink`. A mark has several messages."""
    PUBLICATIONS = 2
    """Offsets of `inflight.publications`."""
    PUBLICATIONS_BATCH = 3
    """Times of micro-batches, whose publications the engine wrote to `inflight.publications`. A mark has several messages."""
    RETAINED = 4
    """Offsets of `inflight.subscriptions`: a SUBSCRIBE that retained messages answer. A mark has several messages."""


def source_number(kind: SourceKind, partition: int, topic_id: str) -> int:
    """Returns a number for one partition of a source.

    Args:
        topic_id: Kafka's id of the topic. A topic that is made anew begins with offset 0 again, so it is another source.
    """
    return (zlib.crc32(topic_id.encode()) << _PARTITION_BITS | partition) << _KIND_BITS | kind


def has_one_message_for_each_mark(source: int) -> bool:
    """Returns True if a client gets at most one message of each mark, so that the highest mark says what it has had."""
    return source % (1 << _KIND_BITS) in (SourceKind.UPLINK, SourceKind.PUBLICATIONS)


def most_recipients(payload_bytes: int) -> int:
    """Returns how many recipients a record with such a payload may have."""
    return max(1, min(MAX_RECIPIENTS, MAX_EXPANDED_BYTES // max(1, payload_bytes)))


def encode_routing(routing: Routing) -> bytes:
    """Returns the value of a recipient's header."""
    return VERSION_BYTE + _encoder.encode(routing)


def decode_routing(data: bytes) -> Routing | None:
    """Returns the routing of a recipient; None if a backend named the client.

    Raises:
        UnreadableRecord: `encode_routing` of this or an older version did not write it.
    """
    if not data:
        return None
    encoded = without_version(data)
    try:
        return _decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a recipient of a routed message: {error}") from error
