"""Each rule of docs/guides/scheduling.md is taken away in turn, and some scenario must fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from state import session_codec
from state.outbound import admission, cancellation, collapsing, endings
from state.outbound.fast_path import adoption, grants
from state.outbound.message_queue import MessageQueue
from state.outbound.outbound import SessionOutbound
from state.outbound.scheduled import ScheduledMessages
from state.outbound.send_rate import SendRate
from state.records import messages, scheduling
from state.session import Session
from tests.mutation.plain_tests import Suite, first_failure, plain_calls

TESTS = Path(__file__).parent.parent
HUGE = 10**15


def giving(value: Any) -> Callable[[Any], Any]:
    """Makes a function that returns this, whatever it is asked."""
    return lambda _: lambda *args, **kwargs: value


def with_arguments(**changed: Any) -> Callable[[Any], Any]:
    """Calls the function with other keyword arguments."""
    return lambda original: lambda *args, **kwargs: original(*args, **{**kwargs, **changed})


def all_with_the_key(_: Any) -> Any:
    return lambda outbound, message, connection: outbound.queue.with_key(scheduling.collapse_key(message))


def giving_property(value: Any) -> Callable[[Any], Any]:
    return lambda _: property(lambda self: value)


def whatever_is_in_flight(_: Any) -> Any:
    def take_place(outbound: Any, newer: Any, replaced: Any) -> None:
        newer.order = min(older.order for older in replaced)

    return take_place


def without_fence(original: Any) -> Any:
    return lambda outbound, message_id, connection, activation: original(outbound, message_id, None, activation)


def not_needed_when_scheduled(_: Any) -> Any:
    return property(lambda self: self.connection is None and not self.established and not self.outbound.queue)


def without_rate(original: Any) -> Any:
    def grantable(outbound: Any, path: Any, activation: Any) -> Any:
        rate, outbound.rate = outbound.rate, None
        try:
            return original(outbound, path, activation)
        finally:
            outbound.rate = rate

    return grantable


MUTANTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "collapse: nothing is replaced": (MessageQueue, "with_key", giving([])),
    "collapse: what a gateway may be sending is replaced": (admission, "replaced_by", all_with_the_key),
    "collapse: the newer one is always the last": (admission, "take_place", giving(None)),
    "collapse: an earlier one in flight may follow it": (admission, "take_place", whatever_is_in_flight),
    "collapse: what is left waits": (collapsing, "drop_superseded", giving(None)),
    "collapse: the path stays open": (MessageQueue, "has_keys", giving_property(False)),
    "collapse: one from the fast path replaces nothing": (adoption, "replaced_by", giving([])),
    "collapse: a dead letter that returns replaces": (admission, "_admit", with_arguments(replaces=True)),
    "collapse: without an outcome": (admission, "finish_replaced", giving(None)),
    "collapse: nothing aside is replaced": (ScheduledMessages, "pop_key", giving([])),
    "deliver-at: sent at once": (admission, "deliver_at_ms", giving(None)),
    "deliver-at: no timer": (ScheduledMessages, "next_due_ms", giving(None)),
    "deliver-at: never due": (admission, "admit_due", giving(False)),
    "deliver-at: the session is forgotten": (Session, "is_empty", not_needed_when_scheduled),
    "deliver-at: the blob forgets": (session_codec, "_pack_schedule", giving(None)),
    "deliver-at: outlives the session": (endings, "end", with_arguments(with_scheduled=False)),
    "deliver-at: ends with the queue of an unknown client": (endings, "end", with_arguments(with_scheduled=True)),
    "deliver-at: a policy's time counts from the record": (admission, "new_delivery", with_arguments(since_ms=None)),
    "deliver-at: no limits": (admission, "message_bytes", giving(-HUGE)),
    "deliver-at: any time ahead": (scheduling, "MAX_DELAY_MS", lambda _: HUGE),
    "cancel: what a gateway may be sending leaves": (cancellation, "cancel", without_fence),
    "cancel: not tried again": (endings, "cancel_fenced", giving(None)),
    "cancel: what waits aside stays": (ScheduledMessages, "pop_id", giving([])),
    "cancel: no valid one": (messages, "_cancelled_id", giving(None)),
    "rate: none": (SendRate, "tokens", giving(HUGE)),
    "rate: nothing is counted": (SendRate, "spend", giving(None)),
    "rate: a timer at once": (SendRate, "next_ms", giving(0)),
    "rate: not for QoS 0": (SessionOutbound, "tokens", giving(None)),
    "rate: a stored level above the rate": (SendRate, "restore", lambda _: lambda self, level, at_ms: None),
    "rate: beside the fast path": (grants, "_may_open", without_rate),
}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return plain_calls([TESTS / "spec/scheduling", TESTS / "unit/state/records/test_scheduling.py"], which="not pythons_datetime")


def test_the_scenarios_pass_on_the_unbroken_rules(suite: Suite) -> None:
    assert len(suite) > 100
    assert first_failure(suite) is None


@pytest.mark.parametrize(("target", "name", "replaced"), MUTANTS.values(), ids=MUTANTS)
@pytest.mark.promise("scheduling")
def test_some_scenario_notices_a_rule_that_is_gone(
    target: Any, name: str, replaced: Callable[[Any], Any], suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, replaced(vars(target)[name]))
    assert first_failure(suite) is not None, "the mutant survives: write the test that it breaks"
