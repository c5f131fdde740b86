"""Processor time by what it was spent on."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import psutil


def family(pid: int) -> Iterator[psutil.Process]:
    """A process and all that descend from it; nothing when it has gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        yield parent
        yield from parent.children(recursive=True)


def cpu_s(processes: Iterable[tuple[str, psutil.Process]]) -> Counter[str]:
    """By name. What children spent that have ended counts for the parent that has waited for them, so nothing gets lost."""
    total: Counter[str] = Counter()
    for name, process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total[name] += sum(process.cpu_times()[:4])  # user and system, its own and those of its ended children
    return total


class ProcessorTime:
    """Counts from when it is made. processes: asked anew each time, because some come and go."""

    def __init__(self, processes: Callable[[], Iterable[tuple[str, psutil.Process]]]) -> None:
        self._processes = processes
        self._before = cpu_s(processes())
        self._machine = psutil.cpu_times()

    def spent(self) -> dict[str, float]:
        """CPU seconds until now, by name."""
        now = cpu_s(self._processes())
        return {name: round(now[name] - self._before[name], 3) for name in sorted(now | self._before)}

    def busy(self) -> float:
        """How much of all cores was in use until now, by whomever, 0 … 1."""
        before, now = self._machine, psutil.cpu_times()
        idle = now.idle + now.iowait - before.idle - before.iowait
        everything = sum(now[:8]) - sum(before[:8])  # what follows, time of guests, is within `user`
        return 1 - idle / everything if everything > 0 else 0.0
