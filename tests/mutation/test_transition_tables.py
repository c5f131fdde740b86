"""Are the tests any good? Every row of the three transition tables is broken in turn, and each time some test must fail.

Each row gets every other target phase and every other action, and is left out; then the spec tests that take no time run, in
this process, on the broken table. A mutant that nothing can notice is declared with its reason, and the declaration is checked.
"""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from state.transitions import ABANDONED, INBOUND, OUTBOUND
from tests.mutation.plain_tests import Suite, first_failure, plain_calls

TESTS = Path(__file__).parent.parent
FAST = (
    "spec/test_transition_tables.py",
    "spec/test_sending.py",
    "spec/test_acknowledgements.py",
    "spec/test_receiving.py",
    "spec/test_owed_answers.py",
    "spec/test_crash_limit.py",
)
SKIPPED = "not no_receive_maximum_to_exceed and not no_more_messages_are_in_flight"  # they take long

_CONNECTION_ENDS: str = "the protocol error ends the connection, and what is owed at QoS 1 ends with it"
_NOT_COUNTED: str = "whether an id has entered the set counts for the present connection only, and this is an earlier one"
EQUIVALENT: dict[str, str] = {
    "inbound-ABSENT-OVERTAKEN-do-RECOGNISE": _NOT_COUNTED,
    "inbound-AWAITING_PUBREL-OVERTAKEN-do-RECOGNISE": _NOT_COUNTED,
    "inbound-TOMBSTONE-OVERTAKEN-do-RECOGNISE": _NOT_COUNTED,
    "abandoned-AWAITING_PUBACK-PUBREC-to-ABSENT": _CONNECTION_ENDS,
    "abandoned-AWAITING_PUBACK-PUBREC_REFUSED-to-ABSENT": _CONNECTION_ENDS,
    "abandoned-AWAITING_PUBACK-PUBCOMP-to-ABSENT": _CONNECTION_ENDS,
}
"""Mutants that are no bugs, each with its reason. Remove one as soon as a test can tell it apart."""


def another(member: Enum) -> Iterator[Enum]:
    """Returns every other member of the value's enumeration."""
    return (other for other in type(member) if other is not member)


def mutants() -> Iterator[Any]:
    for name, table in (("outbound", OUTBOUND), ("inbound", INBOUND), ("abandoned", ABANDONED)):
        for (phase, event), (target, action) in list(table.items()):
            row = f"{name}-{phase.name}-{event.name}"
            for other in another(target):
                yield pytest.param(table, (phase, event), (other, action), id=f"{row}-to-{other.name}")
            for other in another(action):
                yield pytest.param(table, (phase, event), (target, other), id=f"{row}-do-{other.name}")
            yield pytest.param(table, (phase, event), None, id=f"{row}-missing")


@pytest.fixture(scope="module")
def suite() -> Suite:
    calls = plain_calls([TESTS / name for name in FAST], which=SKIPPED)
    assert len(calls) > 100
    return calls


def test_the_fast_tests_pass_on_the_unbroken_tables(suite: Suite) -> None:
    assert first_failure(suite) is None


@pytest.mark.parametrize(("table", "row", "value"), list(mutants()))
def test_some_test_notices_a_broken_row(
    table: dict[Any, Any], row: Any, value: Any, suite: Suite, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
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
