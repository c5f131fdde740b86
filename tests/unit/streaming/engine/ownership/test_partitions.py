"""streaming.engine.ownership.partitions: what needs neither Kafka nor Spark. With both: tests/spark/test_added_partitions.py."""

import pytest

from streaming.engine.ownership.partitions import Growth, changed


def test_the_old_partitions_are_read_when_a_micro_batch_ends_where_they_ended() -> None:
    growth = Growth(old={"m": 2, "e": 1}, ends={"m": {0: 5, 1: 3}, "e": {0: 7}})
    assert not growth.is_read({})
    assert not growth.is_read({"m": {0: 5, 1: 2}, "e": {0: 7}})
    assert not growth.is_read({"m": {0: 5, 1: 3}})
    assert growth.is_read({"m": {0: 6, 1: 3}, "e": {0: 7}})


@pytest.mark.parametrize("now", [{"m": 4, "e": 2}, {"m": 4}, {}])
def test_the_same_number_and_a_topic_of_which_kafka_says_nothing_are_no_change(now: dict[str, int]) -> None:
    assert changed({"m": 4, "e": 2}, now) is None


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_is_said_with_what_to_do(count: int) -> None:
    said = changed({"m": 4, "e": 2}, {"m": 4, "e": count})
    assert said is not None
    assert said.startswith(f"e has {count} partitions now, and had 2 when this engine started. It stops")
    assert "start it again" in said
