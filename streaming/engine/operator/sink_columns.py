"""What leaves the operator: a row for each record that is to be written, in the columns of Kafka's sink.

The two paths of the worker make the same rows: `frames_of` for PySpark's stock path, `SinkRows` for the lean one. Columns,
because the JVM then reads what it needs; a cell of JSON was a fifth of its work (docs/decisions/0033).
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from state.records.record import Header, SinkRecord
from streaming.engine.operator.frames import Frames

SINK_SCHEMA: Final = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>, partition int"
"""For Spark, in the order of the columns here."""

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
_FIELDS: Final = (
    pa.field("topic", pa.string()),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", _HEADERS),
    pa.field("partition", pa.int32()),
)
_COLUMNS: Final = pd.Index([field.name for field in _FIELDS])


class SinkRows:
    """Records as rows of the lean path (lean_streams.py)."""

    @staticmethod
    def size_bytes(record: SinkRecord) -> int:
        """About; a batch is written when its rows are large."""
        headers = record.headers
        return len(record.value or b"") + (sum(len(header.value or b"") for header in headers) if headers else 0)

    @staticmethod
    def column(records: Sequence[SinkRecord], length: int) -> pa.StructArray:
        """One element for each record, and null fields up to `length`."""
        padding: list[Any] = [None] * (length - len(records))
        columns = [
            pa.array([record.topic for record in records] + padding, pa.string()),
            pa.array([record.key for record in records] + padding, pa.binary()),
            pa.array([record.value for record in records] + padding, pa.binary()),
            _headers([record.headers for record in records] + padding),
            pa.array([record.partition for record in records] + padding, pa.int32()),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_FIELDS))


def frames_of(records: Sequence[SinkRecord]) -> Frames:
    """The answer on the stock path: one frame with a row for each record, none for no records."""
    return iter([_frame_of(records)] if records else [])


def _frame_of(records: Sequence[SinkRecord]) -> pd.DataFrame:
    # One object array and a ready index: a third of what a frame made of columns costs.
    values = np.empty((len(records), len(_COLUMNS)), dtype=object)
    for row, record in enumerate(records):
        headers = record.headers
        dicts = None if headers is None else [{"key": header.key, "value": header.value} for header in headers]
        values[row, :] = (record.topic, record.key, record.value, dicts, record.partition)
    return pd.DataFrame(values, columns=_COLUMNS, dtype=object, copy=False)


def _headers(of_records: Sequence[tuple[Header, ...] | None]) -> pa.ListArray:
    headers = list(chain.from_iterable(filter(None, of_records)))
    values = pa.StructArray.from_arrays(
        [pa.array([header.key for header in headers], pa.string()), pa.array([header.value for header in headers], pa.binary())],
        fields=list(_HEADER),
    )
    ends = accumulate((len(some or ()) for some in of_records), initial=0)
    are_null = pa.array([some is None for some in of_records])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=_HEADERS, mask=are_null)
