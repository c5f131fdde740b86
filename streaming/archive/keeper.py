"""Keeps the query `archive` running beside the sessions. Its failures are logged and it is started again; nothing else stops.

Nothing is lost meanwhile: the records wait in Kafka for `topics.retention`.
"""

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from state.errors import InflightError
from streaming.archive.query import start_archive
from streaming.background import BackgroundLoop
from streaming.spark_internals.jvm import SPARK_ERRORS

if TYPE_CHECKING:
    from streaming.config.settings import Settings

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0
_POLL_S: Final = 0.5
_BUSY_POLL_S: Final = 0.05
_PATIENCE_S: Final = 10.0
_CAUSE_CHARACTERS: Final = 600
_log: Final = structlog.get_logger(__name__)

Start = Callable[[SparkSession, "Settings"], StreamingQuery]


class ArchiveKeeper(BackgroundLoop):
    """Runs the archive on a thread, from `start` to the end of a `with`.

    failures: how often the query has died. last_failure: the newest reason; None = it has not died.
    """

    _join_s = 30.0

    def __init__(
        self,
        spark: SparkSession,
        settings: "Settings",
        *,
        start_query: Start = start_archive,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        super().__init__("archive-keeper")
        self.failures = 0
        self.last_failure: str | None = None
        self.query: StreamingQuery | None = None
        self._spark = spark
        self._settings = settings
        self._start_query = start_query
        self._pause_s = first_pause_s

    def start(self) -> None:
        """Starts the archive unless it is disabled. Call it once, when the sessions work: its first steps would delay them."""
        if self._settings.archive.enabled:
            super().start()

    def _run(self) -> None:
        pause_s = self._pause_s
        while not self._stopping.is_set():
            batches_before = self._batches()
            try:
                self.query = self._start_query(self._spark, self._settings)
                self._watch(self.query)
            except InflightError as error:
                self._report(str(error), pause_s)
            except (OSError, *SPARK_ERRORS) as error:
                self._report(_brief(error), pause_s)
            if self._batches() > batches_before:
                pause_s = self._pause_s  # it has worked meanwhile, so this is a new failure
            if self._stopping.wait(pause_s):
                break
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if self.query is not None:
            with contextlib.suppress(*SPARK_ERRORS):
                self._stop(self.query)

    def _stop(self, query: StreamingQuery) -> None:
        """Stops after the running micro-batch if that ends within ten seconds; otherwise the next start executes it again."""
        before, deadline_s = self._batches(), time.monotonic() + _PATIENCE_S
        while query.isActive and query.status["isTriggerActive"] and self._batches() == before and time.monotonic() < deadline_s:
            time.sleep(_BUSY_POLL_S)
        query.stop()

    def _watch(self, query: StreamingQuery) -> None:
        while not self._stopping.wait(_POLL_S):
            if not query.isActive:
                error = query.exception()
                self._report("Spark gave no reason" if error is None else _brief(error), self._pause_s)
                return

    def _batches(self) -> int:
        if self.query is None:
            return -1
        with contextlib.suppress(*SPARK_ERRORS):
            progress = self.query.lastProgress
            return -1 if progress is None else int(progress["batchId"])
        return -1

    def _report(self, cause: str, pause_s: float) -> None:
        self.failures += 1
        self.last_failure = cause
        _log.error(
            "archive: the query died; the sessions go on, and its records wait for as long as Kafka keeps them. "
            "It is started again; if it dies again with the same words, see docs/operate/archive.md",
            cause=self.last_failure,
            failures=self.failures,
            again_in_s=round(pause_s, 1),
        )


def _brief(error: Exception) -> str:
    """Returns Spark's reason without its plan and most of its stack."""
    return str(error).split("=== Streaming Query ===")[0].strip()[:_CAUSE_CHARACTERS]
