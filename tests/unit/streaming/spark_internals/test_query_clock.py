"""The clock that Spark's trigger waits with, without Spark."""

import time
from types import SimpleNamespace
from typing import Any

from streaming.engine.intake.bounded_intake import Taken
from streaming.engine.pacing.pace import LastBatch
from streaming.spark_internals.query_clock import QueryClock, last_batch, last_taken

TRIGGER_MS, HOUR_MS = 100, 3_600_000


class Getters:
    """A Java object: every value is behind a method."""

    def __init__(self, **values: object) -> None:
        for name, value in values.items():
            setattr(self, name, lambda value=value: value)


PROGRESS = Getters(
    numInputRows=7,
    stateOperators=[],
    sources=[
        Getters(numInputRows=4, endOffset='{"a.messages":{"0":5,"1":9}}', latestOffset='{"a.messages":{"0":5,"1":12}}'),
        Getters(numInputRows=3, endOffset='{"a.events":{"0":3}}', latestOffset="{}"),
    ],
)


def query() -> Any:
    return SimpleNamespace(_jsq=Getters(lastProgress=PROGRESS))


class Pace:
    """Records how long it was asked to wait."""

    def __init__(self) -> None:
        self.waits_ms: list[int] = []

    def pause(self, batch: LastBatch, due_ms: int, now: Any) -> None:
        self.waits_ms.append(due_ms - now())


def test_a_wall_clock_that_is_set_back_does_not_stop_the_micro_batches() -> None:
    """Spark computed the target before, so that it is hours away."""
    pace = Pace()
    clock = QueryClock(query(), pace, trigger_interval_ms=TRIGGER_MS)  # type: ignore[arg-type]
    clock.waitTillTime(clock.getTimeMillis() + HOUR_MS)
    assert pace.waits_ms[0] <= TRIGGER_MS


def test_without_a_pace_it_waits_for_the_trigger() -> None:
    clock = QueryClock(query(), None, trigger_interval_ms=TRIGGER_MS)
    began = time.monotonic()
    clock.waitTillTime(clock.getTimeMillis() + HOUR_MS)
    assert TRIGGER_MS / 1_000 <= time.monotonic() - began < HOUR_MS / 1_000


def test_after_the_pause_it_tells_what_the_last_micro_batch_took() -> None:
    told: list[dict[str, Taken]] = []
    clock = QueryClock(query(), Pace(), trigger_interval_ms=TRIGGER_MS, before_batch=told.append)  # type: ignore[arg-type]
    clock.waitTillTime(clock.getTimeMillis())
    assert told == [last_taken(PROGRESS)]
    assert told[0] == {
        "a.messages": Taken(records=4, left=3, end={0: 5, 1: 9}),
        "a.events": Taken(records=3, left=0, end={0: 3}),
    }
    assert last_batch(PROGRESS) == LastBatch(did_something=True, end={"a.messages": {0: 5, 1: 9}, "a.events": {0: 3}})
