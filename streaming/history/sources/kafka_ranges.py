"""Computes which records of a topic are read for a question, and since when they are complete."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from streaming.history.times import shown_utc


class CutReason(StrEnum):
    """Why older records of a partition are not read; the text is for people."""

    NOTHING = "all there ever were"
    RETENTION = "Kafka has deleted what is older"
    SINCE = "--since"
    MAX_RECORDS = "--max-records"
    ARCHIVED = "older ones are in the tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedUntil:
    """The newest record of a partition that is in a table.

    Attributes:
        time_ms: When it happened, ms since 1970.
    """

    offset: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records of one partition, with the offsets start … end - 1.

    Attributes:
        complete_since_ms: No record that is newer is missing, ms since 1970; None = no record at all is missing.
    """

    topic: str
    partition: int
    start: int
    end: int
    cut: CutReason
    complete_since_ms: int | None = None

    @property
    def count(self) -> int:
        """The number of offsets. There are fewer records: the end of a transaction has an offset too."""
        return max(0, self.end - self.start)


def range_since(
    topic: str, partition: int, *, beginning: int, end: int, first_since: int | None, since_ms: int | None
) -> OffsetRange:
    """Returns the range of all records from `since_ms` on.

    Args:
        beginning: The oldest offset that Kafka has.
        first_since: Kafka's offset for `since_ms`; None = no record is so new, or `since_ms` is None.
    """
    if since_ms is not None:
        start = end if first_since is None else max(beginning, first_since)
        if start > beginning:
            cut = CutReason.SINCE
            return OffsetRange(topic=topic, partition=partition, start=start, end=end, cut=cut, complete_since_ms=since_ms)
    cut = CutReason.RETENTION if beginning else CutReason.NOTHING
    return OffsetRange(topic=topic, partition=partition, start=beginning, end=end, cut=cut)


def after_archived(one: OffsetRange, until: ArchivedUntil, first_later: int | None) -> OffsetRange:
    """Returns the part of a range that is not in the tables yet; all of it for a topic that was made anew since.

    Args:
        first_later: Kafka's offset for a time when the archived record had certainly been written; None = no record is so new.
    """
    is_same_topic = until.offset < one.end and (first_later is None or first_later > until.offset)
    if not is_same_topic or until.offset < one.start:
        return one
    return replace(one, start=until.offset + 1, cut=CutReason.ARCHIVED, complete_since_ms=None)


def newest(ranges: list[OffsetRange], max_records: int) -> list[OffsetRange]:
    """Returns the newest part of each range, the same share of each, at most `max_records` together; 0 = all."""
    total = sum(one.count for one in ranges)
    if not max_records or total <= max_records:
        return ranges
    kept = [one.count * max_records // total for one in ranges]
    return [
        one if count == one.count else replace(one, start=one.end - count, cut=CutReason.MAX_RECORDS, complete_since_ms=None)
        for one, count in zip(ranges, kept, strict=True)
    ]


def complete_since_ms(ranges: Iterable[OffsetRange]) -> int | None:
    """Returns since when the ranges together are complete; None = no record is missing."""
    return max((one.complete_since_ms for one in ranges if one.complete_since_ms is not None), default=None)


def described(ranges: list[OffsetRange]) -> str:
    """Returns a line for people about the ranges of one topic."""
    first = ranges[0]
    numbers = f"partition {first.partition}" if len(ranges) == 1 else f"{len(ranges)} partitions"
    records = f"{first.topic}: {numbers}, {sum(one.count for one in ranges):,} records"
    back_to_ms = complete_since_ms(ranges)
    if back_to_ms is None and any(one.cut is CutReason.ARCHIVED for one in ranges):
        return f"{records}; {CutReason.ARCHIVED}"
    if back_to_ms is None:
        return f"{records}, {CutReason.NOTHING}"
    why = sorted({one.cut for one in ranges if one.complete_since_ms is not None})
    when = shown_utc(back_to_ms).rpartition(".")[0]
    return f"{records}, back to {when} UTC ({'; '.join(why)})"
