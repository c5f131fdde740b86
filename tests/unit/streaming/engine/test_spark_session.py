"""The Spark session leaves the signals of the process as they are."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from streaming.engine import spark_session as module
from streaming.engine.spark_options import SparkSettings


def test_ctrl_c_stays_with_the_program_that_starts_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    builder: SimpleNamespace = SimpleNamespace(
        appName=lambda name: builder, getOrCreate=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    monkeypatch.setattr(module, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(module, "launch_spark_jvm", lambda *_, **__: {})
    monkeypatch.setattr(module, "connect_jvm", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    module.spark_session(SparkSettings(checkpoint_location=str(tmp_path), log_file=tmp_path / "spark.log"), None)
    assert signal.getsignal(signal.SIGINT) is before, "PySpark has a handler of its own, which cancels all jobs"
