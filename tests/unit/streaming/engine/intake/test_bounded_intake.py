from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from streaming.engine.intake.batch_size import BatchBounds, Chunk
from streaming.engine.intake.bounded_intake import TRUSTED_S, UNSEEN, BoundedIntake
from streaming.spark_internals.micro_batches import TopicRead

BOUNDS = BatchBounds(max_records=20_000, max_bytes=64 << 20, largest_bytes=900_000)
SAFE = 74


class Records:
    """Ten thousand records of one size behind whatever was taken."""

    def __init__(self) -> None:
        self.looks = 0
        self.fails = False
        self.closed = False
        self.size_bytes = 100
        self.end = 10_000

    def ends(self, topic: str, partitions: list[int]) -> dict[int, int]:
        if self.fails:
            raise ConnectionError("no Kafka")
        return dict.fromkeys(partitions, self.end)

    def measure(self, topic: str, number: int, offset: int) -> list[Chunk]:
        self.looks += 1
        assert offset < self.end
        return [Chunk(end=self.end, size_bytes=(self.end - offset) * self.size_bytes)]

    def close(self) -> None:
        self.closed = True


class Limits:
    def __init__(self) -> None:
        self.now: Mapping[str, int] = {}
        self.fail = False

    def set(self, limits: Mapping[str, int]) -> None:
        if self.fail:
            raise AttributeError("another Spark")
        self.now = limits


def taken(records: int, left: int = 0) -> dict[str, TopicRead]:
    """Describes a micro-batch that read `records` messages and left `left`; all events were read."""
    return {"messages": TopicRead(records=records, left=left, end={0: 0})}


@pytest.mark.promise("backlog-bytes")
def test_the_safe_limit_fits_whatever_the_records_are() -> None:
    assert BOUNDS.safe_limit == SAFE
    assert BatchBounds(max_records=10, max_bytes=64 << 20, largest_bytes=900_000).safe_limit == 10
    assert BatchBounds(max_records=10, max_bytes=1 << 20, largest_bytes=96 << 20).safe_limit == 1


def test_an_engine_with_little_to_do_measures_nothing() -> None:
    records, limits = Records(), Limits()
    BoundedIntake(BOUNDS, records).adjust(taken(SAFE - 1), limits.set)
    assert limits.now == {"messages": SAFE}
    assert not records.looks


def test_all_topics_are_measured_when_one_may_have_more() -> None:
    for last in (taken(SAFE), taken(0, left=1)):
        records, limits = Records(), Limits()
        BoundedIntake(BOUNDS, records).adjust(last | {"events": TopicRead(records=3, left=0, end={0: 8_000})}, limits.set)
        assert limits.now["messages"] >= 10_000
        assert limits.now["events"] >= 2_000, "what devices have answered meanwhile"
        assert records.looks == 2


def test_a_failed_measurement_sets_the_safe_limit_and_is_logged_once() -> None:
    records, limits = Records(), Limits()
    intake = BoundedIntake(BOUNDS, records)
    records.fails = True
    with capture_logs() as logs:
        intake.adjust(taken(SAFE), limits.set)
        intake.adjust(taken(SAFE), limits.set)
    assert limits.now["messages"] == SAFE
    assert [entry["event"] for entry in logs] == ["waiting_records_unknown"]
    records.fails = False
    intake.adjust(taken(SAFE), limits.set)
    assert limits.now["messages"] >= 10_000


def test_limits_that_cannot_be_set_do_not_stop_the_query() -> None:
    limits = Limits()
    limits.fail = True
    with capture_logs() as logs:
        BoundedIntake(BOUNDS, Records()).adjust(taken(0), limits.set)
    assert [entry["event"] for entry in logs] == ["limits_not_set"]


def test_a_burst_at_the_end_of_a_pause_is_measured() -> None:
    """The micro-batch before it has read little, so without this it would read a part."""
    records, limits = Records(), Limits()
    intake = BoundedIntake(BOUNDS, records)
    assert intake.await_burst(taken(1), lambda _: None, is_urgent=True)
    intake.adjust(taken(1), limits.set, is_burst=True)
    assert limits.now["messages"] >= 10_000
    records.end = 1
    assert not intake.await_burst(taken(1), lambda _: None, is_urgent=True), "one record is no burst"
    intake.adjust(taken(1), limits.set, is_burst=False)
    assert records.looks == 1


def test_what_has_collected_in_a_pause_is_a_burst_if_more_waits_than_is_read_without_measuring() -> None:
    records = Records()
    intake = BoundedIntake(BOUNDS, records)
    for end, is_burst in ((SAFE, False), (SAFE + 1, True)):
        records.end = end
        assert intake.await_burst(taken(1), lambda _: None, is_urgent=False) is is_burst
        assert intake.await_burst(taken(1), lambda _: None, is_urgent=True)


def test_a_burst_that_cannot_be_counted_does_not_wait() -> None:
    records, rests = Records(), []
    records.fails = True
    with capture_logs() as logs:
        assert not BoundedIntake(BOUNDS, records).await_burst(taken(1), rests.append, is_urgent=True)
    assert [log["event"] for log in logs] == ["waiting_records_unknown"]
    assert not rests


def test_after_the_end_nothing_is_asked() -> None:
    records, limits = Records(), Limits()
    intake = BoundedIntake(BOUNDS, records)
    intake.close()
    assert records.closed
    with capture_logs() as logs:
        intake.adjust(taken(SAFE), limits.set)
    assert limits.now["messages"] == SAFE
    assert not logs


def test_after_small_records_more_are_read_unmeasured_for_a_while() -> None:
    records, limits, now_s = Records(), Limits(), [0.0]
    intake = BoundedIntake(BOUNDS, records, monotonic_s=lambda: now_s[0])
    intake.adjust(taken(SAFE), limits.set)
    intake.adjust(taken(UNSEEN * SAFE - 1), limits.set)
    assert limits.now["messages"] == UNSEEN * SAFE
    assert records.looks == 1
    now_s[0] = TRUSTED_S
    intake.adjust(taken(SAFE - 1), limits.set)
    assert (limits.now["messages"], records.looks) == (UNSEEN * SAFE, 1), "little to do, whatever it is"
    records.size_bytes, records.end = 200_000, 11_000
    intake.adjust({"messages": TopicRead(records=SAFE, left=0, end={0: 10_000})}, limits.set)
    assert (limits.now["messages"], records.looks) == (SAFE, 2), "what has become large is looked at"
    intake.adjust(taken(SAFE - 1), limits.set)
    assert limits.now["messages"] == SAFE


def test_more_than_the_unmeasured_records_are_measured() -> None:
    for records_taken, left in ((UNSEEN * SAFE, 0), (1, 1)):
        records, limits = Records(), Limits()
        intake = BoundedIntake(BOUNDS, records)
        intake.adjust(taken(SAFE), limits.set)
        records.end = 20_000
        intake.adjust({"messages": TopicRead(records=records_taken, left=left, end={0: 10_000})}, limits.set)
        assert records.looks == 2
        assert limits.now["messages"] >= 10_000


def test_waiting_records_that_do_not_fit_get_the_safe_limit() -> None:
    records, limits = Records(), Limits()
    intake = BoundedIntake(BOUNDS, records)
    intake.adjust(taken(SAFE), limits.set)
    records.end, records.size_bytes = 10_400, 250_000
    intake.adjust({"messages": TopicRead(records=1, left=400, end={0: 10_000})}, limits.set)
    assert limits.now["messages"] == SAFE
