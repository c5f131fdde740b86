"""Ctrl-C in a terminal, which reaches a whole process group: engines end cleanly, and nothing logs a traceback."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.engine_topics import EngineTopics
from tests.support.inflight_process import InflightProcess
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.timeout(400)]
PREFIX = "ctrl-c"


def interrupt(process: InflightProcess) -> int:
    """Presses Ctrl-C. Returns the exit status."""
    os.killpg(process.process.pid, signal.SIGINT)
    return process.process.wait(DEADLINE_S)


@contextmanager
def messages(topics: EngineTopics) -> Iterator[None]:
    """Sends messages for the length of the block."""
    stopping = threading.Event()

    def run() -> None:
        number = 0
        while not stopping.wait(0.05):
            topics.send(b"%d" % (number := number + 1))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_ctrl_c_ends_an_engine_with_an_archive_and_its_standby(kafka: SharedKafka, tmp_path: Path) -> None:
    settings = [
        f"kafka.bootstrap_servers={kafka.bootstrap_servers}",
        f"topics.prefix={PREFIX}",
        "archive.enabled=true",
        "archive.trigger_interval_ms=1s",
        "engine.driver_memory=512m",
        f"engine.data_dir={tmp_path}",
    ]
    one = [*settings, "metrics.engine_port=0"]
    made = InflightProcess(tmp_path, "topics", "topics", settings=settings)
    made.spawn()
    assert made.process.wait(DEADLINE_S) == 0, made.log_tail()
    commits = tmp_path / "checkpoint" / "archive" / "commits"
    offsets = tmp_path / "checkpoint" / "archive" / "offsets"
    with (
        InflightProcess(tmp_path, "first", "engine", "--standby", settings=one) as first,
        InflightProcess(tmp_path, "second", "engine", "--standby", settings=one) as second,
    ):
        assert interrupt(second) == 0, second.log_tail()
        topics = EngineTopics(kafka, PREFIX)
        topics.connect(1)
        with messages(topics):
            wait_until(lambda: commits.is_dir() and len(list(commits.glob("[0-9]*"))) > 1, "the archive is at work")

            def is_writing() -> bool:
                return len(list(offsets.glob("[0-9]*"))) > len(list(commits.glob("[0-9]*")))

            wait_until(is_writing, "a micro-batch of the archive runs")
            assert interrupt(first) == 0, first.log_tail()
    for log in (*tmp_path.glob("*.log"), *tmp_path.glob("logs/*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        assert "Traceback" not in text, f"{log}: {text[-4_000:]}"
        assert "archive: the query died" not in text, f"{log}: {text[-4_000:]}"
