"""Each number and each property that decides about the fast path is replaced in turn, and some scenario must fail.

mutmut breaks the functions (survivors.py); it leaves module constants and properties as they are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from state import session_codec
from state.connection import SessionConnection
from state.events import FastSent
from state.model import Position
from state.outbound import backlog
from state.outbound.backlog import Backlog
from state.outbound.fast_path import adoption, grants
from state.outbound.fast_path.positions import Positions
from state.outbound.inflight_window import InflightEntry
from state.outbound.outbound import SessionOutbound
from state.session import Session
from tests.mutation.plain_tests import Suite, first_failure, plain_calls

HUGE = 10**9


def without_first_connection(**values: Any) -> InflightEntry:
    return InflightEntry(**{**values, "first_connection_id": 0})


def is_behind_unhandled(outbound: SessionOutbound, event: FastSent) -> bool:
    return event.previous > outbound.positions.handled_in(event.position.partition)


def returning(value: Callable[[Any, property], Any]) -> Callable[[property], property]:
    """Makes a property of what the original one would give."""
    return lambda original: property(lambda self: value(self, original))


MUTANTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "grant: without a handled message": (Positions, "latest", returning(lambda self, old: old.fget(self) or Position(0, 0))),
    "grant: with too many subscriptions": (grants, "MAX_SUBSCRIPTIONS", lambda _: HUGE),
    "grant: with too long subscriptions": (grants, "MAX_SUBSCRIPTION_BYTES", lambda _: HUGE),
    "grant: with too much unread": (grants, "MAX_UNREAD", lambda _: HUGE),
    "grant: of fast sends not renewed": (grants, "GRANT_AFTER", lambda _: HUGE),
    "grant: renewed all the time": (grants, "GRANT_AFTER", lambda _: 0),
    "grant: while other messages wait": (grants, "_is_first_of_queue", lambda _: lambda outbound: True),
    "grant: what leaves the queue is not noted": (Positions, "settle", lambda _: lambda self, positions: None),
    "adoption: behind one that waits in the queue": (adoption, "_is_behind_missing", lambda _: is_behind_unhandled),
    "adoption: the session forgets what is unread": (
        Session,
        "is_empty",
        returning(lambda self, _: self.connection is None and not self.established and not self.outbound.queue),
    ),
    "adoption: what is unread of a recreated topic is kept": (
        Positions,
        "forget_recreated",
        lambda _: lambda self, generation: None,
    ),
    "fence: none": (SessionConnection, "fence", returning(lambda self, _: None)),
    "fence: timers run while it falls": (SessionConnection, "fast_path_closing", returning(lambda self, _: False)),
    "lead: the session sends what the gateway may be sending": (
        Backlog,
        "leaves_to_gateway",
        lambda _: lambda self, position, connection, now_ms, unacknowledged: False,
    ),
    "lead: it never ends": (backlog, "LEAD_MS", lambda _: HUGE),
    "lead: with everything acknowledged": (
        Backlog,
        "leaves_to_gateway",
        lambda old: (
            lambda self, position, connection, now_ms, unacknowledged: old(self, position, connection, now_ms, unacknowledged=1)
        ),
    ),
    "blob: first connection forgotten": (session_codec, "InflightEntry", lambda _: without_first_connection),
}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return plain_calls([Path(__file__).parent.parent / "spec/fast_path"])


def test_the_scenarios_pass_on_the_unbroken_values(suite: Suite) -> None:
    assert len(suite) > 60
    assert first_failure(suite) is None


@pytest.mark.parametrize(("target", "name", "replaced"), MUTANTS.values(), ids=MUTANTS)
def test_some_scenario_notices_another_value(
    target: Any, name: str, replaced: Callable[[Any], Any], suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, replaced(vars(target)[name]))
    assert first_failure(suite) is not None, "the mutant survives: write the test that it breaks"
