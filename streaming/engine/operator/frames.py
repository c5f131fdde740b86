"""The DataFrames in which Spark hands a group of cells over and takes the answer back."""

from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
import pandas as pd

from state.records.record import SinkRecord
from streaming.engine.operator.cells import SourceRecord, decode_source_record, encode_sink_records

_RECORD_COLUMN: Final = 1
_COLUMNS: Final = pd.Index(["records"])
_ONE_ROW: Final = pd.RangeIndex(1)
_MAX_CELL_RECORD_BYTES: Final = 16_777_216
"""A cell may hold many records; far below the 2 GiB that a cell of the JVM can have, base64 and all."""

Frames: TypeAlias = Iterator[pd.DataFrame]


def sorted_records(frames: Frames) -> list[SourceRecord]:
    """The records of a group, by (source, partition, offset): the same order whenever the micro-batch is executed."""
    # By position: to take a column by its name costs a tenth of what Python does for a client. tests/spark pins the order.
    records = [decode_source_record(cell) for frame in frames for cell in frame.to_numpy()[:, _RECORD_COLUMN]]
    if len(records) > 1:
        # Spark gives the rows of a group in any order.
        records.sort(key=_order)
    return records


def _order(record: SourceRecord) -> tuple[int, int, int]:
    return (record.source, record.partition, record.offset)


def frames_of(records: list[SinkRecord]) -> Frames:
    """The answer: one frame of one row for each cell, none for no records."""
    return iter([frame_of(encode_sink_records(part)) for part in _cells(records)])


def _cells(records: list[SinkRecord]) -> list[list[SinkRecord]]:
    """Nearly always one cell; a session that ends with a long queue may need several."""
    if not records:
        return []
    cells: list[list[SinkRecord]] = [[]]
    size = 0
    for record in records:
        size += len(record.value or b"")
        if size > _MAX_CELL_RECORD_BYTES and cells[-1]:
            cells.append([])
            size = len(record.value or b"")
        cells[-1].append(record)
    return cells


def frame_of(cell: bytes) -> pd.DataFrame:
    """One row with this cell."""
    # An object array and ready indexes: a third of what `pd.DataFrame({"records": [cell]})` costs.
    values = np.empty((1, 1), dtype=object)
    values[0, 0] = cell
    return pd.DataFrame(values, index=_ONE_ROW, columns=_COLUMNS, dtype=object, copy=False)
