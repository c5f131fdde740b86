"""Computes how many records the next micro-batch may read so that they stay within a number of bytes.

Spark takes a number of records of a topic and distributes it over the partitions by what waits in each. So the number is sought
for which the shares of all partitions fit together. The sizes of measured records are known (waiting_records.py). Every other
record counts as the largest possible one, including records that arrive before the micro-batch is planned.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBounds:
    """The most that a micro-batch reads of each topic.

    Attributes:
        largest_bytes: The size of the largest possible record.
    """

    max_records: int
    max_bytes: int
    largest_bytes: int

    @property
    def safe_limit(self) -> int:
        """Returns the number of records that fit whatever their sizes are."""
        return max(1, min(self.max_records, self.max_bytes // self.largest_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records that were measured together, up to the offset `end`.

    Attributes:
        size_bytes: The sum of their sizes, keys and headers included.
    """

    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The unread records of one partition.

    Attributes:
        begin: The offset of the first.
        end: The offset after the last.
        chunks: Measured from `begin` on, without a gap; the first may begin before it.
    """

    begin: int
    end: int
    chunks: Sequence[Chunk] = ()

    @property
    def count(self) -> int:
        return max(0, self.end - self.begin)

    @property
    def measured(self) -> int:
        """The number of records, from the start of the backlog, whose sizes are known."""
        return max(0, self.chunks[-1].end - self.begin) if self.chunks else 0

    def size_bytes(self, count: int, *, largest_bytes: int, unknown_bytes: int) -> int:
        """Returns an upper bound for the size of the first `count` records.

        Args:
            unknown_bytes: Counted for an unmeasured record.
        """
        total, offset, last = 0, self.begin, self.begin + count
        for chunk in self.chunks:
            if offset >= last:
                return total
            total += min(chunk.size_bytes, max(0, min(chunk.end, last) - offset) * largest_bytes)
            offset = max(offset, chunk.end)
        return total + max(0, last - offset) * unknown_bytes


def share(limit: int, waiting: Waiting, total: int) -> int:
    """Returns what Spark reads of one partition when a micro-batch reads `limit` of `total` records: at least one."""
    exact = limit * waiting.count / total
    return min(waiting.count, math.ceil(exact) if exact < 1 else math.floor(exact))


def records_that_fit(partitions: Sequence[Waiting], bounds: BatchBounds, *, unknown_bytes: int) -> int:
    """Returns the limit of the next micro-batch, between 1 and `bounds.max_records`.

    So many records have at most `bounds.max_bytes`, except for the one record of each partition that Spark reads in any case.
    """
    total = sum(waiting.count for waiting in partitions)

    def fits(limit: int) -> bool:
        size_bytes = sum(
            waiting.size_bytes(share(limit, waiting, total), largest_bytes=bounds.largest_bytes, unknown_bytes=unknown_bytes)
            for waiting in partitions
            if waiting.count
        )
        return size_bytes + max(0, limit - total) * unknown_bytes <= bounds.max_bytes

    low, high = 1, bounds.max_records
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
