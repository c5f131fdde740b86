"""Makes a row of each record that leaves the operator, in the columns of Kafka's sink.

The two paths of the worker make the same rows: `frames_of` for PySpark's stock path, `SinkRows` for the lean one. The output has
columns because the JVM then reads only what it needs; a cell of JSON was a fifth of its work (docs/decisions/0031).
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from state.records.record import Header, SinkRecord, header_bytes
from streaming.engine.operator.cells import Frames

SINK_SCHEMA: Final = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>, partition int"
"""The schema for Spark, in the order of `_FIELDS`."""

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
    """The RowFormat of records on the lean path (streaming/spark_internals/lean_streams.py)."""

    @staticmethod
    def size_bytes(record: SinkRecord) -> int:
        """Returns the approximate size."""
        headers = record.headers
        size = sum([header_bytes(header.key, header.value) for header in headers]) if headers else 0
        return len(record.value or b"") + size

    @staticmethod
    def column(records: Sequence[SinkRecord], length: int) -> pa.StructArray:
        """Returns one element for each record, followed by elements with null fields up to `length`."""
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
    """Returns the answer on the stock path: one frame with a row for each record, none for no records."""
    return iter([_frame_of(records)] if records else [])


def _frame_of(records: Sequence[SinkRecord]) -> pd.DataFrame:
    # One object array and a ready index cost a third of a frame that is made of columns.
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
