"""streaming.archive.cells: numbers in headers that anybody may write."""

from types import SimpleNamespace

import pytest

from streaming.archive.cells import PlainCells

RECORD = SimpleNamespace(topic="topic", partition=0, offset=0, timestamp=0, key=None, value=None, headers=())
CELLS = PlainCells(RECORD)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        (" +7\n", 7),
        ("-7", -7),
        ("0", 0),
        ("0" * 100_000 + "7", 7),
        ("9223372036854775807", (1 << 63) - 1),
        ("-9223372036854775808", -(1 << 63)),
        ("9223372036854775808", None),
        ("7" * 100_000, None),
        ("", None),
        ("+", None),
        ("7 7", None),
        (None, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_number_of_any_length_is_read_or_is_none(text: str | None, number: int | None) -> None:
    assert CELLS.integer(text, "bigint") == number
