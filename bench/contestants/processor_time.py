"""Measures processor time by process."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from inflight.local.endpoints import Endpoints


def family(pid: int) -> Iterator[psutil.Process]:
    """Returns a process and all its descendants; an empty list if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        yield parent
        yield from parent.children(recursive=True)


def parts_of_up(data_dir: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Returns the processes of an `inflight up` by name.

    kafka, gateway, engine-jvm, engine-workers (its Python), engine (the JVM's parent), other.
    """
    pids = Endpoints.read(data_dir).pids
    if "up" not in pids:
        raise RuntimeError("`inflight up` does not run any more")
    names: dict[int, str] = {}
    for name in ("kafka", "gateway", "engine"):
        if (pid := pids.get(name)) is not None:
            for process in family(pid):
                names[process.pid] = _part_of_engine(process) if name == "engine" and process.pid != pid else name
    for process in family(pids["up"]):
        yield names.get(process.pid, "other"), process


def _part_of_engine(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "engine-jvm" if process.name() == "java" else "engine-workers"
    return "engine-workers"


def cpu_s(processes: Iterable[tuple[str, psutil.Process]]) -> Counter[str]:
    """Returns the times by name.

    The time of ended children counts for the parent that waited for them, so that nothing is lost.
    """
    total: Counter[str] = Counter()
    for name, process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total[name] += sum(process.cpu_times()[:4])  # user and system, of the process and its ended children
    return total


class ProcessorTime:
    """Counts from its creation. processes: called each time, because processes start and end."""

    def __init__(self, processes: Callable[[], Iterable[tuple[str, psutil.Process]]]) -> None:
        self._processes = processes
        self._before = cpu_s(processes())
        self._began_s = time.monotonic()
        self._cores = _core_times()

    def spent(self) -> dict[str, float]:
        """Returns the CPU seconds until now, by name."""
        now = cpu_s(self._processes())
        return {name: round(now[name] - self._before[name], 3) for name in sorted(now | self._before)}

    def wall_s(self) -> float:
        """Returns the seconds until now."""
        return time.monotonic() - self._began_s

    def busy(self) -> float:
        """Returns the share of the cores that this process may use that was in use until now, 0 … 1."""
        idle, _, everything = self._since()
        return 1 - idle / everything if everything > 0 else 0.0

    def stolen(self) -> float:
        """Returns the share of the time of these cores that the host of a virtual machine gave to others until now, 0 … 1."""
        _, stolen, everything = self._since()
        return stolen / everything if everything > 0 else 0.0

    def _since(self) -> Iterator[float]:
        return (now - before for now, before in zip(_core_times(), self._cores, strict=True))


def _core_times() -> tuple[float, float, float]:
    """Returns the idle seconds, the stolen seconds and all seconds of the cores that this process may use."""
    allowed = os.sched_getaffinity(0)
    cores = [times for number, times in enumerate(psutil.cpu_times(percpu=True)) if number in allowed]
    # The fields behind the eighth, the time of guests, are within `user`.
    return (
        sum(core.idle + core.iowait for core in cores),
        sum(core.steal for core in cores),
        sum(sum(core[:8]) for core in cores),
    )
