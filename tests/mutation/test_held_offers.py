"""Each rule of the offers that are held is taken away in turn, and the model of the fast path must find a promise that is broken.

The rules are those of docs/decisions/0042-held-offers.md.
"""

import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from sinks.mqtt.connection.fast_path import Chain
from state.errors import InflightError
from state.outbound.fast_path import grants
from state.outbound.fast_path.positions import Positions
from tests.properties.fast_path.scenario import scenario_of
from tests.properties.fast_path.world import World

_HISTORIES: Final = 3_000
_SCENARIOS: Final = 100_000
_CHOICES: Final = 10_000

MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a held offer passes a message before it": (Chain, "hold", lambda self, previous: None),
    "a grant passes messages that have left the queue": (grants, "_is_first_of_queue", lambda outbound: True),
    "a grant begins before messages that are over": (Positions, "settle", lambda self, positions: None),
}


def broken_promise() -> str:
    """Returns the promise that a random history breaks; empty if all are kept."""
    choose = random.Random(1)
    for _ in range(_HISTORIES):
        world = World(scenario_of(choose.randrange(_SCENARIOS)))
        try:
            for _ in range(choose.randrange(60, 200)):
                world.step(choose.randrange(_CHOICES))
            world.come_to_rest()
        except (AssertionError, InflightError) as broken:
            return str(broken) or type(broken).__name__
    return ""


@pytest.mark.parametrize(("target", "name", "mutant"), MUTANTS.values(), ids=MUTANTS)
@pytest.mark.promise("held-offers")
def test_the_model_notices_that_a_rule_is_missing(
    target: Any, name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, mutant)
    assert broken_promise(), "the mutant survives: the model cannot see this rule"
