import time
from collections.abc import Callable
from typing import Any

import pytest

from streaming.engine.pacing.paced_query import PacedQuery, PauseEnd
from streaming.spark_internals.micro_batches import CommittedBatch, last_committed_batch
from tests.unit.streaming.spark_internals.java_objects import QUERY

TRIGGER_MS, HOUR_MS = 100, 3_600_000


class Pace:
    """Records how long it was asked to wait. ended: what it says."""

    def __init__(self, ended: PauseEnd = PauseEnd.NO_PAUSE) -> None:
        self.waits_ms: list[int] = []
        self.ended = ended

    def pause(self, batch: CommittedBatch, due_ms: int, now: Callable[[], int]) -> PauseEnd:
        self.waits_ms.append(due_ms - now())
        return self.ended


class Intake:
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def adjust(self, read: Any, set_limits: Any, *, is_burst: bool) -> None:
        self.told.append((read, is_burst))

    def await_burst(self, read: Any, rest: Any, *, is_urgent: bool) -> bool:
        self.told.append("an urgent burst?" if is_urgent else "a burst?")
        return True


class Limits:
    def set(self, limits: Any) -> None: ...


def paced(intake: Any = None) -> Any:
    return PacedQuery(QUERY, {}, trigger_interval_ms=TRIGGER_MS, idle_trigger_interval_ms=HOUR_MS, intake=intake)


@pytest.mark.promise("idle-engine")
def test_a_wall_clock_that_is_set_back_does_not_stop_the_micro_batches() -> None:
    """Spark computed the target before, so that it is hours away."""
    query = paced()
    query._pace = Pace()
    query.pause(HOUR_MS)
    assert query._pace.waits_ms[0] <= TRIGGER_MS


def test_without_a_pace_it_waits_for_the_trigger() -> None:
    began = time.monotonic()
    paced().pause(HOUR_MS)
    assert TRIGGER_MS / 1_000 <= time.monotonic() - began < HOUR_MS / 1_000


def test_after_the_pause_the_intake_gets_what_was_read() -> None:
    intake = Intake()
    query = paced(intake)
    query._pace, query._limits = Pace(), Limits()
    query.pause(0)
    assert intake.told == [(last_committed_batch(QUERY).topics, False)]


@pytest.mark.parametrize(("ended", "asked"), [(PauseEnd.URGENT, "an urgent burst?"), (PauseEnd.OLD, "a burst?")])
def test_after_a_pause_the_intake_looks_for_a_burst(ended: PauseEnd, asked: str) -> None:
    intake = Intake()
    query = paced(intake)
    query._pace, query._limits = Pace(ended), Limits()
    query.pause(0)
    assert intake.told == [asked, (last_committed_batch(QUERY).topics, True)]


def test_a_query_that_stops_looks_for_no_burst() -> None:
    """No micro-batch follows the look, which takes seconds when Kafka does not answer."""
    intake = Intake()
    query = paced(intake)
    query._pace, query._limits = Pace(PauseEnd.OLD), Limits()
    query._is_holding = True
    query._released.set()
    query.pause(0)
    assert intake.told == [(last_committed_batch(QUERY).topics, False)]
