"""Sessions are counted at intervals; tests/spark/test_census.py counts real ones."""

import threading
import time

from pyspark.errors import PySparkException

from streaming.engine.watching.session_stats import SessionStats, SessionStatsCollector
from tests.support.waiting import DEADLINE_S, wait_until

EMPTY = SessionStats(
    sessions=0, connected=0, quarantined=0, inflight=0, queued=0, queued_bytes=0, oldest_unacknowledged_s=None, taken_s=1.0
)


def test_stats_are_collected_repeatedly_and_after_a_failure() -> None:
    answers = iter([PySparkException("no checkpoint yet")])
    told: list[SessionStats] = []

    def collect() -> SessionStats:
        for error in answers:
            raise error
        return EMPTY

    with SessionStatsCollector(collect, interval_s=0.001, on_stats=told.append, cancel=lambda: None) as taker:
        assert told == [], "not before `start`"
        taker.start()
        wait_until(lambda: len(told) >= 2, "two of them")


def test_an_interval_of_0_collects_nothing() -> None:
    told: list[SessionStats] = []
    with SessionStatsCollector(lambda: EMPTY, interval_s=0, on_stats=told.append, cancel=lambda: None) as taker:
        taker.start()
    assert told == []


def test_a_running_collection_is_cancelled_at_the_end() -> None:
    began, cancelled = threading.Event(), threading.Event()

    def collect() -> SessionStats:
        began.set()
        assert cancelled.wait(DEADLINE_S)
        raise PySparkException("cancelled")

    with SessionStatsCollector(collect, interval_s=60, on_stats=lambda stats: None, cancel=cancelled.set) as taker:
        taker.start()
        assert began.wait(DEADLINE_S)
    assert cancelled.is_set()


def test_a_slow_first_collection_does_not_delay_the_next_one() -> None:
    """With it, the third one would come after a minute and more."""
    began_s: list[float] = []
    pauses_s = iter((1.2, 0.0))

    def collect() -> SessionStats:
        began_s.append(time.monotonic())
        time.sleep(next(pauses_s, 0.0))
        return EMPTY

    with SessionStatsCollector(collect, interval_s=0.001, on_stats=lambda stats: None, cancel=lambda: None) as taker:
        taker.start()
        wait_until(lambda: len(began_s) >= 3, "three of them", within_s=30)
