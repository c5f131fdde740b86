"""Are the tests of the fast path any good? Each rule of the session's side is switched off in turn, and some test must fail.

The mutants replace one function or value; the scenarios of tests/spec/fast_path run on them, in this process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from state import session as session_module
from state import session_codec
from state.activation import Activation
from state.connection import SessionConnection, SessionFastPath
from state.model import Position
from state.outbound import acknowledgements, endings
from state.outbound.fast_path import adoption, grants
from state.outbound.fast_path.positions import Positions
from state.outbound.inflight_window import InflightEntry, InflightWindow
from state.outbound.message_queue import MessageQueue
from state.outbound.outbound import SessionOutbound
from state.session import Session
from tests.mutation.plain_tests import Suite, first_failure, plain_calls

SCENARIOS = "spec/fast_path"
NO_FENCE = property(lambda self: None)


@dataclass(frozen=True)
class Mutant:
    """`name` of `target` is replaced; by: made of what it was."""

    target: Any
    name: str
    by: Callable[[Any], Any]


def always(value: Any) -> Callable[[Any], Any]:
    """A function that answers the same whatever it is asked."""
    return lambda original: lambda *args, **kwargs: value


def in_its_place(value: Any) -> Callable[[Any], Any]:
    return lambda original: value


def grantable_whatever(**changes: Any) -> Callable[[Any], Any]:
    """`grants._grantable` that ignores changes of the activation, or the queue."""

    def mutate(original: Any) -> Any:
        def grantable(outbound: SessionOutbound, path: SessionFastPath, activation: Activation) -> Any:
            for name, value in changes.items():
                if hasattr(activation.fast_path, name):
                    setattr(activation.fast_path, name, value)
            return original(outbound, path, activation)

        return grantable

    return mutate


def without_looking_at_the_queue(original: Any) -> Any:
    def grantable(outbound: SessionOutbound, path: SessionFastPath, activation: Activation) -> Any:
        queue, outbound.queue = outbound.queue, MessageQueue(max_len=0, max_bytes=0)
        try:
            return original(outbound, path, activation)
        finally:
            outbound.queue = queue

    return grantable


def with_other_fields(**fields: Any) -> Callable[[Any], Any]:
    """FastSent is read as if it said something else."""
    return lambda original: lambda outbound, event, *rest: original(outbound, msgspec.structs.replace(event, **fields), *rest)


def position_stays(original: Any) -> Any:
    def enter(outbound: SessionOutbound, delivery: Any, event: Any, *rest: Any) -> None:
        original(outbound, delivery, event, *rest)
        delivery.position = event.position

    return enter


def retry_clock_of_the_gateway(original: Any) -> Any:
    def enter(outbound: SessionOutbound, delivery: Any, event: Any, *rest: Any) -> None:
        original(outbound, delivery, event, *rest)
        entry = outbound.window.get(event.packet_id)
        if entry is not None:
            entry.sent_ms = event.sent_ms

    return enter


def ids_of_both_halves(original: Any) -> Any:
    return lambda *in_use: tuple(packet_id for ids in in_use for packet_id in ids)


def any_connection(original: Any) -> Any:
    return lambda self, event: self._is_of_this_session(event.connection_id)


def of_this_connection_only(original: Any) -> Any:
    return lambda self, event: original(self, event) and self.connection is not None


def late_whatever_the_first_connection(original: Any) -> Any:
    def late(outbound: SessionOutbound, event: Any, connection: Any, activation: Activation) -> None:
        entry = outbound.window.get(event.packet_id)
        if entry is not None:
            entry.first_connection_id = 0
        original(outbound, event, connection, activation)

    return late


def forgotten_while_unread(original: Any) -> Any:
    return property(lambda self: self.connection is None and not self.established and not self.outbound.queue)


def reads_by_the_highest(original: Any) -> Any:
    """What is not above the highest is taken for adopted."""

    def read(self: Positions, position: Any) -> bool:
        new = self.is_beyond(position)
        original(self, position)
        return new

    return read


def keeps_no_unread(original: Any) -> Any:
    def adopt(self: Positions, position: Any) -> None:
        original(self, position)
        self.unread.clear()

    return adopt


def route_every_time(original: Any) -> Any:
    def opening(outbound: SessionOutbound, connection: SessionConnection, path: SessionFastPath, *rest: Any) -> None:
        path.has_route = False
        original(outbound, connection, path, *rest)

    return opening


def adopted_is_that_of_another_partition(original: Any) -> Any:
    def opening(outbound: SessionOutbound, connection: SessionConnection, path: SessionFastPath, after: Any, *rest: Any) -> None:
        path.opened_after = after
        original(outbound, connection, path, after, *rest)

    return opening


def at_the_end_of_the_window(original: Any) -> Any:
    def move(self: InflightWindow, place: int) -> None:
        return None

    return move


def closed_without_being_asked(original: Any) -> Any:
    def closed(connection: SessionConnection, activation: Activation) -> None:
        if connection.fast_path is not None:
            grants._close(connection.fast_path, activation)

    return closed


def closed_never(original: Any) -> Any:
    return lambda connection, activation: None


def slow_is_no_news(original: Any) -> Any:
    def was_adopted(outbound: SessionOutbound, position: Any, activation: Activation) -> bool:
        adopted: bool = original(outbound, position, activation)
        activation.fast_path.has_handled = False
        return adopted

    return was_adopted


def ended_with_its_route(original: Any) -> Any:
    def ended(connection: SessionConnection, activation: Activation) -> None:
        if connection.fast_path is not None:
            connection.fast_path.has_route = False
        original(connection, activation)

    return ended


def around_everything(original: Any) -> Any:
    return lambda self, position: self.fence is not None


def fills_anyway(original: Any) -> Any:
    def fill(outbound: SessionOutbound, connection: Any, activation: Activation) -> None:
        waits, activation.fast_path.waits_for_fence = activation.fast_path.waits_for_fence, False
        original(outbound, connection, activation)
        activation.fast_path.waits_for_fence = waits

    return fill


def always_over_limit(original: Any) -> Any:
    def close(path: SessionFastPath, activation: Activation) -> None:
        path.over_limit = True
        original(path, activation)

    return close


def without_first_connection(original: Any) -> Any:
    def entry(**values: Any) -> InflightEntry:
        return original(**{**values, "first_connection_id": 0})

    return entry


MUTANTS = {
    "grant: without a handled message": Mutant(
        Positions, "latest", lambda original: property(lambda self: original.fget(self) or Position(0, 0))
    ),
    "grant: although messages wait": Mutant(grants, "_grantable", without_looking_at_the_queue),
    "grant: although a backoff runs": Mutant(SessionOutbound, "blocked", always(False)),
    "grant: although something waits for the fence": Mutant(grants, "_grantable", grantable_whatever(waits_for_fence=False)),
    "grant: with too many subscriptions": Mutant(grants, "MAX_SUBSCRIPTIONS", in_its_place(10**9)),
    "grant: with too long subscriptions": Mutant(grants, "MAX_SUBSCRIPTION_BYTES", in_its_place(10**9)),
    "grant: with too much unread": Mutant(grants, "MAX_UNREAD", in_its_place(10**9)),
    "grant: of slow messages not renewed": Mutant(grants, "was_adopted", slow_is_no_news),
    "grant: of subscriptions not renewed": Mutant(grants, "_grantable", grantable_whatever(subscriptions_changed=False)),
    "grant: of fast sends not renewed": Mutant(grants, "GRANT_AFTER", in_its_place(10**9)),
    "grant: renewed all the time": Mutant(grants, "GRANT_AFTER", in_its_place(0)),
    "grant: of returned ids not told": Mutant(grants, "_grantable", grantable_whatever(new_digests=[])),
    "grant: ids of both halves": Mutant(grants, "fast_ids", ids_of_both_halves),
    "grant: adopted of another partition": Mutant(grants, "_open", adopted_is_that_of_another_partition),
    "route: with each grant": Mutant(grants, "_open", route_every_time),
    "route: never cleared": Mutant(grants, "connection_ended", ended_with_its_route),
    "path: closed by whatever says so": Mutant(grants, "closed", closed_without_being_asked),
    "path: never closed": Mutant(grants, "closed", closed_never),
    "adoption: whatever was before": Mutant(adoption, "adopt", with_other_fields(previous=-1)),
    "adoption: of an earlier connection": Mutant(Session, "accepts_fast_sent", any_connection),
    "adoption: not after the loss of the connection": Mutant(Session, "accepts_fast_sent", of_this_connection_only),
    "adoption: known by the highest position": Mutant(Positions, "mark_read", reads_by_the_highest),
    "adoption: unread not kept": Mutant(Positions, "adopt", keeps_no_unread),
    "adoption: the session forgets what is unread": Mutant(Session, "is_empty", forgotten_while_unread),
    "adoption: the position stays": Mutant(adoption, "_enter", position_stays),
    "adoption: the retry clock is the gateway's": Mutant(adoption, "_enter", retry_clock_of_the_gateway),
    "adoption: its place is lost": Mutant(InflightWindow, "move_newest", at_the_end_of_the_window),
    "adoption: not found in the window": Mutant(InflightWindow, "at", always(None)),
    "adoption: a packet id twice": Mutant(adoption, "_check_id", always(None)),
    "adoption: its id is not remembered": Mutant(adoption, "adopt", with_other_fields(explicit_id=False)),
    "late: whatever the first connection": Mutant(acknowledgements, "acknowledge_late", late_whatever_the_first_connection),
    "fence: none": Mutant(SessionConnection, "fence", in_its_place(NO_FENCE)),
    "fence: around everything": Mutant(SessionConnection, "may_be_sending", around_everything),
    "fence: the queue is filled from behind it": Mutant(session_module.transmission, "fill", fills_anyway),
    "fence: the queue stays above its limit": Mutant(endings, "drop_above_limit", always(None)),
    "fence: the queue is cut whenever a path closes": Mutant(grants, "_close", always_over_limit),
    "fence: timers run while it falls": Mutant(
        SessionConnection, "fast_path_closing", in_its_place(property(lambda self: False))
    ),
    "blob: first connection forgotten": Mutant(session_codec, "InflightEntry", without_first_connection),
}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return plain_calls([Path(__file__).parent.parent / SCENARIOS])


def test_the_scenarios_pass_on_the_unbroken_rules(suite: Suite) -> None:
    assert len(suite) > 60
    assert first_failure(suite) is None


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_some_scenario_notices_a_rule_that_is_switched_off(mutant: Mutant, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.target, mutant.name, mutant.by(vars(mutant.target)[mutant.name]))
    assert first_failure(suite) is not None, "the mutant survives: write the test that it breaks"
