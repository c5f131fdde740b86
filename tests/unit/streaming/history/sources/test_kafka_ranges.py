from streaming.history.sources.kafka_ranges import (
    ArchivedUntil,
    CutReason,
    OffsetRange,
    after_archived,
    complete_since_ms,
    described,
    newest,
    range_since,
)


def range_of(
    partition: int, start: int, end: int, cut: CutReason = CutReason.NOTHING, complete_ms: int | None = None
) -> OffsetRange:
    return OffsetRange(topic="t", partition=partition, start=start, end=end, cut=cut, complete_since_ms=complete_ms)


def test_without_since_everything_is_read_and_retention_is_detected() -> None:
    whole = range_since("t", 0, beginning=0, end=9, first_since=None, since_ms=None)
    assert (whole.start, whole.count, whole.cut) == (0, 9, CutReason.NOTHING)
    rest = range_since("t", 0, beginning=4, end=9, first_since=None, since_ms=None)
    assert (rest.start, rest.count, rest.cut) == (4, 5, CutReason.RETENTION)


def test_since_begins_at_kafkas_offset_for_that_time() -> None:
    part = range_since("t", 0, beginning=2, end=9, first_since=6, since_ms=1_000)
    assert (part.start, part.cut, part.complete_since_ms) == (6, CutReason.SINCE, 1_000)
    nothing = range_since("t", 0, beginning=2, end=9, first_since=None, since_ms=1_000)
    assert (nothing.count, nothing.complete_since_ms) == (0, 1_000)
    older = range_since("t", 0, beginning=2, end=9, first_since=2, since_ms=1_000)
    assert (older.start, older.cut) == (2, CutReason.RETENTION)


def test_the_bound_keeps_the_newest_of_each_partition() -> None:
    ranges = [range_of(0, 0, 100), range_of(1, 0, 300), range_of(2, 5, 5)]
    kept = newest(ranges, 40)
    assert [(one.start, one.end) for one in kept] == [(90, 100), (270, 300), (5, 5)]
    assert [one.cut for one in kept] == [CutReason.MAX_RECORDS, CutReason.MAX_RECORDS, CutReason.NOTHING]
    assert newest(ranges, 400) == ranges
    assert newest(ranges, 0) == ranges


def test_ranges_are_complete_since_the_latest_of_their_times() -> None:
    assert complete_since_ms([range_of(0, 0, 1), range_of(1, 0, 1)]) is None
    assert (
        complete_since_ms(
            [range_of(0, 0, 1), range_of(1, 3, 4, CutReason.RETENTION, 7), range_of(2, 3, 4, CutReason.RETENTION, 5)]
        )
        == 7
    )


def test_a_range_is_described_with_its_size_and_its_reach() -> None:
    assert described([range_of(3, 0, 1_234)]) == "t: partition 3, 1,234 records, all there ever were"
    said = described([range_of(0, 0, 1), range_of(1, 3, 4, CutReason.MAX_RECORDS, 1_790_000_000_000)])
    assert said == "t: 2 partitions, 2 records, back to 2026-09-21 14:13:20 UTC (--max-records)"


def test_what_is_archived_is_left_out_unless_the_topic_is_another() -> None:
    until, whole = ArchivedUntil(offset=5, time_ms=0), range_of(0, 2, 9)
    for first_later in 6, None:
        rest = after_archived(whole, until, first_later)
        assert (rest.start, rest.end, rest.cut) == (6, 9, CutReason.ARCHIVED)
    assert after_archived(whole, until, 5) == whole, "offset 5 was written much later: by a topic that was made anew"
    assert after_archived(range_of(0, 0, 5), until, None) == range_of(0, 0, 5), "the topic is shorter than it was"
    assert after_archived(range_of(0, 7, 9), until, None) == range_of(0, 7, 9), "Kafka has deleted more than is archived"
    assert described([after_archived(whole, until, None)]) == "t: partition 0, 3 records; older ones are in the tables"
