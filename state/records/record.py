"""Defines what all topics share: headers, the version byte, records to be written, and positions.

Values in msgpack (events, commands, leases, routes) begin with a version byte. Rules for a change of one of them, or of an
immutable value of state/model.py in them (docs/decisions/0024):

 1. A field with a default may be added at the end of a struct without a new version, if a reader that does not know it causes no
    harm.
 2. Every other change makes a new version: a new kind of event or command, a new value of an enumeration, another meaning. Only
    the records that need the new version carry it.
 3. From version 2 on `NEWER_MARK` follows the version byte. It lets a reader distinguish a record of a newer version from a
    foreign or damaged one.
 4. A reader reads all versions up to its own, and every version has a fixture (tests/unit/state/fixtures).
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from state.errors import NewerRecord, UnreadableRecord
from state.model import partition_and_generation

WIRE_VERSION: Final = 1
"""The version of all these values. Events have a second one (state/records/events.py)."""
VERSION_BYTE: Final = bytes([WIRE_VERSION])
NEWER_MARK: Final = b"\xc1inflight"
"""0xC1 begins no value in msgpack."""

HEADER_BYTES: Final = 32
"""The cost of a header beside its name and value, also of an empty one. Kafka writes two lengths (2 to 10 bytes). The blob of a
session has 4 to 11 bytes for it, Spark's cell about 20. HTTP/2 counts 32 (RFC 9113, 6.5.2)."""

IS_TIME: Final = "is_time"
TimeMs: TypeAlias = Annotated[int, msgspec.Meta(extra={IS_TIME: True})]
"""Milliseconds since 1970. The mark tells the archive that 32 bits are not enough (streaming/archive/spark_types.py)."""


class Header(msgspec.Struct, frozen=True):
    """A Kafka header.

    Attributes:
        value: None = null.
    """

    key: str
    value: bytes | None = None


class SinkRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record that is to be written.

    Attributes:
        value: None = a tombstone.
        partition: None = chosen by key.
    """

    topic: str
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...] | None = None
    partition: int | None = None


def header_bytes(name: str, value: bytes | None) -> int:
    """Returns what a header costs, which is what limits of headers count."""
    return HEADER_BYTES + len(name.encode()) + len(value or b"")


def without_version(data: bytes, newest: int = WIRE_VERSION) -> memoryview:
    """Returns the bytes after the version byte.

    Args:
        newest: The newest version of such records that this Inflight reads.

    Raises:
        NewerRecord: The version is newer.
        UnreadableRecord: The version is neither 1 nor newer.
    """
    if data[:1] == VERSION_BYTE:
        return memoryview(data)[1:]
    found = data[0] if data else "nothing"
    if data[1:].startswith(NEWER_MARK) and data[0] > newest:
        todo = "start the version that wrote it, or a newer one"
        raise NewerRecord(f"record version {found}, this Inflight reads {newest}: {todo}")
    raise UnreadableRecord(f"record version {found}, expected {WIRE_VERSION}: not written by Inflight, or damaged")


def position(topic: str, partition: int, offset: int) -> str:
    """Returns `topic-partition-offset`: unique and equal at each read of the record, so that ids can be made of it.

    After the topic was recreated, its generation follows: `topic-partition-offset-generation`.

    Args:
        partition: With the generation (`numbered_partition`).
    """
    number, generation = partition_and_generation(partition)
    return f"{topic}-{number}-{offset}-{generation}" if generation else f"{topic}-{number}-{offset}"


def accepted_at(timestamp_ms: int, *, now_ms: int) -> int:
    """Returns the time at which Kafka stored a record, from which its time to live counts.

    Producers choose the timestamp. One before 1970 or after `now_ms` is replaced by `now_ms`.

    Args:
        timestamp_ms: Timestamp of the record.
        now_ms: Start of this micro-batch.
    """
    return timestamp_ms if 0 < timestamp_ms <= now_ms else now_ms
