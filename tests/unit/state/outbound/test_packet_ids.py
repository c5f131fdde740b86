"""state/outbound/packet_ids.py; thousands of sends are in tests/spec/test_wraparound.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.errors import SessionMisuse
from state.outbound.packet_ids import PacketIds


@given(st.integers(0, 65_535), st.sets(st.integers(1, 65_535) | st.integers(1, 5) | st.integers(65_530, 65_535), max_size=200))
def test_an_id_is_free_in_range_and_the_next_one_going_round(last: int, in_use: set[int]) -> None:
    """[MQTT-2.2.1-4]"""
    ids = PacketIds(last)
    given_out = ids.allocate(in_use)
    assert 1 <= given_out <= 65_535
    assert given_out not in in_use
    assert ids.last == given_out
    skipped = range(last + 1, given_out) if given_out > last else [*range(last + 1, 65_536), *range(1, given_out)]
    assert all(packet_id in in_use for packet_id in skipped)


def test_the_last_free_id_is_found_wherever_it_is() -> None:
    for free in (1, 2, 40_000, 65_535):
        assert PacketIds(2).allocate(set(range(1, 65_536)) - {free}) == free


def test_no_free_id_is_our_error_and_not_an_endless_search() -> None:
    with pytest.raises(SessionMisuse, match="all 65,535 packet ids are in use"):
        PacketIds().allocate(range(1, 65_536))
