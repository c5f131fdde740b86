"""The processes of this machine, as Linux tells of them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PARENT, _USER_TIME, _SYSTEM_TIME = 1, 11, 12
"""Fields of /proc/PID/stat behind the name (proc_pid_stat(5))."""
_PROC: Final = Path("/proc")
AT_WORK: Final = 0.1
"""Who uses less than this part of a processor waits for something that does not come."""


def processor_seconds(pid: int) -> float:
    """What a process and its descendants, those that live, have used of the processors so far; 0 where the system does not say
    (Linux does).
    """
    known = _processes()
    family = [known[one] for one in (pid, *_descendants(pid, known)) if one in known]
    return sum(int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]) for fields in family) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started, parents first. Empty where nobody says."""
    return _descendants(pid, _processes())


def _descendants(pid: int, known: Mapping[int, list[str]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for child, fields in known.items():
        children.setdefault(int(fields[_PARENT]), []).append(child)
    found = list(children.get(pid, ()))
    for child in found:  # grows meanwhile
        found += children.get(child, ())
    return found


def _processes() -> dict[int, list[str]]:
    """By process id, the fields of its `stat`."""
    found: dict[int, list[str]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
    return found
