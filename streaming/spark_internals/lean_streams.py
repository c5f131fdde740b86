"""Reads and writes the two Arrow streams of `applyInPandasWithState` without pandas. Theory of operation: lean_worker.py.

In:   Record batches with the columns of the data and, last, a struct column with one element for each chunk. A chunk is a group,
      or the part of a group in this batch: `properties` (JSON), `keyRowAsUnsafe`, `object` (the pickled state row or null),
      `startOffset`, `numRows`, `isLastChunk`. After the last chunk the struct is null.
Out:  Record batches with three struct columns of equal length. `_0`: how many elements of the other two count. `_1`: the output
      rows. `_2`: the states after their calls, as `properties`, `keyRowAsUnsafe`, `object`, `oldTimeoutTimestamp`.

Memory: one Arrow batch at a time. Columns up to `AT_ONCE_BYTES` become Python objects as a whole; values of larger columns are
converted one by one. A batch is written when it has `BATCH_BYTES`, or more than `max_records` output rows after a group (as in
PySpark).

Tried with PySpark 4.2.0. It uses private attributes of `GroupState`; with other versions lean_worker.py does not get here.
"""

import io
import json
import pickle  # state rows, which only the engine writes  # nosec B403
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
from pyspark.serializers import pickle_protocol
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

AT_ONCE_BYTES: Final = 8 << 20
BATCH_BYTES: Final = 16 << 20

_COUNT: Final = pa.struct([("dataCount", pa.int32()), ("stateCount", pa.int32())])
_STATE: Final = pa.struct(
    [("properties", pa.string()), ("keyRowAsUnsafe", pa.binary()), ("object", pa.binary()), ("oldTimeoutTimestamp", pa.int64())]
)
_PLAIN: Final = frozenset((int, str, bytes, bool, float, type(None)))

Key: TypeAlias = tuple[str, ...]
Group: TypeAlias = "tuple[Key, Iterator[bytes], LeanState]"
LeanFunction: TypeAlias = Callable[[Key, Iterable[bytes], GroupState], Iterable[Any]]
"""Takes the key, the cells of the group's binary column (none after a time-out) and the state; returns the output rows.

All columns of the key are strings. The state is the one that a function for `applyInPandasWithState` gets, with the same duties.
"""


class RowFormat(Protocol):
    """Turns output rows into the column `_1`."""

    def size_bytes(self, row: Any, /) -> int:
        """Returns about how large the row is."""

    def column(self, rows: Sequence[Any], length: int) -> pa.StructArray:
        """Returns one element for each row, followed by elements with null fields up to `length`."""


class Layout(NamedTuple):
    """The positions of the data columns: those of the grouping key (strings), and the one that the function reads (binary)."""

    key_columns: tuple[int, ...]
    cell_column: int


class LeanState(GroupState):
    """A faster GroupState: it stores a row of plain values as it is, and caches most of the text of `json`."""

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803 - PySpark's name
        if type(newValue) is tuple and _PLAIN.issuperset(map(type, newValue)):
            self._value = newValue  # type: ignore[assignment]
            self._defined, self._updated, self._removed = True, True, False
        else:
            super().update(newValue)

    def json(self) -> str:
        if type(self._timeout_timestamp) is not int:
            return super().json()
        head = _json_head(
            self._batch_processing_time_ms,
            self._event_time_watermark_ms,
            self._timeout_conf,
            self._has_timed_out,
            self._watermark_present,
            self._defined,
            self._updated,
            self._removed,
        )
        return f"{head}{self._timeout_timestamp}}}"


def read_groups(batches: Iterable[pa.RecordBatch], layout: Layout, value_schema: StructType) -> Iterator[Group]:
    """Yields each group once: its key, its cells, its state. A group that has timed out has no cells.

    Cells need not be read to the end. They can be read until the next group is requested.
    """
    chunks = _chunks(batches, layout)
    for key, cells, properties, key_row, row, is_last in chunks:
        state = LeanState(
            keyAsUnsafe=key_row,
            valueSchema=value_schema,
            optionalValue=_Unpickler(io.BytesIO(row), encoding="bytes").load() if row else None,  # type: ignore[arg-type]
            **_parsed(properties),
        )
        rest = iter(()) if is_last else _rest(chunks)
        yield key, iter(()) if state.hasTimedOut else chain(cells, rest), state
        for _ in rest:
            pass


