import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inflight.local.child_log import ChildLog
from tests.support.waiting import DEADLINE_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.log"


def contents(path: Path) -> list[bytes]:
    """Returns the content of LOG.1, if there is one, and of LOG."""
    return [file.read_bytes() for file in (path.with_name(f"{path.name}.1"), path) if file.exists()]


def test_a_long_log_is_put_aside_while_it_is_written(path: Path) -> None:
    log = ChildLog(path, limit_bytes=20)
    for number in range(5):
        log.write(b"line %d...\n" % number)
    assert contents(path) == [b"line 2...\nline 3...\n", b"line 4...\n"]


def test_a_log_of_an_earlier_run_is_continued(path: Path) -> None:
    path.write_bytes(b"before\n")
    ChildLog(path).write(b"after\n")
    assert contents(path) == [b"before\nafter\n"]


def test_a_line_longer_than_the_limit_leaves_no_empty_file(path: Path) -> None:
    log = ChildLog(path, limit_bytes=10)
    log.write(b"x" * 30 + b"\n")
    assert contents(path) == [b"x" * 30 + b"\n"]


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "missing" / "log")
    log.write(b"lost\n")
    (tmp_path / "missing").mkdir()
    log.write(b"kept\n")
    assert contents(tmp_path / "missing" / "log") == [b"kept\n"]


@pytest.mark.processes
def test_no_line_of_a_running_child_is_lost_or_torn_apart(path: Path) -> None:
    """Two processes share the standard error, and the output of the first one comes from another thread."""
    lines = 20_000
    log = ChildLog(path, limit_bytes=400_000)
    code = f"""
import subprocess, sys, os
other = subprocess.Popen([sys.executable, "-c", "import os\\nfor n in range({lines}): os.write(2, b'jvm %05d\\\\n' % n)"])
for n in range({lines}): os.write(2, b"own %05d\\n" % n)
other.wait()
"""
    printed = threading.Thread(target=lambda: [log.write(b"out %05d\n" % number) for number in range(lines)])
    with log.standard_error() as descriptor:
        child = subprocess.Popen([sys.executable, "-c", code], stderr=descriptor)
    printed.start()
    assert child.wait(DEADLINE_S) == 0
    printed.join(DEADLINE_S)
    log.join(DEADLINE_S)
    before, after = contents(path)
    assert max(len(before), len(after)) <= 400_000
    found = (before + after).decode().splitlines()
    assert sorted(found) == sorted(f"{kind} {number:05}" for kind in ("jvm", "own", "out") for number in range(lines))
    assert [line for line in found if line.startswith("own")] == [f"own {number:05}" for number in range(lines)]


@pytest.mark.processes
def test_what_a_killed_child_has_said_last_is_in_the_log(path: Path) -> None:
    log = ChildLog(path)
    with log.standard_error() as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "import os; os.write(2, b'last words'); os.kill(os.getpid(), 9)"], stderr=descriptor
        )
    assert child.wait(DEADLINE_S) == -9
    log.join(DEADLINE_S)
    assert contents(path) == [b"last words\n"]
