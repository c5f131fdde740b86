"""Reads the processes of this machine from Linux' /proc."""

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


def descendants(pid: int) -> list[int]:
    """Returns the children of a process and their descendants, parents first; empty on systems other than Linux."""
    return _descendants(pid, _processes())


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
