"""A client leaves a gateway and comes back: nothing lost, nothing twice, in order, one outcome (protocol.md, 7)."""

import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.outbound.fast_path import continuing
from tests.properties.fast_path.scenario import scenario_of_leaving
from tests.properties.fast_path.world import World

pytestmark = pytest.mark.no_cover

_HISTORIES: Final = 60


@given(number=st.integers(0, 99_999), choices=st.lists(st.integers(0, 9_999), min_size=60, max_size=200))
def test_every_history_of_coming_and_going_keeps_the_promises(number: int, choices: list[int]) -> None:
    world = World(scenario_of_leaving(number))
    for choice in choices:
        world.step(choice)
    world.come_to_rest()


def test_clients_are_served_before_their_session_has_read_the_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the histories would show nothing."""
    agreed: list[bool] = []
    original = continuing.continue_path

    def spied(*arguments: object) -> bool:
        agreed.append(original(*arguments))  # type: ignore[arg-type]
        return agreed[-1]

    monkeypatch.setattr(continuing, "continue_path", spied)
    choose = random.Random(1)
    for _ in range(_HISTORIES):
        world = World(scenario_of_leaving(choose.randrange(100_000)))
        for _ in range(150):
            world.step(choose.randrange(10_000))
    assert agreed.count(True) >= 3
    assert False in agreed
