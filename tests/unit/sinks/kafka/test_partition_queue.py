from dataclasses import dataclass

from sinks.kafka.partition_queue import PartitionQueue
from sinks.kafka.record_producer import MAX_GROUP_BYTES, MAX_GROUP_RECORDS, MAX_ONE_BY_ONE


@dataclass(eq=False)
class Sized:
    size_bytes: int


def queue() -> PartitionQueue[Sized]:
    return PartitionQueue(topic="t", number=0)


def test_a_partition_is_busy_with_five_records_or_while_others_wait() -> None:
    records = queue()
    for _ in range(MAX_ONE_BY_ONE):
        assert not records.is_busy
        records.sent[Sized(1)] = None
    assert records.is_busy
    records.sent.clear()
    records.held.append(Sized(1))
    assert records.is_busy


def test_a_group_has_a_limit_of_records_and_of_bytes() -> None:
    records = queue()
    records.held += [Sized(1) for _ in range(MAX_GROUP_RECORDS + 1)]
    assert len(records.pop_group()) == MAX_GROUP_RECORDS
    assert len(records.pop_group()) == 1
    records.held += [Sized(MAX_GROUP_BYTES), Sized(1), Sized(MAX_GROUP_BYTES + 1)]
    assert [len(records.pop_group()) for _ in range(3)] == [1, 1, 1]


def test_pop_all_returns_the_oldest_first() -> None:
    records, first, second = queue(), Sized(1), Sized(2)
    records.held.append(second)
    records.sent[first] = None
    assert records.pop_all() == [first, second]
    assert records.pop_all() == []
