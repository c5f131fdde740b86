"""The tables of the archive as a source. For one message the tables on a local path are read without Spark, in under a second."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sinks.delta.tables import PARTITION, TableSpec, newest_version
from streaming.archive.tables import DEAD_LETTERS, LEDGER, table_location
from streaming.engine.spark_session import SparkJars
from streaming.history.delta_reader import UnsupportedTable, is_table, oldest_and_newest, rows_with
from streaming.history.errors import NoArchive
from streaming.history.sources.bounds import ALL, Bounds
from streaming.history.sources.source import DEAD_LETTER_COLUMNS, LEDGER_COLUMNS, MessageRows, Row, of_client
from streaming.history.spark import history_spark
from streaming.spark_internals.checkpoint import is_local_path

if TYPE_CHECKING:
    from streaming.config.settings import Settings


class DeltaSource:
    """jars: for what only Spark can read of `of_message`."""

    def __init__(self, settings: "Settings", bounds: Bounds = ALL, jars: Callable[[], SparkJars] | None = None) -> None:
        self._settings = settings
        self._bounds = bounds
        self._location = settings.tables_location
        self._jars = jars
        self._versions: dict[str, int] = {}

    def of_message(self, message_id: str) -> MessageRows:
        found, since_ms, client_id = self._read(message_id), self._bounds.since_ms or 0, self._bounds.client_id

        def within(rows: list[Row], time: str) -> list[Row]:
            return [row for row in rows if row[time] >= since_ms and client_id in (None, row["client_id"])]

        return MessageRows(ledger=within(found.ledger, "batch_ms"), dead_letters=within(found.dead_letters, "died_ms"))

    def table(self, spark: SparkSession, name: str, *, containing: str | None = None) -> DataFrame:
        """The same version in all calls."""
        location = f"{self._location.rstrip('/')}/{name}"
        try:
            if name not in self._versions:
                self._versions[name] = newest_version(spark, location)
            rows = spark.read.format("delta").option("versionAsOf", self._versions[name]).load(location)
        except AnalysisException as error:
            raise NoArchive.at(self._location) from error
        if self._bounds.since_ms is not None:
            rows = rows.where(F.col("time") >= F.timestamp_millis(F.lit(self._bounds.since_ms)))
        return of_client(rows, self._bounds.client_id) if name == DEAD_LETTERS.name else rows

    def complete_since_ms(self, name: str) -> int | None:
        return None

    def described(self) -> Sequence[str]:
        from_ = f"from the archive's tables in {self._location}"
        ledger = self._local(LEDGER)
        days = oldest_and_newest(ledger, PARTITION) if ledger is not None and is_table(ledger) else None
        return (f"{from_}, days {days[0]} to {days[1]}" if days else from_,)

    def not_found(self, what: str) -> str:
        every = self._settings.archive.trigger_interval_ms / 1_000
        return (
            f"no {what} in {self._location}: the tables are up to about {every:.0f} s behind, so ask again, or Kafka itself with "
            "--source kafka"
        )

    def _local(self, spec: TableSpec) -> Path | None:
        return local_table(self._location, spec)

    def _read(self, message_id: str) -> MessageRows:
        ledger, letters = self._local(LEDGER), self._local(DEAD_LETTERS)
        if ledger is not None and letters is not None:
            if not is_table(ledger):
                raise NoArchive.at(self._location)
            try:
                return MessageRows(
                    ledger=rows_with(ledger, "message_id", message_id, LEDGER_COLUMNS),
                    dead_letters=rows_with(letters, "message_id", message_id, DEAD_LETTER_COLUMNS) if is_table(letters) else [],
                )
            except UnsupportedTable:
                pass  # Spark knows all of the protocol
        return self._read_with_spark(message_id)

    def _read_with_spark(self, message_id: str) -> MessageRows:
        if self._jars is None:
            raise AssertionError("a source that is asked about a message has jars")
        spark = history_spark(self._settings, self._jars())

        def rows(name: str, columns: list[str]) -> list[Row]:
            found = self.table(spark, name).where(F.col("message_id") == F.lit(message_id)).select(*columns)
            return [row.asDict() for row in found.collect()]

        try:
            return MessageRows(
                ledger=rows(LEDGER.name, LEDGER_COLUMNS), dead_letters=rows(DEAD_LETTERS.name, DEAD_LETTER_COLUMNS)
            )
        finally:
            spark.stop()


def local_table(tables_location: str, spec: TableSpec) -> Path | None:
    """Where a table is on this machine; None for one that is not."""
    if not is_local_path(tables_location):
        return None
    return Path(table_location(tables_location.removeprefix("file://"), spec))
