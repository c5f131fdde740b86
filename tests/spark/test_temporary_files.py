"""Temporary files of Spark whose process is killed, with a JVM of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import spark_process


def start(checkpoint: Path) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        [sys.executable, "-m", spark_process.__name__, str(checkpoint)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.servers
def test_the_next_start_removes_what_a_killed_spark_has_left(tmp_path: Path) -> None:
    first, abandoned = start(tmp_path)
    os.killpg(first.pid, signal.SIGKILL)  # the JVM, too
    first.communicate()
    assert list(abandoned.glob("spark-*")), "files of Spark are there"
    second, mine = start(tmp_path)
    try:
        assert list(mine.glob("spark-*"))
        assert not abandoned.exists()
    finally:
        second.communicate("")
    assert not mine.exists(), "a clean exit leaves nothing"
