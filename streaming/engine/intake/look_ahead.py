"""The limit of the next micro-batch for one topic, by looking at as much of what waits as the answer needs.

What was looked at and not taken is remembered, so each record is looked at about once. All partitions are looked at about equally
far, farther in each round: Spark takes a share of each, and what is known of one is of no use while nothing is known of another.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from streaming.engine.intake.batch_size import Chunk, Waiting, records_that_fit, share

LONGEST_LOOK_S: Final = 2.0
"""What was not looked at by then counts as large. Nothing else happens meanwhile."""
_FIRST_ROUND: Final = 8_000
"""Records of all partitions together that are looked at first."""
_FARTHER: Final = 4


class Records(Protocol):
    """Knows the records of a topic (waiting_records.py)."""

    def ends(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """The offset after the last record of each partition."""

    def look(self, topic: str, number: int, offset: int, count: int) -> list[Chunk]:
        """The sizes of some of the next `count` records of a partition, from that offset on; empty when nothing came."""

    def rest(self) -> None:
        """The end of a look."""

    def close(self) -> None: ...


class LookAhead:
    """One topic. max_records, max_bytes: of a micro-batch. largest_bytes: of a record."""

    def __init__(
        self,
        topic: str,
        records: Records,
        *,
        max_records: int,
        max_bytes: int,
        largest_bytes: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._records = records
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._largest_bytes = largest_bytes
        self._monotonic_s = monotonic_s
        self._known: dict[int, list[Chunk]] = {}
        self.mean_bytes: float | None = None
        """Of a record, in the poll that was looked at last; None before anything was."""
        self.looked_s = monotonic_s()
        self.takes_all = False
        """Whether the last limit leaves nothing of what waited."""

    def limit(self, begin: Mapping[int, int]) -> int:
        """How many records the next micro-batch may take. begin: by partition, the first that waits. Raises what `records` do."""
        try:
            return self._limit(begin)
        finally:
            self._records.rest()

    def _limit(self, begin: Mapping[int, int]) -> int:
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
            if self._fit(waiting, self._largest_bytes) >= min(self._max_records, sum(part.count for part in waiting.values())):
                break
            # If all that is not known had no size at all, this many would fit: no need to look beyond.
            most = min(reach, self._fit(waiting, 0))
            total = sum(part.count for part in waiting.values())
            open_ = [
                number
                for number, part in waiting.items()
                if number not in silent and part.count and part.looked_at < share(most, part, total)
            ]
            if self._monotonic_s() >= deadline_s or (not open_ and most < reach):
                break
            if not open_:
                reach *= _FARTHER
            for number in open_:
                wanted = waiting[number].begin + share(most, waiting[number], total)
                if not self._look(number, waiting[number].begin, wanted, self._max_bytes // len(open_), deadline_s):
                    silent.add(number)
        limit = self._fit(waiting, self._largest_bytes)
        self.takes_all = limit >= sum(part.count for part in waiting.values())
        return limit

    def _look(self, number: int, begin: int, wanted: int, enough_bytes: int, deadline_s: float) -> bool:
        """Looks at a partition up to the offset `wanted`, or until enough_bytes more are known. False when nothing came."""
        known, seen = self._known[number], 0
        place = known[-1].end if known else begin
        while place < wanted and seen < enough_bytes and self._monotonic_s() < deadline_s:
            found = self._records.look(self._topic, number, place, wanted - place)
            if not found:
                return False
            known += found
            size_bytes = sum(chunk.size_bytes for chunk in found)
            self.mean_bytes = size_bytes / max(1, found[-1].end - place)
            self.looked_s = self._monotonic_s()
            place = found[-1].end
            seen += size_bytes
        return True

    def _fit(self, waiting: Mapping[int, Waiting], unknown_bytes: int) -> int:
        return records_that_fit(
            list(waiting.values()),
            max_records=self._max_records,
            max_bytes=self._max_bytes,
            largest_bytes=self._largest_bytes,
            unknown_bytes=unknown_bytes,
        )
