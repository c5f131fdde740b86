"""Each rule of docs/decisions/0065-publications-of-qos-2.md is taken away in turn, and the model must find a broken promise.

The model does not see that matchers search for copies of first attempts, too: that needs a gateway that stands still between its
look and the record, and a repetition that is handed on meanwhile. tests/unit/sinks/routing/test_copies.py has that rule.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest

from sinks.mqtt.connection.append_queue import Append
from sinks.mqtt.connection.handing_on import HandingOn
from sinks.routing.copies import Doubt
from state.errors import InflightError
from state.inbound.inbound import SessionInbound
from state.records.uplink import CONNECTION_ID
from tests.properties.routing import matchers
from tests.properties.routing.world import random_choices
from tests.properties.test_handed_on import run_publishing

_HISTORIES: Final = 1_000
_STEPS: Final = 100

Change = Callable[[pytest.MonkeyPatch], None]


def nothing_is_known(patch: pytest.MonkeyPatch) -> None:
    """A gateway is not told which publications the session knows."""
    patch.setattr(SessionInbound, "known_publications", lambda self: ())


def nobody_looks(patch: pytest.MonkeyPatch) -> None:
    """A gateway does not look for a later connection."""
    patch.setattr(HandingOn, "accepted", lambda self, record: self._records.hand_on(record))


def answered_before_it_is_handed_on(patch: pytest.MonkeyPatch) -> None:
    """PUBREC waits for the event only."""
    original = HandingOn.accepted

    def accepted(self: HandingOn, record: Append) -> None:
        answer, record.answer = record.answer, None
        assert answer is not None
        answer.is_free = True
        original(self, record)

    patch.setattr(HandingOn, "accepted", accepted)


def only_first_attempts_are_doubted(patch: pytest.MonkeyPatch) -> None:
    """Matchers search for first attempts only."""
    original = matchers.doubt_of

    def doubt_of(record: Any, sessions: Any) -> Doubt | None:
        is_first_attempt = any(name == CONNECTION_ID for name, _ in record.headers)
        return original(record, sessions) if is_first_attempt else None

    patch.setattr(matchers, "doubt_of", doubt_of)


MUTANTS: Final[dict[str, Change]] = {
    "a gateway knows no publications": nothing_is_known,
    "a gateway does not look for a later connection": nobody_looks,
    "PUBREC does not wait for uplink": answered_before_it_is_handed_on,
    "a repetition is never a copy": only_first_attempts_are_doubted,
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS)
def test_the_model_finds_a_rule_of_handing_on_that_is_missing(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch)
    for number in range(_HISTORIES):
        try:
            run_publishing(number, random_choices(number, _STEPS))
        except (AssertionError, InflightError, LookupError, ValueError, AttributeError):
            return
    raise AssertionError("the mutant survives: the model lacks what happens, or a promise")
