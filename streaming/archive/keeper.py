"""Keeps the query `archive` running beside the sessions: what goes wrong with it is reported and tried again, and stops nothing.

Nothing is lost meanwhile: the records wait in Kafka for as long as `topics.retention` says.
"""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.archive.query import start_archive

if TYPE_CHECKING:
    from streaming.config.settings import Settings

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0
_LOOK_S: Final = 0.5
_STOP_TIMEOUT_S: Final = 30.0
_CAUSE_CHARACTERS: Final = 600
_log: Final = structlog.get_logger(__name__)

Start = Callable[[SparkSession, "Settings"], StreamingQuery]


class ArchiveKeeper:
    """Runs the archive from `start` on, in a thread of its own, until the end of the `with` block.

    failures: how often the query has died; last_failure: why, the last time, None = never.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: "Settings",
        *,
        start_query: Start = start_archive,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.failures = 0
        self.last_failure: str | None = None
        self.query: StreamingQuery | None = None
        self._spark = spark
        self._settings = settings
        self._start_query = start_query
        self._pause_s = first_pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="archive-keeper", daemon=True)

    def start(self) -> None:
        """Call it once, when the sessions work: what the archive does first would delay them. Nothing if it is disabled."""
        if self._settings.archive.enabled:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        pause_s = self._pause_s
        while not self._stop.is_set():
            batches_before = self._batches()
            try:
                self.query = self._start_query(self._spark, self._settings)
                self._watch(self.query)
            except (PySparkException, Py4JError, OSError) as error:
                self._report(str(error), pause_s)
            if self._batches() > batches_before:
                pause_s = self._pause_s  # it worked for a while: this is a new failure
            if self._stop.wait(pause_s):
                break
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if self.query is not None:
            with contextlib.suppress(PySparkException, Py4JError):
                self.query.stop()

    def _watch(self, query: StreamingQuery) -> None:
        while not self._stop.wait(_LOOK_S):
            if not query.isActive:
                error = query.exception()
                self._report("nobody said why" if error is None else str(error), self._pause_s)
                return

    def _batches(self) -> int:
        if self.query is None:
            return -1
        with contextlib.suppress(PySparkException, Py4JError):
            progress = self.query.lastProgress
            return -1 if progress is None else int(progress["batchId"])
        return -1

    def _report(self, cause: str, pause_s: float) -> None:
        self.failures += 1
        self.last_failure = cause.split("=== Streaming Query ===")[0].strip()[:_CAUSE_CHARACTERS]
        _log.error(
            "archive: the query died; the sessions go on, and nothing is lost as long as Kafka keeps the records. "
            "It is started again; if it dies again with the same words, see docs/archive.md",
            cause=self.last_failure,
            failures=self.failures,
            again_in_s=round(pause_s, 1),
        )
