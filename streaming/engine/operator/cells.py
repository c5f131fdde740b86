"""Decodes the records of Kafka as Spark's JVM passes them to its Python workers: one binary cell each.

A cell is `to_json` of the columns that streaming/engine/query.py selects. sink_columns.py has the way back. It is one cell
because PySpark's stock worker converts every further column anew for every client, and `to_json` takes less than a microsecond.
`to_json` and msgspec agree on base64 for bytes, so every byte arrives as it left (tests/spark/test_round_trip.py).
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from state.records.record import Header

if TYPE_CHECKING:  # programs without Spark read cells, too
    import pandas as pd

Frames: TypeAlias = "Iterator[pd.DataFrame]"
"""A group of cells on PySpark's stock path."""

RECORD_COLUMN: Final = 1
"""The position of the cells among the columns of a group; the key is in column 0. tests/spark pins the order."""

EVENTS: Final = 0
MESSAGES: Final = 1
"""Values of `SourceRecord.source`. Events sort first: a device's acknowledgement frees the slot that a new message needs."""


class SourceRecord(msgspec.Struct, frozen=True, rename=lambda name: name[0]):
    """One record of `inflight.messages` or `inflight.events`; a cell has the first letters of the fields' names.

    Attributes:
        partition: With the generation of its topic (state.model.numbered_partition).
        timestamp_ms: Kafka's; producers may write nonsense.
        value: None = a tombstone.
        key: Only where the key is no client id; everywhere else it is the key of the group.
        recipient: What the record says of this client, if it names several (state/records/routing.py); None = its key names it.
        bytes_left_out: The size of a record that is too large to be taken in; headers and value stayed in the JVM. 0 = nothing.
    """

    source: int
    partition: int
    offset: int
    timestamp_ms: int = -1
    headers: tuple[Header, ...] = ()
    value: bytes | None = None
    key: bytes | None = None
    recipient: bytes | None = None
    bytes_left_out: int = 0


_decoder: Final = msgspec.json.Decoder(SourceRecord)


def decode_source_record(cell: bytes) -> SourceRecord:
    """Reads a cell of streaming/engine/query.py, which is well-formed whatever the Kafka record holds."""
    return _decoder.decode(cell)


def sorted_records(cells: Iterable[bytes]) -> list[SourceRecord]:
    """Returns the records of a group in the same order in every execution of the micro-batch: by their places in the log."""
    records = [decode_source_record(cell) for cell in cells]
    if len(records) > 1:
        # Spark delivers the rows of a group in any order.
        records.sort(key=record_order)
    return records


def cells_of(frames: Frames) -> Iterator[bytes]:
    """Yields the cells of a group on PySpark's stock path, in the order of its rows."""
    # By position: selecting a column by its name costs a tenth of Python's work for a client. tests/spark pins the order.
    return (cell for frame in frames for cell in frame.to_numpy()[:, RECORD_COLUMN])


def record_order(record: SourceRecord) -> tuple[int, int, int, bytes]:
    """Returns the place of a record in an activation: a key to sort by."""
    return (record.source, record.partition, record.offset, record.recipient or b"")  # a backend may name a client twice
