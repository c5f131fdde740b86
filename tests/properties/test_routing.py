"""Routing: who is subscribed gets every publication, once and in order, whatever the order of what happens (decision 41).

Sessions, connections, tables and matchers are the real ones (tests/properties/routing/world.py). `make test` runs fifty
histories, `make properties` a thousand. `make mutation` shows that the model finds each rule that is missing.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.routing.world import run_history

pytestmark = pytest.mark.no_cover


@given(number=st.integers(0, 99_999), choices=st.lists(st.integers(0, 9_999), min_size=60, max_size=160))
@pytest.mark.promise("subscribe-before-match", "routed-once", "routed-order", "subscription-survives", "new-session")
def test_every_history_of_routing_keeps_the_promises(number: int, choices: list[int]) -> None:
    run_history(number, choices)
