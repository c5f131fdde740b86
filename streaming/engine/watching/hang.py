"""When a query hangs, and how often engines have ended for it.

A query hangs when for `engine.hangs_after_ms`, and the longest pause between two micro-batches, nothing is seen of

1. a micro-batch that was committed: one without anything to do is committed, too, so an idle query does not hang;
2. its work on one: Spark's tasks end, read or write (streaming/spark_internals/executor_work.py);
3. the work of the engine's processes on this machine, that is a tenth of a processor: one task restores a large state, or calls
   very many sessions, and tells nobody for minutes. The archive and whatever else runs here works, too, so this alone counts for
   ten times as long and no longer;
4. a Kafka that does not answer: then the query waits for it, and a restart would wait, too.

A time in which this process itself stood still, on a machine that was frozen, does not count.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from streaming.config.sections import EngineSettings
from streaming.engine.watching.processes import AT_WORK

_NAME: Final = "hangs.json"
HUNG: Final = 3
"""Exit status of an engine that its watchdog has ended (streaming/engine/watching/watchdog.py)."""
_BUSY_PATIENCE: Final = 10
_LOOKS: Final = 10
"""In the time of patience, at least."""
_LONGEST_LOOK_S: Final = 5.0
_LONGEST_STEP: Final = 3
"""Times a look; in a longer one this process stood still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What is seen of an engine at a moment. batches: committed so far. work: any value that changes while a micro-batch gets on.
    processor_s: used by the engine's processes so far.
    """

    batches: int = 0
    work: object = None
    processor_s: float = 0.0
    kafka_answers: bool = True


class HangRule:
    """Call `judge` every `look_s`, on one thread."""

    def __init__(self, engine: EngineSettings, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """engine: its `hangs_after_ms` is not 0."""
        self._patience_s = (engine.hangs_after_ms + engine.longest_pause_ms) / 1_000
        self.look_s = min(engine.hangs_after_ms / 1_000 / _LOOKS, _LONGEST_LOOK_S)
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._seen = Signs()
        self._idle_s = self._stuck_s = 0.0
        """Since the last sign of work, and since the last one that is no use of a processor."""

    def judge(self, signs: Signs) -> str | None:
        """Why the query hangs, for people; None = it does not."""
        now_s = self._clock_s()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        before, self._seen = self._seen, signs
        counted_s = min(passed_s, _LONGEST_STEP * self.look_s)
        self._idle_s += counted_s
        self._stuck_s += counted_s
        if signs.batches != before.batches or signs.work != before.work or not signs.kafka_answers:
            self._idle_s = self._stuck_s = 0.0
        elif signs.processor_s - before.processor_s >= AT_WORK * passed_s:
            self._idle_s = 0.0
        if self._idle_s < self._patience_s and self._stuck_s < _BUSY_PATIENCE * self._patience_s:
            return None
        others = "other things" if self._idle_s < self._patience_s else "nothing"
        return (
            f"no micro-batch was committed for {self._stuck_s:.0f} s, after {signs.batches} of this engine; no task got on, "
            f"the engine's processes did {others}, and Kafka answers"
        )


class Hangs(msgspec.Struct, frozen=True, kw_only=True):
    """Engines of a data directory that have ended because their query hung. at: of the last one, ISO 8601, UTC."""

    count: int = 0
    at: str = ""
    reason: str = ""

    @classmethod
    def read(cls, data_dir: Path) -> Self:
        """None so far when there is no file, or one that cannot be read."""
        try:
            return msgspec.json.decode((data_dir / _NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return cls()

    def write(self, data_dir: Path) -> None:
        """Raises OSError."""
        temporary = data_dir / f"{_NAME}.new"
        temporary.write_bytes(msgspec.json.encode(self) + b"\n")
        temporary.replace(data_dir / _NAME)
