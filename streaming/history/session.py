"""Runs a Spark session for questions, with the archive's tables and the live sessions as views for SQL.

| view | rows |
|---|---|
| `ledger`, `dead_letters`, `uplink`, `receipts` | the tables of the archive (streaming/archive/tables.py) |
| tables of bindings to `table:NAME` | under their names, the columns of `dead_letters` |
| `sessions` | one row per client whose session exists now, read from the checkpoint of the running (or stopped) engine |

Payloads are binary; `payload_text` beside them is the same as text, null where it is not UTF-8.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.tables import TABLES
from streaming.engine.ownership.checkpoint_checks import check_unused_checkpoint
from streaming.engine.session_rows import json_documents, longest_queues, session_rows
from streaming.engine.spark_options import SparkJars
from streaming.engine.watching.session_stats import SessionStats, collect_session_stats
from streaming.history.delta_reader import is_table
from streaming.history.errors import BadQuestion, NoArchive
from streaming.history.questions import checked_condition, checked_query
from streaming.history.sources.delta import DeltaSource
from streaming.history.sources.source import Source
from streaming.history.spark import history_spark
from streaming.spark_internals.jvm import SPARK_ERRORS
from streaming.spark_internals.locations import is_local_path

if TYPE_CHECKING:
    from streaming.config.settings import Settings

SESSIONS: Final = "sessions"


class HistorySession:
    """Spark in this process for the length of a `with`. Starting it takes about five seconds.

    Methods raise BadQuestion for SQL that Spark refuses. None of them writes to a table.
    """

    def __init__(self, settings: "Settings", jars: SparkJars, *, brief: bool = False, source: Source | None = None) -> None:
        """
        Args:
            brief: See `history_spark`.
            source: Where the tables are; None = the archive.
        """
        self._settings = settings
        self.source = DeltaSource(settings) if source is None else source
        self.spark = history_spark(settings, jars, brief=brief)
        self._known: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.spark.stop()

    def table(self, name: str, *, containing: str | None = None) -> DataFrame:
        """Returns a table of the source, with `payload_text` where it has payloads; the same for all questions of this session.

        Raises what the source raises.

        Args:
            containing: See `Source.table`.
        """
        found = self.source.table(self.spark, name, containing=containing)
        return _with_text(found) if "payload" in found.columns else found

    def sessions(self, *, blobs: bool = False) -> DataFrame:
        """Returns the live sessions.

        Args:
            blobs: Adds their stored form in `version` and `blob`.

        Raises:
            NoArchive: There is no checkpoint.
            DamagedCheckpoint: There is one, and it cannot be read.
        """
        location = self._settings.sessions_checkpoint
        check_unused_checkpoint(location)
        try:
            return session_rows(self.spark, location, blobs=blobs)
        except SPARK_ERRORS as error:
            raise NoArchive(
                f"there are no sessions in {location} ({_first_line(error)}): give the data directory of the engine with "
                "--data-dir, or start it; it makes its first checkpoint within seconds"
            ) from error

    def longest_queues(self, *, limit: int, prefix: str = "") -> list[dict[str, Any]]:
        """Returns rows of `sessions`, the longest queues first. Raises NoArchive.

        Args:
            prefix: How their client ids begin.
        """
        return self.collected(longest_queues(self.sessions(), limit=limit, prefix=prefix))

    def session_stats(self) -> SessionStats:
        """Returns what the live sessions hold together. Raises NoArchive if there is no readable checkpoint."""
        self.sessions()
        try:
            return collect_session_stats(self.spark, self._settings.sessions_checkpoint)
        except SPARK_ERRORS as error:
            raise NoArchive(f"the sessions cannot be counted ({_first_line(error)}): try again in a moment") from error

    def views(self, question: str) -> None:
        """Makes the views whose names occur in a question, all of them for one that begins with SHOW. Each takes a second.

        Raises:
            NoArchive: There is no table and no checkpoint.
        """
        text = question.lower()
        everything = text.split(maxsplit=1)[:1] == ["show"]
        self._known = self._table_names()
        for name in self._known:
            if everything or name.lower() in text:
                self.table(name).createOrReplaceTempView(name)
        if everything or SESSIONS in text:
            try:
                self.sessions().createOrReplaceTempView(SESSIONS)
            except NoArchive:
                if not self._known:
                    raise
        elif not self._known:
            raise NoArchive.at(self._settings.tables_location)

    def sql(self, question: str) -> DataFrame:
        """Returns the answer to one SQL query over the views; call `views` with it before.

        Raises BadQuestion, also for a query that reads anything but the views, or calls Java.
        """
        try:
            return checked_query(self.spark, question)
        except PySparkException as error:
            raise self._explained(error) from error

    def where(self, rows: DataFrame, condition: str | None) -> DataFrame:
        """Returns the rows for which a SQL condition holds; None = all. Raises BadQuestion as `sql` does."""
        if condition is None:
            return rows
        try:
            return checked_condition(rows, condition)
        except PySparkException as error:
            raise BadQuestion(f"--where {condition}: {_first_line(error)}. The columns are {', '.join(rows.columns)}") from error

    def collected(self, rows: DataFrame) -> list[dict[str, Any]]:
        """Returns the rows as JSON documents with all fields: times in ISO 8601, binary as base64. Raises BadQuestion."""
        return list(self.documents(rows))

    def documents(self, rows: DataFrame) -> Iterator[dict[str, Any]]:
        """Yields the same documents one by one, for large answers."""
        try:
            for row in json_documents(rows).toLocalIterator():
                document: dict[str, Any] = msgspec.json.decode(row["document"])
                yield document
        except PySparkException as error:
            raise self._explained(error) from error

    def _explained(self, error: PySparkException) -> BadQuestion:
        known = ", ".join((*self._known, SESSIONS))
        return BadQuestion(f'{_first_line(error)}. The tables are: {known}; `inflight sql "DESCRIBE ledger"` shows columns')

    def _table_names(self) -> list[str]:
        location = self._settings.tables_location
        if is_local_path(location):
            folder = Path(location.removeprefix("file://"))
            return sorted(path.name for path in folder.glob("*") if is_table(path) and path.name != SESSIONS)
        return [spec.name for spec in TABLES]


def _with_text(rows: DataFrame) -> DataFrame:
    columns: list[Column] = []
    for name in rows.columns:
        columns.append(F.col(name))
        if name == "payload":
            text = F.col(name).cast("string")
            columns.append(F.when(F.is_valid_utf8(text), text).alias("payload_text"))
    return rows.select(*columns)


def _first_line(error: Exception) -> str:
    """Returns the message of a Spark error, without its plan and stack."""
    text = str(error).strip().split("\n\n")[0]
    return " ".join(text.splitlines()[0].split())[:500] if text else type(error).__name__
