from collections.abc import Iterator

import pytest

from streaming.engine.pacing.paced_query import Pace, PauseEnd
from streaming.spark_internals.checkpoint import Offsets
from streaming.spark_internals.micro_batches import CommittedBatch, TopicRead

TRIGGER_MS, IDLE_MS, LAZY_MS = 100, 1_000, 600
END: Offsets = {"events": {0: 5, 1: 7}, "messages": {0: 3}}
READ = {topic: TopicRead(records=0, left=0, end=end) for topic, end in END.items()}
QUIET = CommittedBatch(batch_id=1, did_something=False, topics=READ)


def busy(batch_id: int) -> CommittedBatch:
    """A micro-batch that did something; with the number of the last one, the trigger after it ran none."""
    return CommittedBatch(batch_id=batch_id, did_something=True, topics=READ)


BUSY = busy(2)


class Clock:
    """Monotonic, in milliseconds; arrivals let it pass. waits, rests: how long each of them was asked to be."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.waits: list[int] = []
        self.rests: list[int] = []
        self.arrives_after_ms: Iterator[int] = iter(())

    def __call__(self) -> int:
        return self.now_ms

    def wait(self, end: Offsets, timeout_s: float) -> None:
        assert end == END
        self.waits.append(round(timeout_s * 1_000))
        self.now_ms += min(self.waits[-1], next(self.arrives_after_ms, 1 << 40))

    def rest(self, timeout_s: float) -> None:
        self.rests.append(round(timeout_s * 1_000))
        self.now_ms += self.rests[-1]

    is_closed = False

    def close(self) -> None: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock, trigger_interval_ms=TRIGGER_MS, idle_trigger_interval_ms=IDLE_MS, now_ms=clock.now_ms)


def test_after_a_micro_batch_that_did_something_the_trigger_counts(pace: Pace, clock: Clock) -> None:
    clock.now_ms += 60_000
    pace.pause(BUSY, clock.now_ms + 30, clock)
    assert (clock.rests, clock.waits) == ([30], [])


def test_a_record_starts_no_micro_batch_within_the_trigger_interval(pace: Pace, clock: Clock) -> None:
    clock.now_ms += 60_000
    clock.arrives_after_ms = iter((0,))
    before_ms = clock.now_ms
    pace.pause(QUIET, clock.now_ms + 30, clock)
    assert (clock.rests, clock.now_ms - before_ms) == ([30], 30)


def test_after_a_long_busy_micro_batch_the_next_one_starts_at_once(pace: Pace, clock: Clock) -> None:
    pace.pause(BUSY, clock.now_ms - 1, clock)
    assert clock.waits == []


def test_a_trigger_without_a_micro_batch_is_followed_by_a_long_pause(pace: Pace, clock: Clock) -> None:
    pace.pause(busy(7), clock.now_ms, clock)
    assert clock.waits == []
    for _ in range(3):
        pace.pause(busy(7), clock.now_ms, clock)
    assert clock.waits == [IDLE_MS] * 3
    pace.pause(busy(8), clock.now_ms, clock)
    assert clock.waits == [IDLE_MS] * 3


def test_a_record_ends_a_pause(pace: Pace, clock: Clock) -> None:
    clock.now_ms += 60_000
    clock.arrives_after_ms = iter((7,))
    before_ms = clock.now_ms
    assert pace.pause(QUIET, clock.now_ms, clock) is PauseEnd.URGENT
    assert (clock.waits, clock.now_ms - before_ms) == ([IDLE_MS], 7)


def test_between_busy_micro_batches_is_no_pause(pace: Pace, clock: Clock) -> None:
    assert pace.pause(BUSY, clock.now_ms, clock) is PauseEnd.NO_PAUSE


class KnownUrgency:
    """wakes_at_ms: when the next wake-up comes, by the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_known = True
        self.since_ms = -1_000_000
        self.wakes_at_ms = 1 << 40

    def wait(self, after_ms: int, timeout_s: float) -> bool:
        until_ms = self._clock.now_ms + round(timeout_s * 1_000)
        if self.wakes_at_ms <= until_ms:
            self._clock.now_ms, self.since_ms = max(self._clock.now_ms, self.wakes_at_ms), self.wakes_at_ms
        else:
            self._clock.now_ms = until_ms
        return self.since_ms > after_ms


