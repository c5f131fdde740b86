"""SessionsQuery with a query that fails: it is started again if a record that Spark cannot read was the reason, else it ends."""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.config.settings import Settings
from streaming.engine.errors import QueryFailed
from streaming.engine.lifecycle import sessions_query
from streaming.engine.lifecycle.sessions_query import SessionsQuery
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.operator.reported_drops import Drops
from streaming.engine.progress import BatchProgress

SETTINGS = Settings()
PIPELINE = pipeline_settings(SETTINGS, commands_partitions=1)
DAY_MS = 86_400_000


@dataclass
class Query:
    """A query of Spark."""

    isActive: bool = True  # noqa: N815 - Spark's name
    name: str = "sessions"
    batches: list[Any] = field(default_factory=list)

    def exception(self) -> str:
        return "java.lang.OutOfMemoryError: Java heap space"

    def new(self) -> list[Any]:
        """Returns the micro-batches that have ended, as a ProgressReader does."""
        ended, self.batches = self.batches, []
        return ended


@dataclass
class World:
    """A query as SessionsQuery uses it. bombs: how often a plan must be shortened. done: what was done, in order."""

    bombs: int = 0
    done: list[str] = field(default_factory=list)
    backlog_bytes: int = 0
    query: Query = field(default_factory=Query)
    lineages: list[str] = field(default_factory=list)

    def shorten_plan(self, pipeline: Any) -> bool:
        self.bombs -= 1
        return self.bombs >= 0

    def pass_over(self, pipeline: Any, ends: Any) -> int:
        self.done.append("passed over")
        return 1

    def put_in_force(self, pipeline: Any, *, is_planned_anew: bool) -> Any:
        assert is_planned_anew == bool(pipeline.checkpoint_lineage)
        self.lineages.append(pipeline.checkpoint_lineage)
        return pipeline

    def start(self, *_: Any, trigger_interval_ms: int) -> Query:
        self.done.append("planned batch only" if trigger_interval_ms == DAY_MS else "started")
        self.query = Query()
        return self.query

    def stop(self, *, patience_s: float) -> None:
        self.done.append("stopped")

    def forget(self) -> None:
        self.backlog_bytes = 0

    def write_wake_up(self, settings: Settings) -> None:
        self.done.append("woken up")

    def made(self, monkeypatch: pytest.MonkeyPatch) -> SessionsQuery:
        fakes = {
            "WaitingRecords": lambda *_, **__: None,
            "LoggedOffsets": lambda *_: None,
            "SetAside": lambda *_: self,
            "PacedQuery": lambda *_, **__: self,
            "ProgressReader": lambda query: query,
            "ReportedDeadlines": lambda _: SimpleNamespace(pop=None),
            "ReportedDrops": lambda _: SimpleNamespace(pop=Drops),
            "ReportedCounts": lambda _: SimpleNamespace(pop=Counter),
            "ReportedBacklogs": lambda _: SimpleNamespace(total_bytes=lambda: self.backlog_bytes, forget=self.forget),
            "start_sessions": self.start,
            "write_wake_up": self.write_wake_up,
            "end_offsets": lambda *_: {},
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(sessions_query, name, fake)
        return SessionsQuery(SimpleNamespace(sparkContext=None), SETTINGS, self, PIPELINE, {}, {})  # type: ignore[arg-type]


def test_a_failed_query_is_started_again_behind_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    made = world.made(monkeypatch)
    made.check()
    world.bombs, world.query.isActive = 1, False
    made.check()
    assert world.done == ["started", "stopped", "planned batch only"]
    made.check()  # its micro-batch has not ended
    world.query.batches = ["batch"]
    assert made.new_batches() == ["batch"]
    made.keep_pace()  # would begin another micro-batch
    made.check()
    assert world.done[3:] == ["stopped", "passed over", "woken up", "started"]
    first, anew, last = world.lineages
    assert (first, last) == ("", "")
    assert anew


def test_a_start_inspects_the_micro_batch_that_was_not_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(bombs=1)
    world.made(monkeypatch)
    assert world.done == ["planned batch only"]


def test_a_query_that_failed_for_another_reason_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    made = world.made(monkeypatch)
    world.query.isActive = False
    with pytest.raises(QueryFailed, match="OutOfMemoryError"):
        made.check()
    assert world.done == ["started"]


def test_a_log_that_cannot_be_read_leaves_the_plan_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: World, pipeline: Any) -> bool:
        raise OSError("Kafka is away")

    monkeypatch.setattr(World, "shorten_plan", fail)
    world = World()
    world.made(monkeypatch)
    assert world.done == ["started"]


def test_each_report_of_a_micro_batch_has_the_size_of_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(backlog_bytes=7)
    made = world.made(monkeypatch)
    world.query.batches = [BatchProgress(batch_id=number, started="", duration_ms=1) for number in range(2)]
    assert [batch.backlog_bytes for batch in made.new_batches()] == [7, 7]


def test_a_shortened_micro_batch_makes_the_reported_queues_void(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(backlog_bytes=7)
    made = world.made(monkeypatch)
    assert world.backlog_bytes == 7
    world.bombs, world.query.isActive = 1, False
    made.check()
    assert world.backlog_bytes == 0
