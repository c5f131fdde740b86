"""The two JSON forms in which records cross the border between Spark's JVM and its Python workers.

In:  one record of Kafka is one binary cell, `to_json` of the columns that streaming/engine/query.py selects.
Out: everything that one client has to say in a micro-batch is one binary cell, a JSON array that `from_json` parses into
     rows of the Kafka sink.

One cell each way, because Spark's Python worker converts every further column anew for every client. `to_json`, `from_json` and
msgspec agree on base64 for bytes, so every byte arrives as it left (tests/spark/test_round_trip.py).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from state.records.record import Header, SinkRecord

SINK_RECORDS_SCHEMA: Final = (
    "array<struct<topic: string, key: binary, value: binary, headers: array<struct<key: string, value: binary>>, partition: int>>"
)
"""The schema with which Spark reads what `encode_sink_records` wrote."""

RECORD_COLUMN: Final = 1
"""The place of the cells among the columns of a group; the key is in column 0. tests/spark pins the order."""
OUTPUT_COLUMN: Final = "records"

EVENTS: Final = 0
MESSAGES: Final = 1
"""Values of `SourceRecord.source`. Events sort first: a device's acknowledgement frees the slot that a new message takes."""

_MAX_CELL_RECORD_BYTES: Final = 16_777_216
"""A cell may hold many records; far below the 2 GiB that a cell of the JVM can have, base64 and all."""

_SHORT: Final = {
    "source": "s",
    "partition": "p",
    "offset": "o",
    "timestamp_ms": "t",
    "headers": "h",
    "value": "v",
    "key": "k",
}


class SourceRecord(msgspec.Struct, frozen=True, rename=_SHORT):
    """One record of `inflight.messages` or `inflight.events`.

    timestamp_ms: as Kafka has it, producers may write nonsense. value: None = a tombstone.
    key: only where the key is no client id; everywhere else the group says it.
    """

    source: int
    partition: int
    offset: int
    timestamp_ms: int = -1
    headers: tuple[Header, ...] = ()
    value: bytes | None = None
    key: bytes | None = None


_decoder: Final = msgspec.json.Decoder(SourceRecord)
_encoder: Final = msgspec.json.Encoder()


def decode_source_record(cell: bytes) -> SourceRecord:
    """Reads a cell that streaming/engine/query.py made; whatever the Kafka record holds, the cell is well-formed."""
    return _decoder.decode(cell)


def sorted_records(cells: Iterable[bytes]) -> list[SourceRecord]:
    """The records of a group, by (source, partition, offset): the same order whenever the micro-batch is executed."""
    records = [decode_source_record(cell) for cell in cells]
    if len(records) > 1:
        # Spark gives the rows of a group in any order.
        records.sort(key=_order)
    return records


def _order(record: SourceRecord) -> tuple[int, int, int]:
    return (record.source, record.partition, record.offset)


def encode_sink_records(records: list[SinkRecord]) -> bytes:
    """The cell for all records of one client, in the order in which Kafka shall have them."""
    return _encoder.encode(records)


def encode_answer(records: list[SinkRecord]) -> list[bytes]:
    """The cells for all records of one client: nearly always one, none for no records."""
    return [encode_sink_records(part) for part in _parts(records)]


def _parts(records: list[SinkRecord]) -> list[list[SinkRecord]]:
    """One for each cell; a session that ends with a long queue may need several."""
    if not records:
        return []
    parts: list[list[SinkRecord]] = [[]]
    size = 0
    for record in records:
        size += len(record.value or b"")
        if size > _MAX_CELL_RECORD_BYTES and parts[-1]:
            parts.append([])
            size = len(record.value or b"")
        parts[-1].append(record)
    return parts
