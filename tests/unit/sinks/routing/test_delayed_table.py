"""sinks.routing.delayed_table: what waits for its time, and what is due."""

from sinks.routing.delayed_table import DelayedTable
from state.model import Message
from state.records.delayed import DelayedPublication


def waiting(due_ms: int, partition: int = 0) -> DelayedPublication:
    return DelayedPublication(
        message=Message(message_id="m", topic="t", payload=b"", accepted_ms=0), due_ms=due_ms, partition=partition
    )


def test_what_is_due_comes_in_the_order_of_its_times_until_it_is_deleted() -> None:
    table = DelayedTable()
    table.put(b"b", waiting(20), 1)
    table.put(b"a", waiting(10), 2)
    table.put(b"c", waiting(30), 4)
    assert not table.has_due(9)
    assert [key for key, _ in table.due(20, {0})] == [b"a", b"b"]
    assert [key for key, _ in table.due(20, {0})] == [b"a", b"b"]
    table.delete(b"a")
    table.delete(b"unknown")
    assert [key for key, _ in table.due(20, {0})] == [b"b"]
    table.delete(b"b")
    assert not table.has_due(29)
    assert (len(table), table.size_bytes, b"c" in table) == (1, 4, True)


def test_what_came_from_the_partition_of_another_matcher_is_left_to_it() -> None:
    table = DelayedTable()
    table.put(b"a", waiting(10, partition=1), 1)
    assert table.due(10, {0, 2}) == []
    assert len(table.due(10, {1})) == 1


def test_a_replaced_one_is_not_due_at_its_former_time() -> None:
    table = DelayedTable()
    table.put(b"a", waiting(10), 1)
    table.put(b"a", waiting(20), 3)
    assert table.due(10, {0}) == []
    assert [delayed.due_ms for _, delayed in table.due(20, {0})] == [20]
    table.put(b"a", waiting(30), 3)
    assert table.due(20, {0}) == []
    assert (len(table), table.size_bytes) == (1, 3)
