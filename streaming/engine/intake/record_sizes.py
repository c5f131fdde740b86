"""Finds the records in a batch of Kafka's log, with their sizes and timestamps, and without holding their content.

A batch of 300 KB may hold a record of 300 MB. So a compressed batch is read as a stream, piece by piece. Only the first bytes of
a record are decoded; the rest is passed over. Kafka's consumers hold whole records, librdkafka and kafka-python whole batches.
"""

import io
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from kafka.codec import snappy_decode

MOST_KEY_BYTES: Final = 1_025
"""The bytes of a key that are read: enough to see that it is no client id."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""A batch's header, magic 2: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and greatest
timestamp, producer id and epoch, sequence, number of records."""
_BEFORE_LENGTH: Final = 12
_MAGIC: Final = 2
_CODEC: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_CONTROL: Final = 0x20
_SNAPPY: Final = 2
_STREAMED: Final = {1: "gzip", 3: "lz4", 4: "zstd"}
_PIECE_BYTES: Final = 1 << 18
_RECORD_BYTES: Final = 64
"""Counted for a record beside what a batch holds of it: its place and time, which Spark's row has."""


class RecordFacts(NamedTuple):
    """A record of the log.

    Attributes:
        size_bytes: The size after decompression. A record without a key may name a recipient in each header, and each gets a
            copy of the value, so these copies count.
        key: The first `MOST_KEY_BYTES` of its key.
    """

    offset: int
    timestamp_ms: int
    size_bytes: int
    key: bytes | None


class BatchFacts(NamedTuple):
    """A batch of the log.

    Attributes:
        end: The offset after it.
        has_records: False for a control batch, and for the formats before Kafka 0.11.
        raw: The batch as stored.
    """

    end: int
    has_records: bool
    raw: memoryview

    @property
    def records(self) -> Iterator[RecordFacts]:
        return _records(self.raw) if self.has_records else iter(())

    @property
    def size_bytes(self) -> int:
        """Returns the size of its records after decompression, which takes time for a compressed batch."""
        if not self.has_records:
            return 0
        _, _, _, _, _, attributes, *_, count = _HEADER.unpack_from(self.raw)
        payload, codec = self.raw[_HEADER.size :], attributes & _CODEC
        content = _decompressed(payload, codec) if codec else None
        size: int = len(payload) if content is None else sum(map(len, iter(lambda: content.read(_PIECE_BYTES), b"")))
        return size + int(count) * _RECORD_BYTES


def batches(data: bytes) -> Iterator[BatchFacts]:
    """Yields the whole batches in the answer to a fetch. Raises ValueError, EOFError or OSError for a damaged one."""
    start = 0
    while len(data) - start >= _HEADER.size:
        base, length, _, magic, _, attributes, last_delta, *_ = _HEADER.unpack_from(data, start)
        end = start + _BEFORE_LENGTH + length
        if end > len(data):
            return  # the broker has cut it; the next fetch begins with it
        has_records = magic == _MAGIC and not attributes & _CONTROL
        yield BatchFacts(base + last_delta + 1, has_records, memoryview(data)[start:end])
        start = end


def _records(batch: memoryview) -> Iterator[RecordFacts]:
    base, _, _, _, _, attributes, _, first_ms, greatest_ms, _, _, _, count = _HEADER.unpack_from(batch)
    content = _Content(_decompressed(batch[_HEADER.size :], attributes & _CODEC))
    end = 0
    for _ in range(count):
        content.skip(end - content.position)  # only when the next record is asked for: this one may be of hundreds of MB
        size = content.varint()
        end = content.position + size
        content.skip(1)  # attributes
        timestamp_ms = first_ms + content.varint()
        offset = base + content.varint()
        key_bytes = content.varint()
        key = content.take(min(key_bytes, MOST_KEY_BYTES)) if key_bytes >= 0 else None
        if key is None and (value_bytes := content.varint()) > 0:
            content.skip(value_bytes)
            size += value_bytes * max(0, content.varint())
        yield RecordFacts(offset, greatest_ms if attributes & _LOG_APPEND_TIME else timestamp_ms, size, key)


def _decompressed(payload: memoryview, codec: int) -> Any:
    """Returns a file with the records. snappy is decompressed at once: it makes at most about 21 bytes of one."""
    if codec == 0:
        return io.BytesIO(payload)
    if codec == _SNAPPY:
        return io.BytesIO(snappy_decode(bytes(payload)))
    return pa.CompressedInputStream(pa.BufferReader(payload), _STREAMED[codec])


class _Content:
    """Reads a file forwards. position: in bytes from its start."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._piece = b""
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        return self._before + self._at

    def take(self, count: int) -> bytes:
        taken = b""
        while len(taken) < count:
            self._fill()
            part = self._piece[self._at : self._at + count - len(taken)]
            self._at += len(part)
            taken += part
        return taken

    def skip(self, count: int) -> None:
        if count < 0:
            raise ValueError("a record is longer than it says")
        while count:
            self._fill()
            step = min(count, len(self._piece) - self._at)
            self._at += step
            count -= step

    def varint(self) -> int:
        """Reads a signed number of variable length."""
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def _fill(self) -> None:
        if self._at < len(self._piece):
            return
        self._before += len(self._piece)
        self._piece, self._at = self._file.read(_PIECE_BYTES), 0
        if not self._piece:
            raise EOFError("a batch ends within a record")
