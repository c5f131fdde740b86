"""Each rule of the queue's limits is broken in turn, and some scenario must fail (state/outbound/backlog.py)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from state.outbound import backlog, outbound, transmission
from state.outbound.backlog import Backlog
from state.outbound.outbound import SessionOutbound
from tests.mutation.plain_tests import Suite, first_failure, plain_calls

SPEC = Path(__file__).parent.parent / "spec"

MUTANTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "every client keeps up": (Backlog, "keeps_up", lambda _: property(lambda self: True)),
    "no client keeps up": (Backlog, "keeps_up", lambda _: property(lambda self: False)),
    "one look is enough": (backlog, "_CONFIRMED_MS", lambda _: 0),
    "the limits stay as they were": (SessionOutbound, "apply_limits", lambda _: lambda self: None),
    "backends wait only at the limit": (outbound, "PUSHED_BACK_AT", lambda _: 1),
    "what is read ahead does not grow": (transmission, "_BUSY_UNTIL_NEXT", lambda _: 0),
    "what is read ahead has no limit": (transmission, "MAX_READ_AHEAD_BYTES", lambda _: 1 << 40),
}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return plain_calls([SPEC / "test_backlog.py", SPEC / "test_read_ahead.py"])


def test_the_scenarios_pass_on_the_unbroken_rules(suite: Suite) -> None:
    assert first_failure(suite) is None


@pytest.mark.parametrize(("target", "name", "replaced"), MUTANTS.values(), ids=MUTANTS)
def test_some_scenario_notices_a_broken_rule(
    target: Any, name: str, replaced: Callable[[Any], Any], suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, replaced(vars(target)[name]))
    assert first_failure(suite) is not None, "the mutant survives: write the test that it breaks"
