"""Counts how often in a row engines of a data directory ended before they completed a micro-batch, and says what they died of.

A supervisor starts an engine again, which executes the same micro-batch again. If that kills it each time, as a record that needs
more memory than there is, no device gets an answer, and each log alone looks like a single accident.

1. `DATA_DIR/ends.json` (engine_ends.py) has the count, and the cause of the newest end. `inflight status`, the metric
   `ends_in_a_row` and the supervisor read it.
2. The first micro-batch that an engine completes sets the count to 0. A stop that was asked for does not count.
3. An engine that ended without a word, for example by the kernel, is counted by the next start.
4. The cause of a dead JVM is in Spark's log; Python sees only that nobody answers any more.
"""

import datetime
import re
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog
from msgspec.structs import replace

from state.errors import InflightError
from streaming.config.settings import Settings
from streaming.engine.errors import EngineDied
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.engine_ends import EngineEnds
from streaming.spark_internals.checkpoint import CheckpointFiles, committed_offsets, planned_offsets
from streaming.spark_internals.jvm import SPARK_ERRORS
from streaming.spark_internals.locations import is_local_path

_OUT_OF_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError[^\n]*")
_LOG_TAIL_BYTES: Final = 4 << 20
_CAUSE_CHARACTERS: Final = 600
_log: Final = structlog.get_logger(__name__)


class EndCounter:
    """Counts the end of the engine that runs in a `with`. Call `observe` after each micro-batch.

    Raises EngineDied instead of an error of PySpark or of the connection to the JVM. Other errors pass.

    Args:
        is_standby: True if it counts only from `begin` on. Another engine may work in the same data directory until then.
    """

    def __init__(
        self, settings: Settings, *, is_standby: bool = False, now: Callable[[], datetime.datetime] | None = None
    ) -> None:
        self._is_standby = is_standby
        self._settings = settings
        self._data_dir = settings.engine.data_dir
        self._spark_log = self._data_dir.absolute() / "logs" / "spark.log"
        self._now = now or (lambda: datetime.datetime.now(datetime.UTC))
        self._log_begin = 0
        self._before = EngineEnds()
        self._is_counting = False

    @property
    def count(self) -> int:
        """Returns the ends in a row before this engine; 0 once it has completed a micro-batch."""
        return self._before.count

    def stop_asked(self) -> None:
        """Takes back the count of a start that is interrupted. Call it before the process exits without leaving the `with`."""
        if self._is_counting:
            self._write(self._before)

    def observe(self, batch: BatchProgress) -> None:
        if self._before != EngineEnds():
            self._before = EngineEnds()
            self._write(EngineEnds(runs=True))

    def __enter__(self) -> Self:
        if not self._is_standby:
            self.begin()
        return self

    def begin(self) -> None:
        """Counts from now on."""
        found = EngineEnds.read(self._data_dir)
        if found.runs:
            found = self._next(
                found,
                "it ended without a word: something killed it (kill -9, the kernel when memory was short, the engine's watchdog)",
                "the kernel's log (dmesg) and hangs.json in the data directory may say what",
            )
        self._before = replace(found, runs=False)
        self._log_begin = self._spark_log.stat().st_size if self._spark_log.exists() else 0
        self._report(found)
        self._is_counting = True
        self._write(replace(found, runs=True))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None or not isinstance(error, Exception):
            self.stop_asked()
            return
        cause, action = self._explain(error)
        if self._is_counting:
            ends = self._next(self._before, cause, action)
            self._write(ends)
            self._report(ends)
        if isinstance(error, (*SPARK_ERRORS, ConnectionError, EOFError)):
            raise EngineDied(f"the engine died: {cause}\n{action}") from error

    def _next(self, before: EngineEnds, cause: str, action: str) -> EngineEnds:
        at = self._now().isoformat(timespec="seconds")
        return EngineEnds(count=before.count + 1, at=at, cause=cause, action=action, position=position(self._settings))

    def _explain(self, error: Exception) -> tuple[str, str]:
        """Returns cause and action, for people."""
        if (found := _OUT_OF_MEMORY.search(self._log_of_this_run())) is not None:
            return (
                f"{found[0].strip()} in the JVM (logs/spark.log): a micro-batch needs more than engine.driver_memory = "
                f"{self._settings.engine.driver_memory}",
                "raise engine.driver_memory and start the engine again: it executes the same micro-batch. A single record may be "
                "the reason; `kafka-console-consumer.sh` with its partition and offset shows it",
            )
        if isinstance(error, InflightError):
            return _short(str(error)), "do what it says; the whole text is at the end of logs/engine.log"
        text = f"{type(error).__name__}: {error}"
        action = "logs/spark.log in the data directory says why; start the engine again, and report it if it ends the same way"
        return (_short(f"the JVM is gone ({text})") if isinstance(error, ConnectionError | EOFError) else _short(text)), action

    def _log_of_this_run(self) -> str:
        try:
            with self._spark_log.open("rb") as file:
                size = file.seek(0, 2)
                begin = self._log_begin if self._log_begin <= size else 0  # it was rotated
                file.seek(max(begin, size - _LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def _report(self, ends: EngineEnds) -> None:
        if ends.is_repeated:
            _log.error("engine_ends_repeatedly", count=ends.count, position=ends.position, cause=ends.cause, action=ends.action)

    def _write(self, ends: EngineEnds) -> None:
        try:
            ends.write(self._data_dir)
        except OSError as error:
            _log.warning("end_not_counted", error=repr(error), action="status misses this one; make room or give rights")


def position(settings: Settings) -> str:
    """Returns which records the next micro-batch reads, for people; empty if the checkpoint does not say it without a JVM."""
    location = settings.sessions_checkpoint
    if not is_local_path(location):
        return ""
    files = CheckpointFiles(None, location)
    try:
        last, done, planned = files.last_batch(), committed_offsets(files), planned_offsets(files)
    except (OSError, ValueError, IndexError):  # a damaged checkpoint, which the start refuses by name
        return ""
    if last is None:
        return "the first micro-batch"
    if not done and last.is_committed:
        return ""
    if last.is_committed:
        begins = [f"{topic}-{number} from {offset}" for topic, offsets in done.items() for number, offset in offsets.items()]
        return f"micro-batch {last.batch_id + 1} ({', '.join(begins)} on)"
    ranges = [
        f"{topic}-{number} from {begin} to {end}"
        for topic, offsets in planned.items()
        for number, end in offsets.items()
        if (begin := done.get(topic, {}).get(number, 0)) < end
    ]
    return f"micro-batch {last.batch_id} ({', '.join(ranges) or 'no records, only timers'})"


def _short(cause: str) -> str:
    text = " ".join(cause.split())
    return text if len(text) <= _CAUSE_CHARACTERS else f"{text[:_CAUSE_CHARACTERS]}…"
