import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from streaming.engine.watching.processes import descendants, lower_priority_of, processor_seconds, runnable_seconds
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


def test_waiting_for_a_processor_counts_as_being_runnable() -> None:
    """As many busy loops as there are processors, and one more, which one of them has to wait for."""
    busy = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(busy, start_new_session=True) for _ in range(len(os.sched_getaffinity(0)) + 1)]
    try:
        wait_until(lambda: any(runnable_seconds(one.pid) > processor_seconds(one.pid) + 0.3 for one in loops), "one has waited")
    finally:
        for one in loops:
            one.kill()
            one.wait()
    assert runnable_seconds(1 << 30) == 0


def test_a_family_stands_back_with_its_threads(parent: int) -> None:
    wait_until(lambda: len(descendants(parent)) == 1, "the child")
    family = (parent, *descendants(parent))
    before = [os.getpriority(os.PRIO_PROCESS, one) for one in family]
    lower_priority_of(parent, 3)
    assert [os.getpriority(os.PRIO_PROCESS, one) for one in family] == [min(19, value + 3) for value in before]
