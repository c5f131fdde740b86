"""Each rule of routing is taken away in turn, and the model of routing must find a promise that is broken.

The rules are those of docs/decisions/0041-routing.md. A mutant patches the product, or a step of the simulated matcher
(tests/properties/routing/matchers.py) where the product's step needs Kafka.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest

from sinks.mqtt.connection import accepted, append_queue
from sinks.mqtt.connection.fast_path import Chain
from sinks.routing import matcher, subscription_table
from state.activation import Activation
from state.errors import InflightError
from state.outbound.fast_path.positions import Positions
from state.outbound.routing import marks, routed
from state.outbound.routing.marks import Marks
from state.settings import SessionSettings
from tests.properties.routing.matchers import MatcherProcess
from tests.properties.routing.scenario import SHARED_FILTER
from tests.properties.routing.world import random_choices, run_history

_HISTORIES: Final = 1_000
_STEPS: Final = 130

Change = Callable[[pytest.MonkeyPatch], None]


def replaced(target: Any, name: str, value: Callable[[Any], Any]) -> Change:
    """Makes an attribute of what `value` gives for the original one."""
    return lambda patch: patch.setattr(target, name, value(vars(target)[name]))


def with_arguments(target: Any, name: str, **changed: Any) -> Change:
    """Calls a function with other keyword arguments."""
    return replaced(target, name, lambda original: lambda *args, **kwargs: original(*args, **{**kwargs, **changed}))


def answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """SUBACK waits for the event only."""
    original = append_queue.AppendQueue.add_change

    def add_change(self: append_queue.AppendQueue, append: append_queue.Append) -> None:
        original(self, append)
        assert append.answer is not None
        append.answer.unconfirmed -= 1
        self._awaiting_list[-1] = append_queue.Answer(b"")

    patch.setattr(append_queue.AppendQueue, "add_change", add_change)


def at_the_end(change: Callable[[Activation], None]) -> Change:
    """Changes what an activation has collected before the lists are written."""

    def end(original: Any) -> Any:
        def end_of_activation(outbound: Any, activation: Activation, **kwargs: Any) -> None:
            change(activation)
            original(outbound, activation, **kwargs)

        return end_of_activation

    return replaced(routed, "end_of_activation", end)


def committed_when_matched(patch: pytest.MonkeyPatch) -> None:
    original = MatcherProcess._match

    def match(self: MatcherProcess) -> None:
        assert self._polled is not None
        number, records = self._polled
        original(self)
        if number in self._owned:
            self._finished[number] = records[-1].offset + 1

    patch.setattr(MatcherProcess, "_match", match)


def landed_in_any_order(patch: pytest.MonkeyPatch) -> None:
    original = MatcherProcess._land

    def land(self: MatcherProcess) -> None:
        routed_records = [index for index, each in enumerate(self._outbox) if isinstance(each, matcher.RoutedRecord)]
        self._outbox.rotate(-routed_records[-1])
        record = self._outbox.popleft()
        self._outbox.rotate(routed_records[-1])
        self._outbox.appendleft(record)
        original(self)

    patch.setattr(MatcherProcess, "_land", land)


ONE_TOPIC: Final[dict[str, Any]] = {"qos": (1,), "faults": 8, "filters": ("a/t",), "topics": ("a/t",), "clients": 2}
SLOW_KAFKA: Final[dict[str, Any]] = {**ONE_TOPIC, "landing": 2}
EARLY_COMMITS: Final[dict[str, Any]] = {
    **ONE_TOPIC,
    "landing": 30,
    "writing": 2,
    "commits": 30,
    "crashes": 12,
    "takeovers": 1,
    "clean_starts": False,
    "expiry_s": 3_600,
    "stops": False,
}
LATE_LISTS: Final[dict[str, Any]] = {**ONE_TOPIC, "landing": 8, "takeovers": 6, "clean_starts": True, "expiry_s": 3_600}
FAST_PATH: Final[dict[str, Any]] = {
    **ONE_TOPIC,
    "commits": 1,
    "message_reads": 1,
    "stops": False,
    "session": SessionSettings(routing=True, delivery_limit=-1, crash_limit=-1),
}
GROUP: Final[dict[str, Any]] = {
    "filters": (SHARED_FILTER,),
    "topics": ("s",),
    "clients": 2,
    "faults": 8,
    "stops": False,
    "message_reads": 10,
    "takeovers": 10,
    "clean_starts": True,
    "expiry_s": 3_600,
    "session": SessionSettings(routing=True, fast_path=False, max_inflight=1),
}
NEW_SESSIONS: Final[dict[str, Any]] = {
    **ONE_TOPIC,
    "clients": 1,
    "faults": 3,
    "takeovers": 12,
    "clean_starts": True,
    "serves_at_once": True,
    "begins_open": False,
    "compacts": False,
    "stops": False,
    "message_reads": 1,
    "named": 3,
    "expiry_s": 3_600,
    "session": SessionSettings(routing=True, delivery_limit=-1, crash_limit=-1),
}
_STOPS_READING: Final = property(lambda self: self.is_full)
_FALSE: Final = property(lambda self: False)

MUTANTS: Final[dict[str, tuple[Change, dict[str, Any]]]] = {
    "1: SUBACK does not wait for the list": (answered_at_once, SLOW_KAFKA),
    "1: a PUBLISH behind a SUBSCRIBE does not wait": (
        replaced(append_queue.AppendQueue, "stops_reading", lambda _: _STOPS_READING),
        {},
    ),
    "1: a resumed connection trusts the list of the former one": (
        replaced(accepted.AcceptedDevice, "_is_list_of_earlier_connection", lambda _: _FALSE),
        SLOW_KAFKA,
    ),
    "2: no barrier": (replaced(MatcherProcess, "await_tables", lambda _: lambda self: None), {}),
    "3: the last list wins": (
        replaced(subscription_table, "order_of", lambda _: lambda subscriptions: (1 << 62, 0, False)),
        LATE_LISTS,
    ),
    "4: the session's own filters decide": (
        replaced(routed, "ListId", lambda original: type("LowestListId", (original,), {"__ge__": lambda self, other: False})),
        {},
    ),
    "4: lists of an earlier session count": (with_arguments(routed, "admissible", started_by=0), {}),
    "5: a routed message begins a queue": (with_arguments(routed, "admissible", has_session=True), {}),
    "6: no marks": (replaced(Marks, "admit", lambda _: lambda *args: True), {}),
    "6: no marks of fast sends": (replaced(Marks, "sent_by_gateway", lambda _: lambda *args: None), FAST_PATH),
    "6: no marks in grants": (replaced(Marks, "for_grant", lambda _: lambda self: ()), FAST_PATH),
    "6: one message for each mark of a micro-batch": (
        replaced(marks, "has_one_message_for_each_mark", lambda _: lambda source: True),
        {},
    ),
    "7: committed before it is written": (committed_when_matched, EARLY_COMMITS),
    "7: written in any order": (landed_in_any_order, {}),
    "10: nothing goes back": (
        replaced(routed, "goes_back", lambda _: lambda *args: False),
        {**GROUP, "qos": (1,), "clients": 3, "takeovers": 3, "faults": 4},
    ),
    "10: what is in flight at QoS 2 goes back": (
        replaced(routed, "goes_back", lambda _: lambda delivery, ended_by=None: bool(delivery.message.routing)),
        {**GROUP, "qos": (2,), "named": 0, "expiry_s": 0, "takeovers": 6, "faults": 12},
    ),
    "11: what is left to the session counts as handled": (
        replaced(Chain, "leave", lambda _: lambda self, offset: setattr(self, "known_to", offset)),
        NEW_SESSIONS,
    ),
    "11: what was sent without a grant says that all before it is handled": (
        with_arguments(Positions, "adopt", is_granted=True),
        NEW_SESSIONS,
    ),
    "11: a gap does not matter without a grant": (
        replaced(Chain, "needs_no_grant", lambda _: lambda self, previous: self.known_to is not None),
        NEW_SESSIONS,
    ),
    "10: a stale list is not corrected": (at_the_end(lambda activation: setattr(activation, "corrects_list", False)), GROUP),
}


def first_failure(scenario: dict[str, Any]) -> int | None:
    """Returns the number of the first history that breaks a promise."""
    for number in range(_HISTORIES):
        try:
            run_history(number, random_choices(number, _STEPS), **scenario)
        except (AssertionError, InflightError, LookupError, ValueError, AttributeError):
            return number
    return None


@pytest.mark.parametrize(("change", "scenario"), MUTANTS.values(), ids=MUTANTS)
@pytest.mark.promise("new-session")
def test_the_model_finds_a_rule_that_is_missing(
    change: Change, scenario: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    assert first_failure(scenario) is not None, "the mutant survives: the model lacks what happens, or a promise"
