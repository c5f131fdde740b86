"""Reads the sessions of a stopped engine from its checkpoint, with Spark in this process."""

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.engine.ownership.checkpoint_checks import check_unused_checkpoint
from streaming.engine.session_rows import json_documents, longest_queues, session_rows
from streaming.engine.spark_options import SparkJars
from streaming.engine.watching.session_stats import SessionStats, collect_session_stats
from streaming.history.errors import NoArchive
from streaming.history.spark import history_spark
from streaming.spark_internals.jvm import SPARK_ERRORS

if TYPE_CHECKING:
    from streaming.config.settings import Settings


class StoredSessions:
    """Spark in this process for the length of a `with`. Starting it takes about five seconds.

    Methods raise NoArchive if there is no readable checkpoint, and DamagedCheckpoint for one that is damaged.
    """

    def __init__(self, settings: "Settings", jars: SparkJars) -> None:
        self._settings = settings
        self.spark = history_spark(settings, jars, brief=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.spark.stop()

    def rows(self, *, blobs: bool = False) -> DataFrame:
        """Returns the sessions.

        Args:
            blobs: Adds their stored form in `version` and `blob`.
        """
        location = self._settings.sessions_checkpoint
        check_unused_checkpoint(location)
        try:
            return session_rows(self.spark, location, blobs=blobs)
        except SPARK_ERRORS as error:
            raise NoArchive.without_sessions(location, _first_line(error)) from error

    def write(self, directory: Path) -> None:
        """Writes the rows of all sessions to a new directory, as Parquet."""
        # Without a zone, as INT96, a time would not be in UTC for certain.
        self.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self.rows().write.parquet(directory.as_uri())

    def longest_queues(self, *, limit: int, prefix: str = "") -> list[dict[str, Any]]:
        """Returns rows, the longest queues first.

        Args:
            prefix: How their client ids begin.
        """
        return _documents(longest_queues(self.rows(), limit=limit, prefix=prefix))

    def quarantined(self) -> list[str]:
        """Returns the ids of the quarantined clients, sorted."""
        return [row["client_id"] for row in _documents(self.rows().where("quarantined").select("client_id").orderBy("client_id"))]

    def client(self, client_id: str) -> dict[str, Any] | None:
        """Returns the row of a client with its stored form in `version` and `blob`; None if there is no session."""
        return next(iter(_documents(self.rows(blobs=True).where(F.col("client_id") == F.lit(client_id)).limit(1))), None)

    def session_stats(self) -> SessionStats:
        """Returns what the sessions hold together."""
        self.rows()
        try:
            return collect_session_stats(self.spark, self._settings.sessions_checkpoint)
        except SPARK_ERRORS as error:
            raise NoArchive(f"the sessions cannot be counted ({_first_line(error)}): try again in a moment") from error


def _documents(rows: DataFrame) -> list[dict[str, Any]]:
    """Returns the rows as JSON documents with all fields: times in ISO 8601, binary as base64."""
    return [msgspec.json.decode(row["document"]) for row in json_documents(rows).collect()]


def _first_line(error: Exception) -> str:
    """Returns the message of a Spark error, without its plan and stack."""
    text = str(error).strip().split("\n\n")[0]
    return " ".join(text.splitlines()[0].split())[:500] if text else type(error).__name__
