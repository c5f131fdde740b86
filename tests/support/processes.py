"""Processes that tests stop, kill and look after."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from inflight.demo.up import UpProcess
from tests.support.waiting import wait_until

_STOPPED = ("T", "t", "Z", "X")


def freeze(pid: int) -> None:
    """Sends SIGSTOP. Returns when every thread of the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(state in _STOPPED for state in _thread_states(pid)), f"all threads of {pid} have stopped")


def thaw(pid: int) -> None:
    """SIGCONT."""
    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freezes a process for the length of the block."""
    freeze(pid)
    try:
        yield
    finally:
        thaw(pid)


def _thread_states(pid: int) -> list[str]:
    """The third field of each thread's stat (proc_pid_stat(5)); the second one is in parentheses and may contain anything."""
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def is_gone(process: psutil.Process) -> bool:
    """True if the process does not run; a zombie counts as gone."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def family(pid: int) -> list[psutil.Process]:
    """Returns the children of a process, and theirs."""
    return psutil.Process(pid).children(recursive=True)


def kill_engine(up: UpProcess) -> None:
    """Sends SIGKILL to the engine. Returns when the supervisor has started another engine."""
    pid = up.engine_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: up.engine_pid() not in (None, pid), lambda: f"a new engine; {up.log_tail('engine')}")
