from streaming.engine.pacing.short_timers import ShortTimers

LONGEST_MS, NEVER_MS = 5_000, 1 << 62


class Sessions:
    """A clock, and the earliest deadline of the micro-batch that has just ended."""

    def __init__(self) -> None:
        self.now_ms, self.earliest_ms = 1_000_000, NEVER_MS
        self.timers = ShortTimers(lambda: self.earliest_ms, lambda: self.now_ms, longest_pause_ms=LONGEST_MS)

    def batch(self, *, timer_ms: int | None) -> None:
        """A micro-batch of 100 ms, at the end of which the earliest timer has this time left."""
        self.timers.batch_starts()
        self.now_ms += 100
        self.earliest_ms = NEVER_MS if timer_ms is None else self.now_ms + timer_ms
        self.timers.batch_ended()


def test_a_timer_may_be_late_by_a_25th_of_its_length() -> None:
    sessions = Sessions()
    sessions.batch(timer_ms=2_000)
    assert sessions.timers.left_ms() == 2_080
    sessions.now_ms += 3_000
    assert sessions.timers.left_ms() == -920


def test_a_timer_that_was_due_when_a_micro_batch_started_is_over() -> None:
    sessions = Sessions()
    sessions.batch(timer_ms=2_000)
    sessions.now_ms += 1_950
    sessions.batch(timer_ms=None)
    assert sessions.timers.left_ms() == 30
    sessions.batch(timer_ms=None)
    assert sessions.timers.left_ms() > LONGEST_MS


def test_the_earliest_of_several_micro_batches_counts() -> None:
    sessions = Sessions()
    for timer_ms in 8_000, 2_000, None, 4_000:
        sessions.batch(timer_ms=timer_ms)
    assert sessions.timers.left_ms() == 2_080 - 200


def test_timers_that_the_longest_pause_serves_are_not_kept() -> None:
    sessions = Sessions()
    for _ in range(1_000):
        sessions.batch(timer_ms=25 * LONGEST_MS)
    assert sessions.timers.left_ms() > LONGEST_MS


def test_a_timer_that_is_overdue_at_the_end_leaves_no_pause() -> None:
    sessions = Sessions()
    sessions.batch(timer_ms=-50)
    assert sessions.timers.left_ms() == -50
