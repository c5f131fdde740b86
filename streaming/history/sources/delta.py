"""Gives the tables of the archive as a source. Local tables are read without Spark for one message, in less than a second."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sinks.delta.spec import PARTITION, TableSpec
from sinks.delta.tables import newest_version
from streaming.archive.tables import DEAD_LETTERS, LEDGER, table_location
from streaming.engine.spark_options import SparkJars
from streaming.history.delta_reader import UnsupportedTable, is_table, newest_value, oldest_and_newest, rows_with
from streaming.history.errors import NoArchive
from streaming.history.sources.source import MessageRows, Row, SourceLimits
from streaming.history.spark import history_spark
from streaming.spark_internals.locations import is_local_path

if TYPE_CHECKING:
    from streaming.config.settings import Settings


LEDGER_COLUMNS: Final = [column for column in LEDGER.column_names if column not in ("date", "record_hash")]
DEAD_LETTER_COLUMNS: Final = [
    "dead_letter_id", "client_id", "message_id", "time", "reason", "deaths", "detail", "topic", "died_ms", "replays",
    "kafka_topic", "kafka_partition", "kafka_offset",
]  # fmt: skip


class DeltaSource:
    """The tables of the archive.

    Args:
        jars: Needed by `of_message` for tables that only Spark can read.
    """

    def __init__(
        self, settings: "Settings", limits: SourceLimits | None = None, jars: Callable[[], SparkJars] | None = None
    ) -> None:
        self._settings = settings
        self._limits = limits or SourceLimits()
        self._location = settings.tables_location
        self._jars = jars
        self._versions: dict[str, int] = {}

    def of_message(self, message_id: str) -> MessageRows:
        found, since_ms, client_id = self._read(message_id), self._limits.since_ms or 0, self._limits.client_id

        def within(rows: list[Row], time: str) -> list[Row]:
            return [row for row in rows if row[time] >= since_ms and client_id in (None, row["client_id"])]

        return MessageRows(ledger=within(found.ledger, "batch_ms"), dead_letters=within(found.dead_letters, "died_ms"))

    def table(self, spark: SparkSession, name: str, *, containing: str | None = None) -> DataFrame:
        """Returns the same version of the table in all calls."""
        location = f"{self._location.rstrip('/')}/{name}"
        try:
            if name not in self._versions:
                self._versions[name] = newest_version(spark, location)
            rows = spark.read.format("delta").option("versionAsOf", self._versions[name]).load(location)
        except AnalysisException as error:
            raise NoArchive.at(self._location) from error
        if self._limits.since_ms is not None:
            rows = rows.where(F.col("time") >= F.timestamp_millis(F.lit(self._limits.since_ms)))
        if name == DEAD_LETTERS.name and self._limits.client_id is not None:
            rows = rows.where(F.col("client_id") == F.lit(self._limits.client_id))
        return rows

    def plain_letters(self) -> None:
        """Returns None: a question about all of a table is Spark's."""

    def plain_replays(self) -> None:
        """Returns None, as `plain_letters`."""

    def newest_ms(self) -> int | None:
        """Returns the time of the newest micro-batch in the table `ledger`; None = it is empty or not on this machine."""
        ledger = local_table(self._location, LEDGER)
        return newest_value(ledger, PARTITION, "batch_ms") if ledger is not None and is_table(ledger) else None

    def complete_since_ms(self, name: str) -> int | None:
        return None

    def described(self) -> Sequence[str]:
        from_ = f"from the archive's tables in {self._location}"
        ledger = local_table(self._location, LEDGER)
        days = oldest_and_newest(ledger, PARTITION) if ledger is not None and is_table(ledger) else None
        return (f"{from_}, days {days[0]} to {days[1]}" if days else from_,)

    def not_found(self, what: str) -> str:
        every = self._settings.archive.trigger_interval_ms / 1_000
        return (
            f"no {what} in {self._location}: the tables are up to about {every:.0f} s behind; without --source Kafka is read too"
        )

    def _read(self, message_id: str) -> MessageRows:
        ledger, letters = local_table(self._location, LEDGER), local_table(self._location, DEAD_LETTERS)
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
    """Returns where a table is on this machine; None for one that is elsewhere."""
    if not is_local_path(tables_location):
        return None
    return Path(table_location(tables_location.removeprefix("file://"), spec))
