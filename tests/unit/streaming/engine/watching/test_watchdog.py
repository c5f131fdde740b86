"""streaming.engine.watching.watchdog; tests/spark/test_watchdog.py has a real engine."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streaming.config.settings import Settings
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.watchdog import HUNG, Hangs, Watchdog, report_hangs
from tests.support.waiting import DEADLINE_S

BATCH = BatchProgress(batch_id=1, started="", duration_ms=1)
END_OF_A_PROCESS = """
import subprocess, sys
from pathlib import Path
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.watchdog import end_process
subprocess.Popen(["sleep", "60"], start_new_session=True)
end_process(Path(sys.argv[1]), "because")
"""


def watchdog(hangs_after: str, told: list[str], happened: threading.Event | None = None) -> Watchdog:
    def end(reason: str) -> None:
        told.append(reason)
        if happened is not None:
            happened.set()

    engine = {"hangs_after_ms": hangs_after, "idle_trigger_interval_ms": 0, "trigger_interval_ms": 0}
    return Watchdog(Settings(engine=engine), kafka_answers=lambda: True, end=end)


def test_it_ends_an_engine_of_which_nothing_new_is_seen() -> None:
    told: list[str] = []
    happened = threading.Event()
    with watchdog("200ms", told, happened) as made:
        made.observe(BATCH)
        assert happened.wait(DEADLINE_S)
    assert len(told) == 1
    assert "after 1 of this engine" in told[0]


def test_it_may_be_off() -> None:
    told: list[str] = []
    with watchdog("0s", told) as made:
        made.poll(lambda: pytest.fail("nobody asks"))
        made.observe(BATCH)
    assert told == []


def test_a_spark_that_cannot_be_asked_gives_no_sign_of_work() -> None:
    told: list[str] = []
    happened = threading.Event()

    def work() -> object:
        raise OSError("the JVM is gone")

    with watchdog("200ms", told, happened) as made:
        while not happened.wait(0.01):
            made.poll(work)
    assert len(told) == 1


@pytest.mark.processes
def test_the_end_is_counted_kills_children_and_has_its_own_status(tmp_path: Path) -> None:
    Hangs(count=1).write(tmp_path)
    # A child that lived on would keep standard error open, and `run` waiting.
    ended = subprocess.run(
        [sys.executable, "-c", END_OF_A_PROCESS, tmp_path], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == HUNG
    assert "query_hangs" in ended.stdout
    assert "because" in ended.stdout
    hangs = report_hangs(tmp_path)
    assert (hangs.count, hangs.reason) == (2, "because")
