"""Rules of docs/decisions/0067-left-sessions.md are taken away in turn, and the model must find a promise that is broken.

Each has a number that finds it soon. The checks of the session are in tests/spec/fast_path/test_continuing.py: those of the
gateway make them rarely needed.
"""

import random
from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from sinks.host.outbox import Outbox
from sinks.mqtt.connection.left_session import LeftSession
from state.commands import OfferPublish
from state.errors import InflightError
from state.outbound.fast_path import continuing
from tests.properties.fast_path.scenario import scenario_of_leaving
from tests.properties.fast_path.world import World

_HISTORIES: Final = 2_000
_SCENARIOS: Final = 100_000
_CHOICES: Final = 10_000

Change = Callable[[pytest.MonkeyPatch], None]


def gaps_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    original = LeftSession.offer

    def offer(self: LeftSession, offer: OfferPublish) -> bool:
        return original(self, msgspec.structs.replace(offer, previous=-1))

    patch.setattr(LeftSession, "offer", offer)


def limits_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    """More is held than the queue holds."""
    patch.setattr(continuing, "max_left", lambda outbound: (1_000, 1 << 20))


def unfinished_messages_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    """A session is left whatever the device has not acknowledged."""
    patch.setattr(Outbox, "is_empty", True)


MUTANTS: Final[dict[str, tuple[Change, int]]] = {
    "gaps do not matter": (gaps_do_not_matter, 3),
    "limits do not matter": (limits_do_not_matter, 6),
    "unfinished messages do not matter": (unfinished_messages_do_not_matter, 4),
}


@pytest.mark.parametrize(("change", "number"), MUTANTS.values(), ids=MUTANTS)
def test_the_model_finds_a_rule_of_left_sessions_that_is_missing(
    change: Change, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    choose = random.Random(number)
    for _ in range(_HISTORIES):
        world = World(scenario_of_leaving(choose.randrange(_SCENARIOS)))
        try:
            for _ in range(choose.randrange(60, 200)):
                world.step(choose.randrange(_CHOICES))
            world.come_to_rest()
        except (AssertionError, InflightError):
            return
    raise AssertionError("the mutant survives: the model lacks what happens, or a promise")
