"""state/outbound/packet_ids.py; thousands of sends are in tests/spec/test_wraparound.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.errors import SessionMisuse
from state.outbound.packet_ids import PacketIds, fast_ids


@given(st.integers(0, 32_767), st.sets(st.integers(1, 65_535) | st.integers(1, 5) | st.integers(32_760, 32_770), max_size=200))
def test_an_id_is_free_in_range_and_the_next_one_going_round(last: int, in_use: set[int]) -> None:
    """[MQTT-2.2.1-4]"""
    ids = PacketIds(last)
    given_out = ids.allocate(in_use)
    assert 1 <= given_out <= 32_767
    assert given_out not in in_use
    assert ids.last == given_out
    skipped = range(last + 1, given_out) if given_out > last else [*range(last + 1, 32_768), *range(1, given_out)]
    assert all(packet_id in in_use for packet_id in skipped)


def test_the_last_free_id_is_found_wherever_it_is() -> None:
    for free in (1, 2, 20_000, 32_767):
        assert PacketIds(2).allocate(set(range(1, 65_536)) - {free}) == free


def test_after_an_old_id_comes_one_of_the_sessions_half() -> None:
    for last in (32_767, 32_768, 65_534, 65_535):
        assert 1 <= PacketIds(last).allocate(()) <= 32_767


def test_the_ids_of_gateways_are_those_of_the_other_half() -> None:
    assert fast_ids((1, 32_768, 32_767), {65_535: None, 5: None}) == (32_768, 65_535)


def test_no_free_id_is_our_error_and_not_an_endless_search() -> None:
    with pytest.raises(SessionMisuse, match="all 32,767 packet ids of the session are in use"):
        PacketIds().allocate(range(1, 65_536))
