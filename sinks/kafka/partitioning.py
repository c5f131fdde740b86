"""Which partition a key has: the same as Kafka's own default partitioner says, so that everybody who asks agrees."""

from functools import lru_cache
from typing import Final

from kafka.partitioner import murmur2

_KEYS_REMEMBERED: Final = 65_536


@lru_cache(maxsize=_KEYS_REMEMBERED)
def partition_of(key: bytes, partitions: int) -> int:
    """0 … partitions - 1. Remembered, because the hash in Python costs more than the rest of a send."""
    hashed: int = murmur2(key) & 0x7FFFFFFF
    return hashed % partitions
