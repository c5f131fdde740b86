"""Finds the limit of the next micro-batch for one topic; measures as many waiting records as that needs.

Sizes of records that were measured and not read are remembered, so each record is measured about once. All partitions are
measured about equally far, farther in each round: Spark reads a share of each, so knowing one of them alone is of no use.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from streaming.engine.intake.batch_size import BatchBounds, Chunk, Waiting, records_that_fit, share
from streaming.engine.intake.waiting_records import WaitingRecords

LONGEST_LOOK_S: Final = 2.0
"""Records that were not measured by then count as large. The query waits meanwhile."""
_FIRST_ROUND: Final = 8_000
"""Records of all partitions together that the first round measures."""
_FARTHER: Final = 4


class LookAhead:
    """The waiting records of one topic."""

    def __init__(
        self, topic: str, records: WaitingRecords, bounds: BatchBounds, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._topic = topic
        self._records = records
        self._bounds = bounds
        self._monotonic_s = monotonic_s
        self._known: dict[int, list[Chunk]] = {}
        self.mean_bytes: float | None = None
        """The mean size of a record in the newest measurement; None before the first."""
        self.measured_s = monotonic_s()
        self.covers_all = False
        """True if the last limit includes everything that waited."""

    def limit(self, begin: Mapping[int, int]) -> int:
        """Returns how many records the next micro-batch may read. Raises what `records` raises.

        Args:
            begin: The first unread offset by partition.
        """
        largest_bytes = self._bounds.largest_bytes
        deadline_s = self._monotonic_s() + LONGEST_LOOK_S
        ends = self._records.ends(self._topic, sorted(begin))
        self._known = {
            number: [chunk for chunk in self._known.get(number, ()) if chunk.end > offset] for number, offset in begin.items()
        }
        silent: set[int] = set()
        reach = _FIRST_ROUND
        while True:
            waiting = {
                number: Waiting(begin=offset, end=ends[number], chunks=self._known[number]) for number, offset in begin.items()
            }
            total = sum(part.count for part in waiting.values())
            limit = self._fit(waiting, largest_bytes)
            if limit >= min(self._bounds.max_records, total):
                break
            # So many would fit if all unmeasured records were empty: there is no need to measure beyond.
            most = min(reach, self._fit(waiting, 0))
            open_ = [
                number
                for number, part in waiting.items()
                if number not in silent and part.count and part.measured < share(most, part, total)
            ]
            if self._monotonic_s() >= deadline_s or (not open_ and most < reach):
                break
            if not open_:
                reach *= _FARTHER
            for number in open_:
                wanted = waiting[number].begin + share(most, waiting[number], total)
                enough_bytes = self._bounds.max_bytes // len(open_)
                if not self._measure(number, waiting[number].begin, wanted, enough_bytes, deadline_s):
                    silent.add(number)
        self.covers_all = limit >= total
        return limit

    def _measure(self, number: int, begin: int, wanted: int, enough_bytes: int, deadline_s: float) -> bool:
        """Measures a partition up to the offset `wanted`, or until `enough_bytes` more are known. Returns False if none came."""
        known, seen = self._known[number], 0
        offset = known[-1].end if known else begin
        while offset < wanted and seen < enough_bytes and self._monotonic_s() < deadline_s:
            found = self._records.measure(self._topic, number, offset)
            if not found:
                return False
            known += found
            size_bytes = sum(chunk.size_bytes for chunk in found)
            self.mean_bytes = size_bytes / max(1, found[-1].end - offset)
            self.measured_s = self._monotonic_s()
            offset = found[-1].end
            seen += size_bytes
        return True

    def _fit(self, waiting: Mapping[int, Waiting], unknown_bytes: int) -> int:
        return records_that_fit(list(waiting.values()), self._bounds, unknown_bytes=unknown_bytes)
