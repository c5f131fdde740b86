"""Reports whether the engine works (`/healthz`) and whether devices get answers from it (`/readyz`)."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from sinks.health import STARTING, UnmetCondition
from streaming.config.settings import Settings
from streaming.engine.progress import BatchProgress

_HANGS_AFTER_S: Final = 120.0
"""Patience with the thread that supervises the query. A restart of the query for new settings keeps it busy for some seconds."""


class EngineHealth:
    """Call `beat` whenever the query is supervised and `observe` after each micro-batch; from any thread."""

    def __init__(self, settings: Settings, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = (settings.metrics.ready_within + settings.engine.longest_pause_ms) / 1_000
        self._clock_s = clock_s
        self._beat_s: float | None = None
        self._committed_s: float | None = None
        self.is_standby = False
        """Set to True while it waits for another engine to be gone: it is ready to take over."""

    def beat(self) -> None:
        self._beat_s = self._clock_s()

    def observe(self, batch: BatchProgress) -> None:
        self._committed_s = self._clock_s()

    def not_alive(self) -> Sequence[UnmetCondition]:
        beat_s = self._beat_s
        if beat_s is None or self._clock_s() - beat_s < _HANGS_AFTER_S:
            return ()
        return (UnmetCondition(f"nothing has supervised the query for {_HANGS_AFTER_S:.0f} s", "restart it; please report this"),)

    def not_ready(self) -> Sequence[UnmetCondition]:
        committed_s = self._committed_s
        if self.is_standby:
            return ()
        if committed_s is None:
            return self.not_alive() or (STARTING,)
        if self._clock_s() - committed_s <= self._longest_s:
            return self.not_alive()
        return (
            UnmetCondition(
                f"no micro-batch was committed for {self._clock_s() - committed_s:.0f} s",
                "check that Kafka runs; logs/spark.log says what the micro-batch waits for. A long one is no fault: see "
                "metrics.ready_within",
            ),
        )
