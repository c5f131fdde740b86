"""Reports whether a gateway or a bridge is alive (`/healthz`) and whether its devices get what they need (`/readyz`).

The event loop checks once a second and stores the result. The thread that answers over HTTP reads it. A loop that has not checked
for `HANGS_AFTER_S` hangs.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

HANGS_AFTER_S: Final = 15.0
_CHECK_INTERVAL_S: Final = 1.0


class UnmetCondition(msgspec.Struct, frozen=True):
    """A condition that a process lacks.

    Attributes:
        what: What is missing, for people.
        action: What to do about it, for people.
    """

    what: str
    action: str


STARTING: Final = UnmetCondition("the process has not started completely", "wait; its log says what it waits for")
STOPPING: Final = UnmetCondition("the process is stopping", "nothing; another one takes its devices")
NO_PARTITION: Final = UnmetCondition(
    "no partition of the commands topic",
    "wait some seconds for the consumer group; else give topics.partitions.commands as many partitions as there are gateways",
)
NO_LEASE: Final = UnmetCondition(
    "no lease: Kafka does not confirm its renewals", "check that Kafka runs and kafka.bootstrap_servers"
)
NO_BROKER: Final = UnmetCondition(
    "not connected to the MQTT broker",
    "check that the broker runs, and host, port and password in [bridge]; after group_session_timeout_ms without it this bridge "
    "is in no consumer group, and another one takes its devices",
)


class Health(Protocol):
    """The health of a process; safe to call from any thread. An empty result means that nothing is missing."""

    def not_alive(self) -> Sequence[UnmetCondition]:
        """Returns why the process has to be restarted."""

    def not_ready(self) -> Sequence[UnmetCondition]:
        """Returns why the process should get no work for now."""


class LoopHealth:
    """The health of a process with an event loop. It starts as alive and not ready."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._missing: Sequence[UnmetCondition] = (STARTING,)
        self._checked_s: float | None = None

    @contextmanager
    def watching(self, missing: Callable[[], Iterable[UnmetCondition]]) -> Iterator[Callable[[], None]]:
        """Calls `missing` on the loop once a second until the end of the block.

        Yields a function that calls it at once, so that a process that announces that it is ready passes its probes too.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            self._missing, self._checked_s = tuple(missing()), self._clock_s()

        def tick() -> None:
            nonlocal timer
            check()
            timer = loop.call_later(_CHECK_INTERVAL_S, tick)

        tick()
        try:
            yield check
        finally:
            if timer is not None:
                timer.cancel()
            self._missing, self._checked_s = (STOPPING,), None

    def not_alive(self) -> Sequence[UnmetCondition]:
        checked_s = self._checked_s
        if checked_s is None or self._clock_s() - checked_s < HANGS_AFTER_S:
            return ()
        return (UnmetCondition(f"its event loop has done nothing for {HANGS_AFTER_S:.0f} s", "restart it; please report this"),)

    def not_ready(self) -> Sequence[UnmetCondition]:
        return self.not_alive() or self._missing
