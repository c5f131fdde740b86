from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from streaming.history.database import SqlAnswer
from streaming.history.documents import documents, plain


def rows(*values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    return iter(values)


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (datetime(2026, 11, 21, 10, 0, 0, 123_000, tzinfo=UTC), "2026-11-21T10:00:00.123Z"),
        (datetime(2026, 11, 21, 10, 0, 0, 123_456, tzinfo=UTC), "2026-11-21T10:00:00.123456Z"),
        (datetime(2026, 11, 21, 10), "2026-11-21T10:00:00.000"),  # noqa: DTZ001 - without a zone is meant
        (date(2026, 11, 21), "2026-11-21"),
        (b"\xff\x00", "/wA="),
        (Decimal("7"), 7),
        (Decimal("1.5"), 1.5),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (1 << 100, 1 << 100),
        (True, True),
        (timedelta(days=1), "1 day, 0:00:00"),
        ([{"key": "a", "value": b"1"}, None], [{"key": "a", "value": "MQ=="}, None]),
        ({1: (0.5, None)}, {"1": [0.5, None]}),
    ],
)
def test_values_are_written_as_json_has_them(value: Any, json: Any) -> None:
    assert plain(value) == json


def test_a_name_that_comes_twice_keeps_both_values() -> None:
    answer = SqlAnswer(columns=("a", "b", "a"), rows=rows((1, 2, 3)))
    assert list(documents(answer)) == [{"a": 1, "b": 2, "a_2": 3}]
