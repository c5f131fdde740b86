"""Ends an engine whose query hangs, with the exit status `HUNG`, and counts such ends.

A query hangs when for `engine.hangs_after_ms`, and the longest pause between two micro-batches, none of these is seen:

1. A micro-batch was committed. One without anything to do is committed, too, so an idle query does not hang.
2. Spark works on a micro-batch: its tasks end, read or write (`executor_work`).
3. The engine's processes on this machine use a tenth of a processor: one task may restore a large state or call very many
   sessions, and report nothing for minutes. The archive and everything else here uses processors, too. So CPU activity alone
   extends the limit tenfold and no further.
4. Kafka does not answer. Then the query waits for it, and a restart would wait, too.

Time in which this process itself stood still, for example on a frozen machine, does not count.

Nothing has to be saved: the next start executes from the checkpoint what is not committed. Whoever supervises the process starts
it. Steps of an end:
1. Log the reason.
2. Write the count and the reason to DATA_DIR/hangs.json. The next start reads its metric from there, and logs it.
3. Kill all processes that the engine has started: a JVM that lives on would hold the checkpoint's lock.
4. Exit at once: an orderly end would hang, too.
"""

import contextlib
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

import structlog

from streaming.background import BackgroundLoop
from streaming.config.settings import Settings
from streaming.engine.data_file import DataFile
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.processes import AT_WORK, descendants, processor_seconds
from streaming.settings import EngineSettings

HUNG: Final = 3
"""Exit status of an engine that its watchdog has ended."""
_BUSY_PATIENCE: Final = 10
_POLLS: Final = 10
"""Polls within the time of patience, at least."""
_LONGEST_POLL_S: Final = 5.0
_LONGEST_STEP: Final = 3
"""In poll intervals: in a longer interval this process stood still."""
_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSigns:
    """A measurement of the engine at one moment.

    Attributes:
        batches: Micro-batches committed so far.
        work: Any value that changes while Spark works on a micro-batch.
        processor_s: CPU seconds of the engine's processes so far.
    """

    batches: int = 0
    work: object = None
    processor_s: float = 0.0
    kafka_answers: bool = True


class HangRule:
    """Decides when a query hangs. Call `judge` every `poll_s`, on one thread.

    Args:
        engine: Settings whose `hangs_after_ms` is not 0.
    """

    def __init__(self, engine: EngineSettings, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = (engine.hangs_after_ms + engine.longest_pause_ms) / 1_000
        self.poll_s = min(engine.hangs_after_ms / 1_000 / _POLLS, _LONGEST_POLL_S)
        self._clock_s = clock_s
        self._judged_s = clock_s()
        self._last = EngineSigns()
        self._idle_s = self._stuck_s = 0.0
        """Seconds since the last sign of work, and since the last one other than CPU activity."""

    def judge(self, signs: EngineSigns) -> str | None:
        """Returns why the query hangs, for people; None if it does not."""
        now_s = self._clock_s()
        passed_s, self._judged_s = now_s - self._judged_s, now_s
        before, self._last = self._last, signs
        counted_s = min(passed_s, _LONGEST_STEP * self.poll_s)
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


class Hangs(DataFile, frozen=True, kw_only=True):
    """Ends of engines of a data directory because their query hung.

    Attributes:
        at: The time of the newest one; ISO 8601, UTC.
        reason: The reason of the newest one.
    """

    file: ClassVar = "hangs.json"
    count: int = 0
    at: str = ""
    reason: str = ""


class Watchdog(BackgroundLoop):
    """Watches the query on a thread in a `with`, unless `engine.hangs_after_ms` is 0.

    Call `observe` after each micro-batch and `poll` often, both on the thread that supervises the query. If that thread waits for
    Spark for ever, no new signs are seen.

    Args:
        kafka_answers: Returns True if Kafka has answered lately.
        end: Called with the reason when the query hangs; None = `end_process`.
    """

    def __init__(
        self, settings: Settings, *, kafka_answers: Callable[[], bool], end: Callable[[str], None] | None = None
    ) -> None:
        super().__init__("inflight-watchdog")
        self._rule = HangRule(settings.engine) if settings.engine.hangs_after_ms else None
        self._kafka_answers = kafka_answers
        self._end = end or (lambda reason: end_process(settings.engine.data_dir, reason))
        self._batches = 0
        self._work: object = None
        self._polled_s = 0.0

    def observe(self, batch: BatchProgress) -> None:
        """Counts a committed micro-batch."""
        self._batches += 1

    def poll(self, work: Callable[[], object]) -> None:
        """Calls `work` periodically for the sign of that name. Its errors are ignored."""
        now_s = time.monotonic()
        if self._rule is not None and now_s - self._polled_s >= self._rule.poll_s:
            self._polled_s = now_s
            with contextlib.suppress(Exception):
                self._work = work()

    def __enter__(self) -> Self:
        if self._rule is not None:
            self.start()
        return self

    def _run(self) -> None:
        assert self._rule is not None
        while not self._stopping.wait(self._rule.poll_s):
            signs = EngineSigns(
                batches=self._batches,
                work=self._work,
                processor_s=processor_seconds(os.getpid()),
                kafka_answers=self._kafka_answers(),
            )
            if (reason := self._rule.judge(signs)) is not None:
                self._end(reason)
                return


def end_process(data_dir: Path, reason: str) -> None:
    """Ends this process. Does not return."""
    _log.error(  # step 1
        "query_hangs",
        reason=reason,
        action="the engine ends, and goes on from its checkpoint when it is started again; if that happens again, look at "
        "logs/spark.log and docs/operate/troubleshoot.md, and raise engine.hangs_after_ms if it was only slow",
    )
    before = Hangs.read(data_dir)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        Hangs(count=before.count + 1, at=at, reason=reason).write(data_dir)  # step 2
    except OSError as error:
        _log.warning("hang_not_counted", error=repr(error), action="the metric of the next start misses this one")
    for pid in descendants(os.getpid()):  # step 3
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    sys.stderr.flush()
    os._exit(HUNG)  # step 4


def report_hangs(data_dir: Path) -> Hangs:
    """Returns and logs the hangs of earlier engines."""
    hangs = Hangs.read(data_dir)
    if hangs.count:
        _log.warning("engines_have_hung", count=hangs.count, last_at=hangs.at, last_reason=hangs.reason)
    return hangs
