"""Publications of devices at QoS 2 reach each subscriber once and in order, whoever hands them on, and whatever dies meanwhile.

The world is that of test_routing.py. Its devices publish at QoS 2 only and reconnect often, with a session that is kept, while
gateways freeze and crash and their records fail, are late or are lost. `make mutation` shows that the model finds each rule that
is missing (state/inbound/inbound.py, sinks/mqtt/connection/handing_on.py, sinks/routing/copies.py).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.fast_path.steps import Step
from tests.properties.routing.scenario import scenario_of
from tests.properties.routing.world import RoutingWorld

pytestmark = pytest.mark.no_cover

_SCENARIO: Final = {
    "qos": (2,),
    "serves_at_once": True,
    "expiry_s": 3_600,
    "clean_starts": False,
    "clients": 1,
    "filters": ("a/t",),
    "topics": ("a/t",),
    "faults": 16,
    "stops": True,
    "takeovers": 8,
    "compacts": False,
}
_OTHER_WEIGHTS: Final = {
    "publishes to": 30,
    "a backend publishes": 0,
    "unsubscribes": 0,
    "disconnects": 0,
    "a second passes": 1,
    "the next timer": 1,
    "connects": 12,
    "looks for a later": 15,
    "lease": 2,
    "reads, its answer is lost": 0,
}


class PublishingWorld(RoutingWorld):
    """Offers what concerns publications more often than the rest."""

    def next_steps(self) -> Iterator[Step]:
        for step in super().next_steps():
            weight = next((weight for words, weight in _OTHER_WEIGHTS.items() if words in step.name), step.weight)
            if weight:
                yield step._replace(weight=weight)


def run_publishing(number: int, choices: list[int]) -> PublishingWorld:
    """Runs a history; raises AssertionError if a promise is broken."""
    world = PublishingWorld(replace(scenario_of(number), **_SCENARIO))
    for choice in choices:
        world.step(choice)
    world.come_to_rest()
    return world


@given(number=st.integers(0, 99_999), choices=st.lists(st.integers(0, 9_999), min_size=80, max_size=200))
@pytest.mark.promise("handed-on-once")
def test_a_publication_of_qos_2_is_handed_on_once_and_in_order(number: int, choices: list[int]) -> None:
    run_publishing(number, choices)
