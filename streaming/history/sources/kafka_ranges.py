"""Which records of a topic are read for a question, and since when they are all there."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum


class Cut(StrEnum):
    """Why older records of a partition are not read; the text is for people."""

    NOTHING = "all there ever were"
    RETENTION = "Kafka has deleted what is older"
    SINCE = "--since"
    BOUND = "--max-records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Some records of one partition: offsets start … end - 1. complete_since_ms: nothing that is newer is missing; None = nothing
    at all is.
    """

    topic: str
    partition: int
    start: int
    end: int
    cut: Cut
    complete_since_ms: int | None = None

    @property
    def count(self) -> int:
        """Offsets, so records at most: a topic has offsets without a record, too."""
        return max(0, self.end - self.start)


def since(topic: str, partition: int, *, beginning: int, end: int, first_since: int | None, since_ms: int | None) -> Range:
    """All that Kafka has from `since_ms` on. beginning: the oldest offset that it has. first_since: Kafka's answer for
    `since_ms`, None = no record is so new, or nobody asked.
    """
    if since_ms is not None:
        start = end if first_since is None else max(beginning, first_since)
        if start > beginning:
            return Range(topic=topic, partition=partition, start=start, end=end, cut=Cut.SINCE, complete_since_ms=since_ms)
    cut = Cut.RETENTION if beginning else Cut.NOTHING
    return Range(topic=topic, partition=partition, start=beginning, end=end, cut=cut)


def bounded(ranges: list[Range], max_records: int) -> list[Range]:
    """The newest of each partition, so that there are at most `max_records`; 0 = all. Each keeps the same share."""
    total = sum(one.count for one in ranges)
    if not max_records or total <= max_records:
        return ranges
    kept = [one.count * max_records // total for one in ranges]
    return [
        one if count == one.count else replace(one, start=one.end - count, cut=Cut.BOUND, complete_since_ms=None)
        for one, count in zip(ranges, kept, strict=True)
    ]


def complete_since_ms(ranges: Iterable[Range]) -> int | None:
    """Of all together: the latest of them."""
    return max((one.complete_since_ms for one in ranges if one.complete_since_ms is not None), default=None)


def described(ranges: list[Range]) -> str:
    """One topic, for people."""
    first = ranges[0]
    numbers = f"partition {first.partition}" if len(ranges) == 1 else f"{len(ranges)} partitions"
    records = f"{first.topic}: {numbers}, {sum(one.count for one in ranges):,} records"
    back_to_ms = complete_since_ms(ranges)
    if back_to_ms is None:
        return f"{records}, {Cut.NOTHING}"
    why = sorted({one.cut for one in ranges if one.complete_since_ms is not None})
    when = datetime.fromtimestamp(back_to_ms / 1_000, UTC)
    return f"{records}, back to {when:%Y-%m-%d %H:%M:%S} UTC ({'; '.join(why)})"
