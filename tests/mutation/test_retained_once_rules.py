"""Each part of the rule of sinks/routing/retained_once.py is taken away in turn, and the model must find a broken promise."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from sinks.routing.matcher import Matcher
from sinks.routing.retained_once import RecentlyRetained, RecentSubscriptions
from tests.properties.test_retained_once import Logged, World, run_retained

_HISTORIES: Final = 1_000
_STEPS: Final = 60

Change = Callable[[pytest.MonkeyPatch], None]


def live_as_well(patch: pytest.MonkeyPatch) -> None:
    """The SUBSCRIBE brings it, and it comes live, too."""
    patch.setattr(RecentlyRetained, "time_ms", lambda self, inflight_id: None)


def retained_as_well(patch: pytest.MonkeyPatch) -> None:
    """A SUBSCRIBE brings what comes live, too."""
    original = Matcher.answer

    def answer(self: Matcher, *arguments: Any, listed_ms: int) -> Any:
        return original(self, *arguments, listed_ms=listed_ms + 1_000)

    patch.setattr(Matcher, "answer", answer)


def retained_is_not_awaited(patch: pytest.MonkeyPatch) -> None:
    """The matcher of `uplink` does not wait for what is retained."""
    patch.setattr(RecentSubscriptions, "retained_matters", lambda self, first_ms: False)


def handed_on_first(patch: pytest.MonkeyPatch) -> None:
    """A gateway writes to `uplink` first."""
    publish = World.publish

    def publishes(self: World) -> None:
        publish(self)
        retained = self.retained.pop()
        self.append(self.uplink, b"dev", retained.value, retained.headers)
        self.underway[-1] = retained

    def retains(self: World) -> None:
        record: Logged = self.underway.popleft()
        self.append(self.retained, record.key, record.value, record.headers)

    patch.setattr(World, "publish", publishes)
    patch.setattr(World, "hand_on", retains)


MUTANTS: Final[dict[str, Change]] = {
    "what a SUBSCRIBE brings comes live, too": live_as_well,
    "a SUBSCRIBE brings what comes live, too": retained_as_well,
    "what is retained is not awaited": retained_is_not_awaited,
    "a publication is handed on before it is retained": handed_on_first,
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS)
def test_the_model_finds_a_part_of_the_rule_that_is_missing(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch)
    for number in range(_HISTORIES):
        random = Random(number)
        try:
            run_retained([random.randrange(10_000) for _ in range(_STEPS)])
        except AssertionError:
            return
    raise AssertionError("the mutant survives: the model lacks what happens, or a promise")
