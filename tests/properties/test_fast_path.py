"""The fast path: nothing lost, nothing twice, in order, one outcome, whatever the order of what happens (protocol.md, 7).

Sessions, connections and routers are the real ones (tests/properties/fast_path/world.py). `make test` runs fifty histories,
`make properties` a thousand, `make soak` a hundred thousand. `make mutation` and `make mutmut` break its rules in turn: a test
has to fail each time.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.fast_path.scenario import scenario_of
from tests.properties.fast_path.world import World

pytestmark = pytest.mark.no_cover


@settings(max_examples=(4 if os.environ.get("INFLIGHT_SOAK") else 1) * settings.default.max_examples)
@given(number=st.integers(0, 99_999), choices=st.lists(st.integers(0, 9_999), min_size=60, max_size=200))
@pytest.mark.promise("held-offers")
def test_every_history_keeps_the_promises(number: int, choices: list[int]) -> None:
    world = World(scenario_of(number))
    for choice in choices:
        world.step(choice)
    world.come_to_rest()