def write_batches(
    results: Iterable[tuple[LeanState, Iterable[Any]]], row_format: RowFormat, max_records: int
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of the answer.

    Args:
        results: For each group its state and its output rows. The rows are read to the end before the state is.
        max_records: Output rows after which a batch is written.
    """
    rows: list[Any] = []
    states = _StateColumns()
    size = 0
    for state, output in results:
        for row in output:
            rows.append(row)
            size += row_format.size_bytes(row)
            if size > BATCH_BYTES:
                yield _batch(rows, states, row_format)
                rows, states, size = [], _StateColumns(), 0
        if len(rows) > max_records:
            yield _batch(rows, states, row_format)
            rows, states, size = [], _StateColumns(), 0
        size += states.append(state)
        if size > BATCH_BYTES:
            yield _batch(rows, states, row_format)
            rows, states, size = [], _StateColumns(), 0
    if rows or states.rows:
        yield _batch(rows, states, row_format)


class _StateColumns:
    """The columns of `_2`."""

    def __init__(self) -> None:
        self.properties: list[str | None] = []
        self.key_rows: list[bytes | None] = []
        self.rows: list[bytes | None] = []
        self.old_timeouts: list[int | None] = []

    def append(self, state: LeanState) -> int:
        """Returns the bytes of the pickled row."""
        row = None
        if state.exists:
            row = pickle.dumps(state._value_schema.toInternal(state._value), pickle_protocol)
        self.properties.append(state.json())
        self.key_rows.append(state._keyAsUnsafe)
        self.rows.append(row)
        self.old_timeouts.append(state.oldTimeoutTimestamp)
        return 0 if row is None else len(row)


class _Unpickler(pickle.Unpickler):
    """Unpickles rows of the JVM. Each carries its whole schema as JSON text, which is parsed once and cached."""

    def find_class(self, module: str, name: str, /) -> Any:
        if name == "_parse_datatype_json_string" and module == "pyspark.sql.types":
            return _type_of_json
        return super().find_class(module, name)


@lru_cache(maxsize=16)
def _type_of_json(text: str) -> DataType:
    return _parse_datatype_json_string(text)


class _Column(Protocol):
    def __getitem__(self, index: int, /) -> Any: ...


class _LazyColumn:
    """Converts the values of a column when they are requested."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __getitem__(self, index: int, /) -> Any:
        return self._column[index].as_py()


def _values(column: pa.Array) -> _Column:
    if column.nbytes > AT_ONCE_BYTES:
        return _LazyColumn(column)
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()  # three times as fast as to_pylist
    return values


def _chunks(
    batches: Iterable[pa.RecordBatch], layout: Layout
) -> Iterator[tuple[Key, Iterator[bytes], str, bytes, bytes | None, bool]]:
    for batch in batches:
        chunks = batch.column(batch.num_columns - 1)
        if chunks.null_count:
            chunks = chunks.slice(0, chunks.is_valid().to_pylist().index(False))
        fields = {field.name: _values(chunks.field(index)) for index, field in enumerate(chunks.type)}
        properties, key_rows, rows = fields["properties"], fields["keyRowAsUnsafe"], fields["object"]
        starts, counts, are_last = fields["startOffset"], fields["numRows"], fields["isLastChunk"]
        keys = [_values(batch.column(index)) for index in layout.key_columns]
        cells = _values(batch.column(layout.cell_column))
        for index in range(len(chunks)):
            start = starts[index]
            yield (
                tuple(column[start] for column in keys),
                map(cells.__getitem__, range(start, start + counts[index])),
                properties[index],
                key_rows[index],
                rows[index],
                are_last[index],
            )


def _rest(chunks: Iterator[tuple[Key, Iterator[bytes], str, bytes, bytes | None, bool]]) -> Iterator[bytes]:
    """Yields the cells of the current group in the following chunks."""
    for _, cells, _, _, _, is_last in chunks:
        yield from cells
        if is_last:
            return


@lru_cache(maxsize=256)
def _parsed(properties: str) -> dict[str, Any]:
    """Returns the arguments of GroupState without the row, which is pickled separately. Most groups share them."""
    arguments: dict[str, Any] = json.loads(properties)
    arguments.pop("optionalValue", None)
    return arguments


@lru_cache(maxsize=256)
def _json_head(
    batch_ms: int, watermark_ms: int, timeout: str, timed_out: bool, watermark: bool, defined: bool, updated: bool, removed: bool
) -> str:
    """Returns the text of `GroupState.json` up to the value of its last field, the time-out."""
    state = GroupState(
        optionalValue=None,  # type: ignore[arg-type]
        batchProcessingTimeMs=batch_ms,
        eventTimeWatermarkMs=watermark_ms,
        timeoutConf=timeout,
        hasTimedOut=timed_out,
        watermarkPresent=watermark,
        defined=defined,
        updated=updated,
        removed=removed,
        timeoutTimestamp=0,
        keyAsUnsafe=b"",
        valueSchema=StructType(),
    )
    return state.json().removesuffix("0}")


def _batch(rows: list[Any], states: _StateColumns, row_format: RowFormat) -> pa.RecordBatch:
    data_count, state_count = len(rows), len(states.rows)
    length = max(1, data_count, state_count)
    counts = [pa.array([count] * length, pa.int32()) for count in (data_count, state_count)]
    state_values: tuple[list[Any], ...] = (states.properties, states.key_rows, states.rows, states.old_timeouts)
    padding = [None] * (length - state_count)  # the counts in `_0` tell what is padding
    state_columns = [pa.array(values + padding, field.type) for values, field in zip(state_values, _STATE, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            pa.StructArray.from_arrays(counts, fields=list(_COUNT)),
            row_format.column(rows, length),
            pa.StructArray.from_arrays(state_columns, fields=list(_STATE)),
        ],
        names=["_0", "_1", "_2"],
    )
