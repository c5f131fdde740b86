"""Tests as plain calls, so that they can run many times in one process, each time on other broken code."""

import contextlib
import functools
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import pytest

from state.errors import InflightError

Suite: TypeAlias = list[tuple[str, Callable[[], None]]]

_FAILURES = (AssertionError, InflightError, LookupError, ValueError, AttributeError, pytest.fail.Exception)
"""The errors by which a test can notice that the code is broken."""


class _Collected:
    """A pytest plugin that keeps what was collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def plain_calls(files: Iterable[Path], *, which: str = "") -> Suite:
    """The tests of the files that the expression `which` picks, as for `-k`; they may use parameters and no fixtures."""
    collected = _Collected()
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", *map(str, files), "-k", which]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(arguments, plugins=[collected])
    calls: Suite = []
    for item in collected.items:
        assert isinstance(item, pytest.Function)
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        calls.append((item.nodeid, functools.partial(item.obj, **parameters)))
    return calls


def first_failure(suite: Suite, row: str = "") -> str | None:
    """The name of the test that fails. row: the parameters of the tests that are about it, which come first, for they mostly do.

    What else fails moves to the front: the next mutant is of the same kind, and often fails there, too.
    """
    own = [test for test in suite if test[0].endswith(f"[{row}]")]
    for name, call in (*own, *(test for test in suite if test not in own)):
        try:
            call()
        except _FAILURES:
            if (name, call) not in own:
                suite.remove((name, call))
                suite.insert(0, (name, call))
            return name
    return None
