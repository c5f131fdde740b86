from typing import Any

import pytest

from streaming.reload.changes import changed_keys


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}}, []),
        ({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "d": 5}, ["a.c", "d"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a"]),
        ({"a": {"b": 1}}, {}, ["a"]),
        ({}, {"a": {"b": 1}}, ["a"]),
    ],
)
def test_each_key_that_differs_is_named(old: dict[str, Any], new: dict[str, Any], expected: list[str]) -> None:
    assert changed_keys(old, new) == expected
