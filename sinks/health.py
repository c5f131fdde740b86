"""Whether a gateway or a bridge works (`/healthz`) and whether its devices get what they need (`/readyz`).

The event loop looks once a second and leaves what it has found; the thread that answers over HTTP reads that. A loop that has not
looked for `HANGS_AFTER_S` does not work.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

HANGS_AFTER_S: Final = 15.0
_LOOK_S: Final = 1.0


class UnmetCondition(msgspec.Struct, frozen=True):
    """Something that is missing, and what to do about it; both for people."""

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
    "not connected to the MQTT broker", "check that the broker runs, and host, port and password in [bridge]"
)


class Health(Protocol):
    """What a process says about itself; from any thread. Empty = nothing is missing."""

    def not_alive(self) -> Sequence[UnmetCondition]:
        """Why it has to be started again."""

    def not_ready(self) -> Sequence[UnmetCondition]:
        """Why it should get no work for now."""


class LoopHealth:
    """Health of a process that works on an event loop. It starts as alive and not ready."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._missing: Sequence[UnmetCondition] = (STARTING,)
        self._looked_s: float | None = None

    @contextmanager
    def watching(self, missing: Callable[[], Iterable[UnmetCondition]]) -> Iterator[Callable[[], None]]:
        """On the loop: `missing` is asked there, once a second, until the end of the block.

        Yields what asks it now: whoever says that it is ready has said so to probes, too.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            self._missing, self._looked_s = tuple(missing()), self._clock_s()

        def tick() -> None:
            nonlocal timer
            look()
            timer = loop.call_later(_LOOK_S, tick)

        tick()
        try:
            yield look
        finally:
            if timer is not None:
                timer.cancel()
            self._missing, self._looked_s = (STOPPING,), None

    def not_alive(self) -> Sequence[UnmetCondition]:
        looked_s = self._looked_s
        if looked_s is None or self._clock_s() - looked_s < HANGS_AFTER_S:
            return ()
        return (UnmetCondition(f"its event loop has done nothing for {HANGS_AFTER_S:.0f} s", "restart it; please report this"),)

    def not_ready(self) -> Sequence[UnmetCondition]:
        return self.not_alive() or self._missing
