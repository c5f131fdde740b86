"""Says which micro-batch read a record, and at which times micro-batches ran, from what the engine has recorded in the ledger."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from state.records.ledger import LedgerRow
from streaming.engine.batch_record import offsets_read

Place: TypeAlias = tuple[str, int]
"""A topic and one of its partitions."""

NEVER_MS: Final = 1 << 62


@dataclass(slots=True)
class _Read:
    """Ranges of one partition in order: first offset, offset after the last one, time of the micro-batch."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    batch_ms: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """The micro-batches of a log, up to `end_ms`.

    Attributes:
        times_ms: All known times of micro-batches, in order.
        read: What they read; without a partition of which nothing was recorded.
        end_ms: The last micro-batch of which everything is known.
    """

    times_ms: Sequence[int]
    read: Mapping[Place, _Read]
    end_ms: int

    @classmethod
    def of(cls, rows: Iterable[LedgerRow], other_times_ms: Iterable[int] = (), until_ms: int = NEVER_MS) -> "MicroBatches":
        """Returns the micro-batches of recorded rows.

        Args:
            rows: Those of streaming/engine/batch_record.py, in any order, with copies.
            other_times_ms: Times of activations from the ledger, for records of which nothing was recorded.
            until_ms: Later micro-batches are left out.
        """
        newest = {row.batch_ms: row for row in rows}
        ordered = [newest[batch_ms] for batch_ms in sorted(newest)]
        read: defaultdict[Place, _Read] = defaultdict(_Read)
        for row in ordered:
            for topic, partitions in offsets_read(row).items():
                for number, (start, end) in partitions.items():
                    ranges = read[topic, number]
                    ranges.starts.append(start)
                    ranges.ends.append(end)
                    ranges.batch_ms.append(row.batch_ms)
        times = {time_ms for row in ordered for time_ms in (row.time_ms, row.batch_ms)} | set(other_times_ms)
        end_ms = min(until_ms, ordered[-1].batch_ms if ordered else max(times, default=0))
        return cls(times_ms=sorted(time_ms for time_ms in times if time_ms <= end_ms), read=dict(read), end_ms=end_ms)

    def covers(self, place: Place, offset: int) -> bool:
        """Returns True if the micro-batch that read this record, or an earlier one of the partition, was recorded."""
        ranges = self.read.get(place)
        return ranges is not None and ranges.starts[0] <= offset

    def time_of(self, place: Place, offset: int, timestamp_ms: int) -> int | None:
        """Returns the time of the micro-batch that read a record; None = it was read after `end_ms`, or not at all.

        Args:
            timestamp_ms: Kafka's time of the record. If nothing was recorded of it, the next known micro-batch has read it.
        """
        ranges = self.read.get(place)
        if ranges is not None and offset >= ranges.starts[0]:
            index = bisect_right(ranges.ends, offset)
            if index == len(ranges.ends):
                return None
            if ranges.starts[index] <= offset:
                return ranges.batch_ms[index] if ranges.batch_ms[index] <= self.end_ms else None
        index = bisect_left(self.times_ms, timestamp_ms)
        return self.times_ms[index] if index < len(self.times_ms) else None

    def first_after(self, time_ms: int) -> int | None:
        """Returns the first known micro-batch after this time: Spark calls a session whose timer is before the micro-batch."""
        index = bisect_right(self.times_ms, time_ms)
        return self.times_ms[index] if index < len(self.times_ms) else None
