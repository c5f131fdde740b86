"""state.records.record"""

import pytest

from state.errors import UnreadableRecord
from state.records.record import accepted_at, position, without_version


def test_a_value_is_read_without_its_version_byte_and_no_other_version_is_read() -> None:
    assert bytes(without_version(b"\x01abc")) == b"abc"
    with pytest.raises(UnreadableRecord, match="record version 2, expected 1"):
        without_version(b"\x02abc")
    with pytest.raises(UnreadableRecord, match="record version nothing"):
        without_version(b"")


def test_a_position_names_a_record() -> None:
    assert position("inflight.events", 1, 5) == "inflight.events-1-5"


@pytest.mark.parametrize(("timestamp_ms", "accepted_ms"), [(-1, 9), (0, 9), (1, 1), (9, 9), (10, 9)])
def test_a_timestamp_that_cannot_be_is_replaced(timestamp_ms: int, accepted_ms: int) -> None:
    assert accepted_at(timestamp_ms, now_ms=9) == accepted_ms