class TestLaziness:
    @pytest.fixture
    def urgency(self, clock: Clock) -> KnownUrgency:
        return KnownUrgency(clock)

    @pytest.fixture
    def pace(self, clock: Clock, urgency: KnownUrgency) -> Pace:
        return Pace(
            clock,
            trigger_interval_ms=TRIGGER_MS,
            idle_trigger_interval_ms=IDLE_MS,
            now_ms=clock.now_ms,
            urgency=urgency,
            lazy_ms=LAZY_MS,
        )

    @staticmethod
    def pause_ms(pace: Pace, batch: CommittedBatch, clock: Clock, *, batch_ms: int = 50) -> int:
        """Returns how long the pause after a micro-batch is."""
        clock.now_ms += batch_ms
        ended_ms = clock.now_ms
        pace.pause(batch, clock.now_ms, clock)
        return clock.now_ms - ended_ms

    def test_records_that_are_not_urgent_wait_until_the_oldest_is_old(self, pace: Pace, clock: Clock) -> None:
        """The oldest one may have come as soon as the last micro-batch was planned."""
        assert [self.pause_ms(pace, busy(n), clock) for n in range(3)] == [LAZY_MS - 50] * 3

    @pytest.mark.parametrize(
        ("batch_ms", "pause_ms"),
        [(LAZY_MS // 2, LAZY_MS * 3 // 2), (LAZY_MS, 2 * LAZY_MS), (2 * LAZY_MS, LAZY_MS), (3 * LAZY_MS, 0), (9 * LAZY_MS, 0)],
    )
    def test_a_long_micro_batch_is_followed_by_a_rest(self, pace: Pace, clock: Clock, batch_ms: int, pause_ms: int) -> None:
        """At most three times `lazy_ms` from start to start, so that an engine with much to do gets on."""
        assert self.pause_ms(pace, BUSY, clock, batch_ms=batch_ms) == pause_ms

    def test_a_wake_up_ends_the_pause(self, pace: Pace, clock: Clock, urgency: KnownUrgency) -> None:
        urgency.wakes_at_ms = clock.now_ms + 50 + 7
        assert self.pause_ms(pace, BUSY, clock) == 7

    @pytest.mark.parametrize("batch", [QUIET, BUSY])
    def test_a_pause_says_whether_something_urgent_has_ended_it(
        self, pace: Pace, clock: Clock, urgency: KnownUrgency, batch: CommittedBatch
    ) -> None:
        clock.arrives_after_ms = iter((1, 1))
        assert pace.pause(batch, clock.now_ms, clock) is PauseEnd.OLD
        urgency.wakes_at_ms = clock.now_ms + 7
        assert pace.pause(batch, clock.now_ms, clock) is PauseEnd.URGENT

    def test_a_wake_up_during_the_micro_batch_leaves_no_pause(self, pace: Pace, clock: Clock, urgency: KnownUrgency) -> None:
        self.pause_ms(pace, busy(1), clock)
        urgency.wakes_at_ms = clock.now_ms + 10
        clock.now_ms += 50
        before_ms = clock.now_ms
        assert pace.pause(busy(2), clock.now_ms, clock) is PauseEnd.NO_PAUSE
        assert clock.now_ms == before_ms

    def test_pauses_grow_by_a_quarter_after_something_urgent(self, pace: Pace, clock: Clock, urgency: KnownUrgency) -> None:
        urgency.since_ms = clock.now_ms
        pauses_ms = [self.pause_ms(pace, busy(n), clock) for n in range(12)]
        assert pauses_ms == sorted(pauses_ms)
        assert (pauses_ms[0], pauses_ms[-1]) == (TRIGGER_MS, LAZY_MS - 50)

    def test_a_record_in_a_quiet_time_waits_for_others_or_for_a_wake_up(
        self, pace: Pace, clock: Clock, urgency: KnownUrgency
    ) -> None:
        clock.now_ms += 60_000
        clock.arrives_after_ms = iter((7, 7))
        assert self.pause_ms(pace, QUIET, clock) == 7 + LAZY_MS
        urgency.wakes_at_ms = clock.now_ms + 50 + 7 + 3
        assert self.pause_ms(pace, QUIET, clock) == 7 + 3

    def test_without_wake_ups_of_all_everything_is_urgent(self, pace: Pace, clock: Clock, urgency: KnownUrgency) -> None:
        urgency.is_known = False
        assert self.pause_ms(pace, BUSY, clock) == 0
        clock.now_ms += 60_000
        clock.arrives_after_ms = iter((7,))
        assert self.pause_ms(pace, QUIET, clock) == 7

    def test_a_micro_batch_that_left_records_is_followed_by_the_next(self, pace: Pace, clock: Clock) -> None:
        left = CommittedBatch(
            batch_id=3, did_something=True, topics=READ | {"events": TopicRead(records=9, left=1, end=END["events"])}
        )
        assert self.pause_ms(pace, left, clock) == 0

    def test_a_stop_ends_the_pause(self, pace: Pace, clock: Clock) -> None:
        clock.is_closed = True
        assert self.pause_ms(pace, BUSY, clock) == 0
