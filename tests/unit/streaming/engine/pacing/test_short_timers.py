from streaming.engine.pacing.short_timers import EXACT_MS, ShortTimers

LONGEST_MS, NEVER_MS, LONG_MS = 5_000, 1 << 62, 16_000


class Sessions:
    """A clock, and the earliest deadline of the micro-batch that has just ended."""

    def __init__(self) -> None:
        self.now_ms, self.earliest_ms = 1_000_000, NEVER_MS
        self.timers = ShortTimers(lambda: self.earliest_ms, lambda: self.now_ms, longest_pause_ms=LONGEST_MS)

    def batch(self, *, timer_ms: int | None, took_ms: int = 100) -> None:
        """A micro-batch, at the end of which the earliest timer has this time left."""
        self.timers.batch_starts()
        self.now_ms += took_ms
        self.earliest_ms = NEVER_MS if timer_ms is None else self.now_ms + timer_ms
        self.timers.batch_ended()


def test_a_short_timer_is_not_late_and_a_long_one_by_a_quarter() -> None:
    for timer_ms, left_ms in (2_000, 2_000), (EXACT_MS, EXACT_MS), (LONG_MS, LONG_MS * 5 // 4):
        sessions = Sessions()
        sessions.batch(timer_ms=timer_ms)
        assert sessions.timers.left_ms() == left_ms
        sessions.now_ms += left_ms + 500
        assert sessions.timers.left_ms() == -500


def test_a_timer_that_is_due_later_than_the_start_has_not_fired() -> None:
    sessions = Sessions()
    sessions.batch(timer_ms=2_000)
    sessions.now_ms += 1_950
    sessions.batch(timer_ms=None)
    assert sessions.timers.left_ms() == -50


def test_after_the_earliest_pauses_are_a_quarter_of_the_time_since_it_was_set() -> None:
    sessions = Sessions()
    sessions.batch(timer_ms=2_000)
    sessions.now_ms += 2_000
    pauses_ms = []
    while (left_ms := sessions.timers.left_ms()) < LONGEST_MS:
        sessions.now_ms += left_ms
        sessions.batch(timer_ms=None, took_ms=0)
        pauses_ms.append(left_ms)
    assert pauses_ms[:4] == [0, 500, 625, 781]
    assert sum(pauses_ms) >= 4 * LONGEST_MS - 2_000, "until the longest pause is a quarter, too"
    assert sessions.timers.left_ms() > 1 << 61


def test_a_timer_of_another_session_is_late_by_a_quarter_of_its_length_at_most() -> None:
    for other_ms in range(2_000, 4 * LONGEST_MS, 50):
        sessions = Sessions()
        sessions.batch(timer_ms=2_000)
        set_ms = sessions.now_ms
        while sessions.now_ms < set_ms + other_ms:
            sessions.now_ms += max(0, min(sessions.timers.left_ms(), LONGEST_MS))
            sessions.batch(timer_ms=None, took_ms=0)
        assert sessions.now_ms - (set_ms + other_ms) <= other_ms / 4


def test_the_earliest_of_several_micro_batches_counts() -> None:
    sessions = Sessions()
    for timer_ms in 8_000, 2_000, None, 4_000:
        sessions.batch(timer_ms=timer_ms)
    assert sessions.timers.left_ms() == 2_000 - 200


def test_a_timer_is_known_until_it_has_fired() -> None:
    sessions = Sessions()
    for timer_ms in 8_000, None, None:
        sessions.batch(timer_ms=timer_ms)
    assert sessions.timers.left_ms() == 8_000 - 200


def test_timers_that_the_longest_pause_serves_are_not_kept() -> None:
    sessions = Sessions()
    for _ in range(1_000):
        sessions.batch(timer_ms=4 * LONGEST_MS)
    assert sessions.timers.left_ms() > LONGEST_MS


def test_a_timer_that_is_overdue_at_the_end_leaves_no_pause() -> None:
    sessions = Sessions()
    sessions.batch(timer_ms=-50)
    assert sessions.timers.left_ms() == -50
