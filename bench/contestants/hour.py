"""Makes a slow hour, in which the machine has less to give: for everything that the run starts afterwards."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum

from inflight.local.child_process import start_child

_LOOPS = 2


class Hour(StrEnum):
    """The machine during a run. The name of the result file ends with the value."""

    PLAIN = "plain"
    ONE_CORE = "one-core"
    BUSY = "busy"

    @property
    def words(self) -> str:
        """Returns the words for the tables; empty if nothing is slowed down."""
        return {Hour.PLAIN: "", Hour.ONE_CORE: "slow hour: one core", Hour.BUSY: f"slow hour: {_LOOPS} busy loops beside"}[self]


@contextlib.contextmanager
def spend(hour: Hour) -> Iterator[None]:
    """Slows down this process and all that it starts, until the end of the block.

    ONE_CORE: contestant, backend and devices run on the first of the allowed cores, which children inherit. BUSY: two loops
    compete with them at the same nice value.
    """
    cores = os.sched_getaffinity(0)
    loops: list[subprocess.Popen[bytes]] = []
    try:
        if hour is Hour.ONE_CORE:
            os.sched_setaffinity(0, {min(cores)})
        elif hour is Hour.BUSY:
            for _ in range(_LOOPS):
                command = [sys.executable, "-c", "while True: pass"]
                loops.append(start_child(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        os.sched_setaffinity(0, cores)
