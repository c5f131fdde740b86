"""The processes of this machine, as Linux tells of them."""

import os
from pathlib import Path
from typing import Final

_PARENT, _SESSION, _USER_TIME, _SYSTEM_TIME = 1, 3, 11, 12
"""Fields of /proc/PID/stat behind the name (proc_pid_stat(5))."""
_PROC: Final = Path("/proc")
AT_WORK: Final = 0.1
"""Who uses less than this part of a processor waits for something that does not come."""


def processor_seconds(session: int) -> float:
    """What the living processes of a session (`os.getsid`) have used of the processors so far; 0 where the system does not say
    (Linux does).
    """
    used = sum(int(f[_USER_TIME]) + int(f[_SYSTEM_TIME]) for f in _processes().values() if int(f[_SESSION]) == session)
    return used / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started, parents first. Empty where nobody says."""
    children: dict[int, list[int]] = {}
    for child, fields in _processes().items():
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
