"""Are the tests any good? Every row of the three transition tables is broken in turn, and each time some test must fail.

Each row gets every other target phase and every other action, and is left out; then the spec tests that take no time run, in
this process, on the broken table. A mutant that nothing can notice is declared with its reason, and the declaration is checked.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from state.errors import InflightError
from state.transitions import INBOUND, OUTBOUND, OWED

TESTS = Path(__file__).parent.parent
FAST = (
    "spec/test_transition_tables.py",
    "spec/test_sending.py",
    "spec/test_acknowledgements.py",
    "spec/test_receiving.py",
    "spec/test_owed_answers.py",
)
SKIPPED = "not refuses_for_ever and not no_receive_maximum_to_exceed and not no_more_messages_are_in_flight"  # they take long

_CONNECTION_ENDS: str = "the protocol error ends the connection, and what is owed at QoS 1 ends with it"
_NOT_COUNTED: str = "whether an id has entered the set counts for the present connection only, and this is an earlier one"
EQUIVALENT: dict[str, str] = {
    "inbound-ABSENT-OVERTAKEN-do-RECOGNISE": _NOT_COUNTED,
    "inbound-AWAITING_PUBREL-OVERTAKEN-do-RECOGNISE": _NOT_COUNTED,
    "inbound-TOMBSTONE-OVERTAKEN-do-RECOGNISE": _NOT_COUNTED,
    "owed-PUBACK-PUBREC-to-NOTHING": _CONNECTION_ENDS,
    "owed-PUBACK-PUBREC_REFUSED-to-NOTHING": _CONNECTION_ENDS,
    "owed-PUBACK-PUBCOMP-to-NOTHING": _CONNECTION_ENDS,
}
"""Mutants that are no bugs, each with its reason. Remove one as soon as a test can tell it apart."""


def another(member: Enum) -> Iterator[Enum]:
    """Every other member of its enumeration."""
    return (other for other in type(member) if other is not member)


def mutants() -> Iterator[Any]:
    for name, table in (("outbound", OUTBOUND), ("inbound", INBOUND), ("owed", OWED)):
        for (phase, event), (target, action) in list(table.items()):
            row = f"{name}-{phase.name}-{event.name}"
            for other in another(target):
                yield pytest.param(table, (phase, event), (other, action), id=f"{row}-to-{other.name}")
            for other in another(action):
                yield pytest.param(table, (phase, event), (target, other), id=f"{row}-do-{other.name}")
            yield pytest.param(table, (phase, event), None, id=f"{row}-missing")


class _Collected:
    """A pytest plugin that keeps what was collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


@pytest.fixture(scope="module")
def suite() -> list[tuple[str, Callable[[], None]]]:
    """The fast tests as plain calls: they use parameters and no fixtures."""
    collected = _Collected()
    files = [str(TESTS / name) for name in FAST]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *files, "-k", SKIPPED], plugins=[collected])
    calls = []
    for item in collected.items:
        assert isinstance(item, pytest.Function)
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        calls.append((item.nodeid, functools.partial(item.obj, **parameters)))
    assert len(calls) > 100
    return calls


def first_failure(suite: list[tuple[str, Callable[[], None]]], row: str = "") -> str | None:
    """The name of the test that fails. row: the parameters of the tests that are about it, which come first, for they mostly do.

    What else fails moves to the front: the next mutant is of the same row.
    """
    own = [test for test in suite if test[0].endswith(f"[{row}]")]
    for name, call in (*own, *(test for test in suite if test not in own)):
        try:
            call()
        except (AssertionError, InflightError, LookupError, ValueError, AttributeError):
            if (name, call) not in own:
                suite.remove((name, call))
                suite.insert(0, (name, call))
            return name
    return None


def test_the_fast_tests_pass_on_the_unbroken_tables(suite: list[tuple[str, Callable[[], None]]]) -> None:
    assert first_failure(suite) is None


@pytest.mark.parametrize(("table", "row", "value"), list(mutants()))
def test_some_test_notices_a_broken_row(
    table: dict[Any, Any],
    row: Any,
    value: Any,
    suite: list[tuple[str, Callable[[], None]]],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if value is None:
        monkeypatch.delitem(table, row)
    else:
        monkeypatch.setitem(table, row, value)
    phase, event = row
    noticed_by = first_failure(suite, f"{phase.name}-{event.name}")
    if request.node.callspec.id in EQUIVALENT:
        assert noticed_by is None, f"{noticed_by} notices it: remove it from EQUIVALENT"
    else:
        assert noticed_by is not None, "the mutant survives: write the test that it breaks"


def test_the_declared_mutants_exist() -> None:
    assert set(EQUIVALENT) <= {mutant.id for mutant in mutants()}
