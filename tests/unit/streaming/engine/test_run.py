"""How many slots for tasks the engine asks Spark for, and what it tells the Python workers and the log about their path."""

import os
from typing import Any

import pyspark
import pytest
from structlog.testing import capture_logs

from streaming.config.settings import Settings
from streaming.engine.run import bounds, pipeline_settings, say_worker_path, spark_master


def master(
    monkeypatch: pytest.MonkeyPatch, cores: int, *, archive: bool, state_partitions: int = 2, given: str = "local[*]"
) -> str:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    engine = {"master": given, "state_partitions": state_partitions}
    return spark_master(Settings(engine=engine, archive={"enabled": archive}))


def test_the_archive_has_a_slot_that_the_sessions_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    assert master(monkeypatch, 2, archive=True) == "local[3]"
    assert master(monkeypatch, 4, archive=True, state_partitions=4) == "local[5]"
    assert master(monkeypatch, 16, archive=True) == "local[16]"


def test_without_the_archive_or_with_a_master_of_ones_own_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert master(monkeypatch, 2, archive=False) == "local[*]"
    assert master(monkeypatch, 2, archive=True, given="local[2]") == "local[2]"
    assert master(monkeypatch, 2, archive=True, given="yarn") == "yarn"


def test_a_micro_batch_has_the_configured_bounds_and_the_first_one_a_safe_limit() -> None:
    made = bounds(Settings())
    assert (made.max_records, made.max_bytes, made.safe_limit) == (20_000, 64 << 20, (64 << 20) // 900_000)
    assert bounds(Settings(engine={"max_offsets_per_trigger": 10})).safe_limit == 10


def said_about_the_workers(*, lean_worker: bool) -> dict[str, Any]:
    pipeline = pipeline_settings(Settings(engine={"lean_worker": lean_worker}), commands_partitions=1)
    assert pipeline.lean_worker is lean_worker
    with capture_logs() as logs:
        say_worker_path(pipeline)
    (line,) = logs
    return dict(line)


def test_the_log_says_which_path_the_python_workers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pipeline_settings(Settings(), commands_partitions=1).lean_worker
    assert not pipeline_settings(Settings(engine={"lean_worker": False}), commands_partitions=1).lean_worker
    said = {"event": "python_workers", "log_level": "info"}
    assert said_about_the_workers(lean_worker=True) == {**said, "path": "lean"}
    assert said_about_the_workers(lean_worker=False) == {**said, "path": "stock", "reason": "engine.lean_worker = false"}
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    off = said_about_the_workers(lean_worker=True)
    assert off["path"] == "stock"
    assert "4.3.0" in off["reason"]
