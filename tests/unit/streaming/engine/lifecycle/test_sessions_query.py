from typing import Any

import pyspark
import pytest
from structlog.testing import capture_logs

from streaming.config.settings import Settings
from streaming.engine.lifecycle.sessions_query import batch_bounds, log_worker_path
from streaming.engine.lifecycle.settings_log import pipeline_settings


def said_about_the_workers(*, lean_worker: bool) -> dict[str, Any]:
    pipeline = pipeline_settings(Settings(engine={"lean_worker": lean_worker}), commands_partitions=1)
    assert pipeline.lean_worker is lean_worker
    with capture_logs() as logs:
        log_worker_path(pipeline)
    (line,) = logs
    return dict(line)


def test_the_log_names_the_path_of_the_python_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pipeline_settings(Settings(), commands_partitions=1).lean_worker
    assert not pipeline_settings(Settings(engine={"lean_worker": False}), commands_partitions=1).lean_worker
    said = {"event": "python_workers", "log_level": "info"}
    assert said_about_the_workers(lean_worker=True) == {**said, "path": "lean"}
    assert said_about_the_workers(lean_worker=False) == {**said, "path": "stock", "reason": "engine.lean_worker = false"}
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    off = said_about_the_workers(lean_worker=True)
    assert off["path"] == "stock"
    assert "4.3.0" in off["reason"]


def test_a_micro_batch_has_the_configured_bounds_and_a_safe_first_limit() -> None:
    made = batch_bounds(Settings())
    assert (made.max_records, made.max_bytes, made.safe_limit) == (20_000, 64 << 20, (64 << 20) // 900_000)
    assert batch_bounds(Settings(engine={"max_offsets_per_trigger": 10})).safe_limit == 10
