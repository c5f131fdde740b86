"""streaming.engine.watching.processes"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from streaming.engine.watching.processes import descendants, processor_seconds
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

WITH_A_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that leads a session and has a child which works."""
    with subprocess.Popen([sys.executable, "-c", WITH_A_CHILD], start_new_session=True) as made:
        yield made.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.pid, signal.SIGKILL)


def test_processor_time_counts_a_process_and_its_descendants_only(parent: int) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        wait_until(lambda: processor_seconds(parent) > 0.5, "half a second of work")
        assert processor_seconds(idle.pid) < 0.5, "it is in the session of these tests, which work more"
        idle.kill()
    assert processor_seconds(1 << 30) == 0


def test_descendants_are_children_and_their_children(parent: int) -> None:
    wait_until(lambda: len(descendants(parent)) == 1, "the child")
    (child,) = descendants(parent)
    mine = descendants(os.getpid())
    assert mine.index(parent) < mine.index(child)
    assert descendants(child) == []
