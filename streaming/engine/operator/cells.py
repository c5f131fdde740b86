"""The form in which a record of Kafka crosses the border from Spark's JVM to its Python workers: one binary cell, `to_json` of
the columns that streaming/engine/query.py selects. What leaves the workers is in sink_columns.py.

One cell, because PySpark's stock worker converts every further column anew for every client, and `to_json` costs less than a
microsecond. `to_json` and msgspec agree on base64 for bytes, so every byte arrives as it left (tests/spark/test_round_trip.py).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from state.records.record import Header

RECORD_COLUMN: Final = 1
"""The place of the cells among the columns of a group; the key is in column 0. tests/spark pins the order."""

EVENTS: Final = 0
MESSAGES: Final = 1
"""Values of `SourceRecord.source`. Events sort first: a device's acknowledgement frees the slot that a new message takes."""

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
