"""streaming/engine/operator/sink_columns.py: the same rows on both paths of the worker, byte for byte."""

import pyarrow as pa
import pytest

from state.records.record import HEADER_BYTES, Header, SinkRecord
from streaming.engine.operator.sink_columns import SinkRows, frames_of

FULL = SinkRecord("t", b"\xff", b"\x00", headers=(Header("h", b"\x01"), Header("h", None), Header("ß", b"")), partition=3)
ROW = {
    "topic": "t",
    "key": b"\xff",
    "value": b"\x00",
    "headers": [{"key": "h", "value": b"\x01"}, {"key": "h", "value": None}, {"key": "ß", "value": b""}],
    "partition": 3,
}
BARE = {"topic": "u", "key": b"k", "value": b"", "headers": None, "partition": None}
NOTHING = dict.fromkeys(ROW)


@pytest.mark.parametrize(
    ("records", "rows"),
    [
        ([FULL, SinkRecord("u", b"k", b"")], [ROW, BARE]),
        ([SinkRecord("u", b"k", None, ()), FULL], [{**BARE, "value": None, "headers": []}, ROW]),
        ([], []),
    ],
)
def test_a_record_is_a_row_and_padding_is_null(records: list[SinkRecord], rows: list[dict[str, object]]) -> None:
    column = SinkRows.column(records, 3)
    assert isinstance(column, pa.StructArray)
    column.validate(full=True)
    assert column.to_pylist() == rows + [NOTHING] * (3 - len(rows))
    assert [row for frame in frames_of(records) for row in frame.to_dict("records")] == rows


def test_headers_count_for_the_size_of_a_batch() -> None:
    """A dead letter may have large ones and no payload."""
    large = SinkRecord("t", b"k", None, headers=(Header("h", b"x" * 1_000), Header("n", None)))
    assert SinkRows.size_bytes(large) == 1_002 + 2 * HEADER_BYTES
    assert SinkRows.size_bytes(SinkRecord("t", b"k", b"12")) == 2
