"""A query hangs: the watchdog ends the engine, and the next engine continues."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from streaming.engine.watching.watchdog import HUNG, Hangs
from tests.spark.child_engine import Engine, engine
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE_S = 10


def workers(process: Engine) -> list[psutil.Process]:
    """Spark's Python workers, and the process that forks them."""
    children = [child for child in psutil.Process(process.process.pid).children(recursive=True) if is_alive(child)]
    return [child for child in children if "pyspark" in " ".join(child.cmdline()) and child.name().startswith("python")]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("frozen", ["workers", "jvm"])
@pytest.mark.promise("hanging-query")
def test_an_engine_that_hangs_is_ended_and_continues_at_its_next_start(kafka: SharedKafka, tmp_path: Path, frozen: str) -> None:
    topics = EngineTopics(kafka, f"hangs-{frozen}")
    settings = topics.settings(tmp_path, hangs_after_ms=f"{PATIENCE_S}s")
    with engine(settings) as first:
        topics.connect(1)
        topics.send(b"1")
        topics.sent(1)
        wait_until(lambda: bool(workers(first)), "the Python workers")
        everything = psutil.Process(first.process.pid).children(recursive=True)
        jvm = [child for child in everything if child.name() == "java"]
        for process in workers(first) if frozen == "workers" else jvm:
            os.kill(process.pid, signal.SIGSTOP)
        topics.send(b"2")
        assert first.process.wait(6 * PATIENCE_S) == HUNG
        assert "query_hangs" in first.read_log()
        wait_until(lambda: not any(is_alive(child) for child in everything), "it takes with it what it has started")
    assert Hangs.read(tmp_path).count == 1
    with engine(settings) as second:
        wait_until(lambda: b"2" in {publish.payload for publish in topics.sent(0)}, "the next message")
        assert second.stop() == 0


def test_an_idle_engine_does_not_hang(kafka: SharedKafka, tmp_path: Path) -> None:
    with engine(EngineTopics(kafka, "hangs-not").settings(tmp_path, hangs_after_ms=f"{PATIENCE_S}s")) as idle:
        with pytest.raises(subprocess.TimeoutExpired):
            idle.process.wait(2 * PATIENCE_S)
        assert idle.stop() == 0
    assert Hangs.read(tmp_path).count == 0
