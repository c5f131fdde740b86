"""A device publishes behind the wills of its earlier connections, whatever comes in between (docs/decisions/0062)."""

from hypothesis import given
from hypothesis import strategies as st

from tests.properties.wills import run_history


@given(st.integers(0, 2**32))
def test_a_device_publishes_behind_its_wills_in_any_history(seed: int) -> None:
    run_history(seed)
