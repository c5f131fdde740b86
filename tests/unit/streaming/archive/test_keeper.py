"""The archive's keeper: what dies is started again, and nothing of it reaches the engine."""

import threading
from collections.abc import Callable
from typing import Any

from pyspark.errors import AnalysisException

from streaming.archive.keeper import ArchiveKeeper
from streaming.config.settings import Settings
from tests.support.waiting import DEADLINE_S, wait_until


class FakeQuery:
    def __init__(self, error: str | None) -> None:
        self._error = error
        self.isActive = error is None
        self.lastProgress = None
        self.status = {"isTriggerActive": False}
        self.stopped = False

    def exception(self) -> Any:
        return self._error

    def stop(self) -> None:
        self.stopped = True


def keeper(start: Callable[..., Any], **archive: object) -> ArchiveKeeper:
    return ArchiveKeeper(None, Settings(archive={"enabled": True} | archive), start_query=start, first_pause_s=0.01)  # type: ignore[arg-type]


def test_a_query_that_dies_is_reported_and_started_again() -> None:
    started: list[FakeQuery] = []

    def start(*_: object) -> FakeQuery:
        started.append(FakeQuery("disk full\n=== Streaming Query ===\nplan" if len(started) < 2 else None))
        return started[-1]

    with keeper(start) as kept:
        kept.start()
        wait_until(lambda: len(started) == 3, "the query is started again")
        assert kept.failures == 2
        assert kept.last_failure == "disk full"
    assert started[-1].stopped


def test_tables_that_cannot_be_made_are_tried_again_and_raise_nothing() -> None:
    attempts = threading.Semaphore(0)

    def start(*_: object) -> FakeQuery:
        attempts.release()
        raise AnalysisException("no such file system")

    with keeper(start) as kept:
        kept.start()
        assert attempts.acquire(timeout=DEADLINE_S)
        assert attempts.acquire(timeout=DEADLINE_S)
        wait_until(lambda: kept.failures >= 2, "two failures are counted")
    assert "no such file system" in (kept.last_failure or "")


def test_switched_off_it_starts_nothing() -> None:
    def start(*_: object) -> FakeQuery:
        raise AssertionError("started")

    with keeper(start, enabled=False) as kept:
        kept.start()
        assert kept.query is None


def test_a_running_micro_batch_ends_before_the_query_is_stopped() -> None:
    asked = 0

    class Busy(FakeQuery):
        @property
        def status(self) -> dict[str, bool]:
            nonlocal asked
            asked += 1
            return {"isTriggerActive": asked < 3}

        @status.setter
        def status(self, value: dict[str, bool]) -> None: ...

        def stop(self) -> None:
            assert asked == 3, "a micro-batch runs"
            super().stop()

    query = Busy(None)
    with keeper(lambda *_: query) as kept:
        kept.start()
        wait_until(lambda: kept.query is not None, "the query runs")
    assert query.stopped
