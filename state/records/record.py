"""What the formats of all topics share: headers, the version byte, the record that is to be written, and where one was read."""

from typing import Annotated, Final, TypeAlias

import msgspec

from state.errors import UnreadableRecord

WIRE_VERSION: Final = 1
VERSION_BYTE: Final = bytes([WIRE_VERSION])
"""The first byte of a value in msgpack. A writer may add fields with a default at the end of a struct without a new version."""

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


def without_version(data: bytes) -> memoryview:
    """What follows the version byte. Raises UnreadableRecord for a version that is not known here."""
    if data[:1] != VERSION_BYTE:
        found = data[0] if data else "nothing"
        hint = "written by another version of Inflight, or not by Inflight"
        raise UnreadableRecord(f"record version {found}, expected {WIRE_VERSION}: {hint}")
    return memoryview(data)[1:]


def position(topic: str, partition: int, offset: int) -> str:
    """`topic-partition-offset`: unique, and the same whenever the record is read, so ids are made of it."""
    return f"{topic}-{partition}-{offset}"


def accepted_at(timestamp_ms: int, *, now_ms: int) -> int:
    """When Kafka took a record, from which its time to live counts. timestamp_ms: as Kafka has it.

    Producers choose that time: one before 1970 or after `now_ms`, when this micro-batch began, is replaced by the latter.
    """
    return timestamp_ms if 0 < timestamp_ms <= now_ms else now_ms
