"""Computes the partition of a key as Kafka's own default partitioner does, so that everybody who asks agrees."""

from confluent_kafka import murmur2


def partition_of(key: bytes, partitions: int) -> int:
    """Returns 0 … partitions - 1."""
    number: int = murmur2(key, partitions)
    return number
