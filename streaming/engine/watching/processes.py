"""Reads the processes of this machine from Linux' /proc, and changes their priority."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PARENT, _USER_TIME, _SYSTEM_TIME = 1, 11, 12
"""Fields of /proc/PID/stat behind the name (proc_pid_stat(5))."""
_PROC: Final = Path("/proc")
AT_WORK: Final = 0.1
"""A process that uses a smaller part of a processor is waiting."""


def processor_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process and its living descendants so far; 0 on systems other than Linux."""
    known = _processes()
    family = [known[one] for one in (pid, *_descendants(pid, known)) if one in known]
    return sum(int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]) for fields in family) / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """Returns the CPU seconds of all processes of this machine so far; 0 on systems other than Linux."""
    try:
        _, user, nice, system, _, _, *interrupts = (_PROC / "stat").read_text(encoding="ascii").splitlines()[0].split()
    except (OSError, ValueError):
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts[:2]))) / os.sysconf("SC_CLK_TCK")


def runnable_seconds(pid: int) -> float:
    """Returns the seconds in which threads of a process and its descendants worked, or waited for a processor.

    On a busy machine a process that is starved uses no more CPU than one that hangs; only the waiting tells them apart.
    Threads that have ended are not counted, so the sum may fall. 0 on systems other than Linux.
    """
    known = _processes()
    return sum(map(_runnable_s, (one for one in (pid, *_descendants(pid, known)) if one in known)))


def lower_priority_of(pid: int, nice: int) -> None:
    """Raises the nice value of a process and of its descendants. What they start later inherits it.

    Linux with autogroups shares the processor among sessions first (sched(7)): see `set_session_nice`.
    """
    for one in (pid, *descendants(pid)):
        for thread in (_PROC / str(one) / "task").glob("*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                number = int(thread.name)
                os.setpriority(os.PRIO_PROCESS, number, os.getpriority(os.PRIO_PROCESS, number) + nice)


def session_nice(pid: int) -> int | None:
    """Returns the nice value of the session of a process, 0 = our own. None = the kernel has no autogroups, or it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((_PROC / (str(pid) if pid else "self") / "autogroup").read_text(encoding="ascii").split()[-1])
    return None


def set_session_nice(pid: int, nice: int) -> None:
    """Sets the nice value of the session of a process, which it leads. Values from 0 on need no privilege."""
    with contextlib.suppress(OSError):  # a kernel without autogroups, or too many changes on this machine
        (_PROC / str(pid) / "autogroup").write_text(str(nice), encoding="ascii")


def descendants(pid: int) -> list[int]:
    """Returns the children of a process and their descendants, parents first; empty on systems other than Linux."""
    return _descendants(pid, _processes())


def _runnable_s(pid: int) -> float:
    total_ns = 0
    for path in (_PROC / str(pid) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):  # the thread has ended, or the kernel does not count
            worked_ns, waited_ns, _ = map(int, path.read_text(encoding="ascii").split())
            total_ns += worked_ns + waited_ns
    return total_ns / 1e9


def _descendants(pid: int, known: Mapping[int, list[str]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for child, fields in known.items():
        children.setdefault(int(fields[_PARENT]), []).append(child)
    found = list(children.get(pid, ()))
    for child in found:  # the loop extends the list
        found += children.get(child, ())
    return found


def _processes() -> dict[int, list[str]]:
    """Returns the fields of `stat` behind the name, by process id."""
    found: dict[int, list[str]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended meanwhile
    return found
