"""What the formats of all topics share: headers, the version byte, the record that is to be written, and where one was read.

Values in msgpack (events, commands, leases, routes) begin with a version byte. The rules for whoever changes one of them, or one
of the immutable values of state/model.py in them (docs/decisions/0024):

 1. A field with a default may be added at the end of a struct without a new version, if a reader that does not know it does no
    harm by that.
 2. Every other change makes a new version, also a new kind of event or command, a new value of an enumeration, and another
    meaning. Only the records that need the new version carry it; all others stay as they are.
 3. From version 2 on `NEWER_MARK` follows the version byte. By it a reader knows a record of a version that is newer than itself
    from one that is foreign or damaged.
 4. A reader reads all versions up to its own, and every version has a fixture (tests/unit/state/fixtures).
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from state.errors import NewerRecord, UnreadableRecord

WIRE_VERSION: Final = 1
"""Of all of them; events have another one besides (state/records/events.py)."""
VERSION_BYTE: Final = bytes([WIRE_VERSION])
NEWER_MARK: Final = b"\xc1inflight"
"""0xC1 begins nothing in msgpack."""

IS_TIME: Final = "is_time"
TimeMs: TypeAlias = Annotated[int, msgspec.Meta(extra={IS_TIME: True})]
"""Milliseconds since 1970; the mark tells the archive that 32 bits are not enough (streaming/archive/spark_types.py)."""


class Header(msgspec.Struct, frozen=True):
    """A Kafka header. value: None = null."""

    key: str
    value: bytes | None = None


class SinkRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record that is to be written. value: None = a tombstone. partition: None = by key."""

    topic: str
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...] | None = None
    partition: int | None = None


def without_version(data: bytes, newest: int = WIRE_VERSION) -> memoryview:
    """What follows the version byte. newest: the version up to which this Inflight reads such records. Raises NewerRecord for a
    newer version, UnreadableRecord for what is not of version 1."""
    if data[:1] == VERSION_BYTE:
        return memoryview(data)[1:]
    found = data[0] if data else "nothing"
    if data[1:].startswith(NEWER_MARK) and data[0] > newest:
        todo = "start the version that wrote it, or a newer one"
        raise NewerRecord(f"record version {found}, this Inflight reads {newest}: {todo}")
    raise UnreadableRecord(f"record version {found}, expected {WIRE_VERSION}: not written by Inflight, or damaged")


def position(topic: str, partition: int, offset: int) -> str:
    """`topic-partition-offset`: unique, and the same whenever the record is read, so ids are made of it."""
    return f"{topic}-{partition}-{offset}"


def accepted_at(timestamp_ms: int, *, now_ms: int) -> int:
    """When Kafka took a record, from which its time to live counts. timestamp_ms: as Kafka has it.

    Producers choose that time: one before 1970 or after `now_ms`, when this micro-batch began, is replaced by the latter.
    """
    return timestamp_ms if 0 < timestamp_ms <= now_ms else now_ms
