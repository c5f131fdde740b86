"""Lets the engine of `inflight up` stand back behind gateway and Kafka, but not behind other programs (docs/decisions/0057).

Linux with autogroups shares the processor among sessions first, by a nice value of each session that anybody may lower again
(sched(7)). The engine leads a session. With `engine.nice` it leaves a saturated processor to gateway and Kafka, for which devices
wait. Beside a busy program of somebody else it would get only a fraction of a share. So its session has that value while other
programs use little, and 0 otherwise. Where sessions do not count, its processes have the value (supervised_child.py).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from streaming.engine.watching.processes import machine_seconds, processor_seconds, session_nice, set_session_nice

_LOOK_S: Final = 2.0
_OTHERS: Final = 0.4
"""Processors that other programs use: from here on they count as busy."""
_BUSY_LOOKS: Final = 3
"""Looks in a row at which they are, before the engine competes with them: a program that only starts is none."""
_CALM_LOOKS: Final = 5
"""Looks in a row at which they are not, before the engine stands back again."""


class OtherPrograms:
    """Measures the processor time of all programs but a process and its descendants.

    Args:
        machine_s, own_s, clock_s: Seconds so far: of all programs, of ours, and of time.
    """

    def __init__(
        self, machine_s: Callable[[], float], own_s: Callable[[], float], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._readings = machine_s, own_s, clock_s
        self._before = self._read()

    def processors(self) -> float:
        """Returns how many processors they have used since the last call.

        The time of a process of ours that has ended cannot be told from theirs: what would then be negative counts as nothing.
        """
        (machine_s, own_s, at_s), self._before = self._before, self._read()
        now_machine_s, now_own_s, now_s = self._before
        if now_own_s < own_s or now_s <= at_s:
            return 0.0
        return max(0.0, now_machine_s - machine_s - (now_own_s - own_s)) / (now_s - at_s)

    def _read(self) -> tuple[float, float, float]:
        machine_s, own_s, clock_s = (read() for read in self._readings)
        return machine_s, own_s, clock_s


class EnginePriority:
    """Gives the session of the engine its nice value.

    Args:
        nice: Its value while other programs use little.
        engine: Returns the process that works as the engine; None = there is none.
        others: Measures them.
    """

    def __init__(self, nice: int, engine: Callable[[], int | None], others: OtherPrograms) -> None:
        self._nice = nice
        self._engine = engine
        self._others = others
        self._competes = False
        self._against = 0
        """Looks in a row that speak against that."""

    @classmethod
    def of(cls, nice: int, up: int, engine: Callable[[], int | None]) -> "EnginePriority":
        """Returns the one of an `inflight up`, whose process is `up`."""
        return cls(nice, engine, OtherPrograms(machine_seconds, lambda: processor_seconds(up)))

    async def run(self) -> None:
        """Looks every two seconds. Returns at once where there is nothing to do: without a nice value, or without autogroups."""
        if not self._nice or session_nice(0) is None:
            return
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(OSError):  # no descriptor is free: the next look may have one
                self.look()

    def look(self) -> None:
        """Changes the nice value of the engine's session if it has to be another one."""
        are_busy = self._others.processors() >= _OTHERS
        self._against = self._against + 1 if are_busy is not self._competes else 0
        if self._against >= (_BUSY_LOOKS if are_busy else _CALM_LOOKS):
            self._competes, self._against = are_busy, 0
        pid, wanted = self._engine(), 0 if self._competes else self._nice
        if pid is not None and session_nice(pid) not in (None, wanted):
            set_session_nice(pid, wanted)
