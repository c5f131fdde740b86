"""How many records the next micro-batch may take so that they are no more than so many bytes.

Spark takes a number of records of a topic, and shares it out over the partitions by what waits in each. So the number is sought
for which the shares of all partitions together fit. The sizes are known of what was looked at (waiting_records.py); every other
record counts as the largest that there can be, those included that arrive before the micro-batch is planned.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records that were looked at together, up to the offset `end`. size_bytes: of all of them, keys and headers included."""

    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One partition: the offsets of the first record that waits and of the one after the last. chunks: from `begin` on, without
    a gap; the first may have begun before it.
    """

    begin: int
    end: int
    chunks: Sequence[Chunk] = ()

    @property
    def count(self) -> int:
        return max(0, self.end - self.begin)

    @property
    def looked_at(self) -> int:
        """Of how many records from `begin` on the sizes are known."""
        return max(0, self.chunks[-1].end - self.begin) if self.chunks else 0

    def size_bytes(self, count: int, *, largest_bytes: int, unknown_bytes: int) -> int:
        """The first `count` records have at most so many bytes. largest_bytes: of any record. unknown_bytes: of one that was not
        looked at.
        """
        total, place, last = 0, self.begin, self.begin + count
        for chunk in self.chunks:
            if place >= last:
                return total
            total += min(chunk.size_bytes, max(0, min(chunk.end, last) - place) * largest_bytes)
            place = max(place, chunk.end)
        return total + max(0, last - place) * unknown_bytes


def share(limit: int, waiting: Waiting, total: int) -> int:
    """What Spark takes of one partition when a micro-batch takes `limit` of `total` records: at least one."""
    exact = limit * waiting.count / total
    return min(waiting.count, math.ceil(exact) if exact < 1 else math.floor(exact))


def records_that_fit(
    partitions: Sequence[Waiting], *, max_records: int, max_bytes: int, largest_bytes: int, unknown_bytes: int
) -> int:
    """The limit of the next micro-batch, between 1 and max_records: no more than max_bytes together, but for the one record of
    each partition that Spark takes in any case. largest_bytes, unknown_bytes: see `Waiting.size_bytes`.
    """
    total = sum(waiting.count for waiting in partitions)

    def fits(limit: int) -> bool:
        taken = sum(
            waiting.size_bytes(share(limit, waiting, total), largest_bytes=largest_bytes, unknown_bytes=unknown_bytes)
            for waiting in partitions
            if waiting.count
        )
        return taken + max(0, limit - total) * unknown_bytes <= max_bytes

    low, high = 1, max_records
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
