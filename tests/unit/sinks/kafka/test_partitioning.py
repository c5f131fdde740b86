from kafka.partitioner import DefaultPartitioner

from sinks.kafka.partitioning import partition_of


class SevenPartitions:
    """kafka-python's ClusterMetadata, as far as its partitioner uses it."""

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(7))

    available_partitions_for_topic = partitions_for_topic


def test_partitions_are_those_of_kafkas_own_partitioner() -> None:
    for number in range(200):
        key = f"device-{number}".encode()
        assert partition_of(key, 7) == DefaultPartitioner().partition("t", key, key, None, None, SevenPartitions())
