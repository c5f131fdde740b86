import pytest

from state.errors import NewerRecord, UnreadableRecord
from state.model import numbered_partition, partition_and_generation
from state.records.record import NEWER_MARK, accepted_at, position, without_version


def test_a_value_is_read_without_its_version_byte() -> None:
    assert bytes(without_version(b"\x01abc")) == b"abc"
    with pytest.raises(UnreadableRecord, match="record version 2, expected 1"):
        without_version(b"\x02abc")
    with pytest.raises(UnreadableRecord, match="record version nothing"):
        without_version(b"")


@pytest.mark.parametrize("version", [2, 3, 255])
def test_a_newer_version_is_known_by_its_mark_and_says_what_to_do(version: int) -> None:
    with pytest.raises(NewerRecord, match=f"record version {version}, this Inflight reads 1: start the version that wrote it"):
        without_version(bytes([version]) + NEWER_MARK + b"whatever")


@pytest.mark.parametrize("data", [b"\x00" + NEWER_MARK, b"\x02", b"\x02" + NEWER_MARK[:-1], NEWER_MARK, b"\x02x" + NEWER_MARK])
def test_foreign_and_damaged_bytes_are_no_newer_version(data: bytes) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        without_version(data)
    assert not isinstance(caught.value, NewerRecord)


def test_a_position_names_a_record() -> None:
    assert position("inflight.events", 1, 5) == "inflight.events-1-5"


def test_a_recreated_topic_has_other_positions_than_the_old_one() -> None:
    assert numbered_partition(65_535, 0) == 65_535
    assert partition_and_generation(numbered_partition(7, 3)) == (7, 3)
    assert position("inflight.events", numbered_partition(1, 2), 5) == "inflight.events-1-5-2"


@pytest.mark.parametrize(("timestamp_ms", "accepted_ms"), [(-1, 9), (0, 9), (1, 1), (9, 9), (10, 9)])
def test_a_timestamp_that_cannot_be_is_replaced(timestamp_ms: int, accepted_ms: int) -> None:
    assert accepted_at(timestamp_ms, now_ms=9) == accepted_ms
