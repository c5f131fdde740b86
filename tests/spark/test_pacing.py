"""The pace of micro-batches in a real Spark: none without need, and one at once for a record."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streaming.engine.operator.by_batch import BatchSettings, OperatorByBatch
from streaming.engine.operator.reported_deadlines import ReportedDeadlines
from streaming.engine.operator.session_operator import Function
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.paced_query import PacedQuery
from tests.spark.conftest import Pipeline, newest_batch, session_timers
from tests.support.waiting import DEADLINE_S, wait_until

LONG_MS, HOUR_MS = 240_000, 3_600_000


class CalmUrgency:
    """Knows of nothing urgent until `wakes` is set."""

    is_known = True
    since_ms = 0

    def __init__(self) -> None:
        self.wakes = threading.Event()

    def wait(self, after_ms: int, timeout_s: float) -> bool:
        return self.wakes.wait(timeout_s)


@contextmanager
def paced(
    pipeline: Pipeline, function: Function | None = None, *, trigger_interval_ms: int, **others: Any
) -> Iterator[PacedQuery]:
    """The query, started, with the longest of idle pauses; stopped in the engine's order."""
    query = pipeline.start(function)
    pipeline.connect("c", clean_start=True)
    pipeline.await_batches(1)
    kafka_options = {"bootstrap_servers": pipeline.bootstrap_servers}
    intervals = {"trigger_interval_ms": trigger_interval_ms, "idle_trigger_interval_ms": HOUR_MS}
    with PacedQuery(query, kafka_options, **intervals, **others) as pace:
        pace.start()
        yield pace
    pipeline.stop()


def await_a_pause(pipeline: Pipeline) -> None:
    """Returns when there has been no micro-batch for a second: Spark's own trigger is a tenth of that."""
    last, since, deadline = pipeline.committed(), time.monotonic(), time.monotonic() + DEADLINE_S
    while time.monotonic() - since < 1:
        pipeline.check()
        assert time.monotonic() < deadline, "micro-batches go on without need"
        if pipeline.committed() != last or newest_batch(pipeline.checkpoint / "offsets") != last:
            last, since = pipeline.committed(), time.monotonic()
        time.sleep(0.01)


@pytest.mark.promise("idle-engine")
def test_a_record_starts_a_micro_batch_at_once_and_nothing_else_does(pipeline: Pipeline) -> None:
    """A micro-batch that did nothing is followed by a pause of minutes, if no record comes."""
    with paced(pipeline, trigger_interval_ms=LONG_MS) as query:
        for number in range(1, 3):
            await_a_pause(pipeline)
            sent = time.monotonic()
            pipeline.send_message("c", b"%d" % number)
            pipeline.publishes(number)
            assert time.monotonic() - sent < LONG_MS / 2_000
        assert query.may_have_news()


def test_a_record_waits_for_others_until_a_wake_up_comes(pipeline: Pipeline) -> None:
    urgency = CalmUrgency()
    with paced(pipeline, trigger_interval_ms=LONG_MS, urgency=urgency, lazy_ms=HOUR_MS):
        await_a_pause(pipeline)
        before = pipeline.committed()
        pipeline.send_message("c", b"1")
        await_a_pause(pipeline)
        assert pipeline.committed() == before
        urgency.wakes.set()
        pipeline.publishes(1)


@pytest.mark.servers
@pytest.mark.promise("engine-stop")
def test_a_stop_waits_for_the_end_of_the_micro_batch(pipeline: Pipeline) -> None:
    """The first stop is in a micro-batch, which has begun when its offsets are there, the second in a pause."""

    def planned() -> int:
        return newest_batch(pipeline.checkpoint / "offsets")

    for number in range(2):
        with paced(pipeline, trigger_interval_ms=100) as query:
            await_a_pause(pipeline)
            before = planned()
            if number == 0:
                pipeline.send_message("c", b"1")
                wait_until(lambda before=before: planned() > before, "the next micro-batch", check=pipeline.check)
            query.stop(patience_s=DEADLINE_S)
            assert pipeline.committed() == planned()


@pytest.mark.promise("idle-engine")
def test_a_timer_fires_in_a_pause(pipeline: Pipeline) -> None:
    """A message that expires after a second, in a session that nobody else calls. Only its deadline ends a pause of an hour."""
    deadlines, clock = ReportedDeadlines(pipeline.spark.sparkContext), EngineClock()
    function = OperatorByBatch(BatchSettings(current=pipeline.settings), deadlines.accumulator)
    timers = session_timers(pipeline, clock, longest_pause_ms=HOUR_MS)
    with timers, paced(pipeline, function, trigger_interval_ms=100, clock=clock, timers=timers, pop_reports=deadlines.pop):
        timers.start()
        await_a_pause(pipeline)
        pipeline.send_message("absent", b"short", ("expiration", b"1000"))
        (receipt,) = pipeline.read(pipeline.settings.topics.receipts, 1)
        assert b"expired" in (receipt.value or b"")


def test_an_idle_query_works_regularly(pipeline: Pipeline) -> None:
    timers = session_timers(pipeline, EngineClock(), longest_pause_ms=500)
    with timers, paced(pipeline, trigger_interval_ms=100, timers=timers):
        timers.start()
        target = pipeline.committed() + 3
        wait_until(lambda: pipeline.committed() >= target, "micro-batches without a record of ours", check=pipeline.check)
