"""Gives the tables of the archive as the source of a trace. The rows of one message are read in less than a second."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sinks.delta.spec import PARTITION, TableSpec
from streaming.archive.tables import DEAD_LETTERS, LEDGER, table_location
from streaming.history.delta_reader import UnsupportedTable, is_table, newest_value, oldest_and_newest, rows_with
from streaming.history.errors import NoArchive
from streaming.history.sources.source import MessageRows, Row, SourceLimits
from streaming.spark_internals.locations import is_local_path

if TYPE_CHECKING:
    from streaming.config.settings import Settings


LEDGER_COLUMNS: Final = [column for column in LEDGER.column_names if column not in ("date", "record_hash")]
DEAD_LETTER_COLUMNS: Final = [
    "dead_letter_id", "client_id", "message_id", "time", "reason", "deaths", "detail", "topic", "died_ms", "replays",
    "kafka_topic", "kafka_partition", "kafka_offset",
]  # fmt: skip


class DeltaSource:
    """The tables of the archive."""

    def __init__(self, settings: "Settings", limits: SourceLimits | None = None) -> None:
        self._settings = settings
        self._limits = limits or SourceLimits()
        self._location = settings.tables_location

    def of_message(self, message_id: str) -> MessageRows:
        found, since_ms, client_id = self._read(message_id), self._limits.since_ms or 0, self._limits.client_id

        def within(rows: list[Row], time: str) -> list[Row]:
            return [row for row in rows if row[time] >= since_ms and client_id in (None, row["client_id"])]

        return MessageRows(ledger=within(found.ledger, "batch_ms"), dead_letters=within(found.dead_letters, "died_ms"))

    def newest_ms(self) -> int | None:
        """Returns the time of the newest micro-batch in the table `ledger`; None = it is empty or not on this machine."""
        ledger = local_table(self._location, LEDGER)
        return newest_value(ledger, PARTITION, "batch_ms") if ledger is not None and is_table(ledger) else None

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
        if (table := local_table(self._location, LEDGER)) is not None and not is_table(table):
            raise NoArchive.at(self._location)
        return MessageRows(ledger=self._rows(LEDGER, message_id), dead_letters=self._rows(DEAD_LETTERS, message_id))

    def _rows(self, spec: TableSpec, message_id: str) -> list[Row]:
        table = local_table(self._location, spec)
        if table is not None and not is_table(table):
            return []
        columns = LEDGER_COLUMNS if spec is LEDGER else DEAD_LETTER_COLUMNS
        location = table_location(self._location, spec) if table is None else table
        try:
            return rows_with(location, "message_id", message_id, columns)
        except UnsupportedTable as error:
            raise NoArchive.unreadable(str(location), error) from error


def local_table(tables_location: str, spec: TableSpec) -> Path | None:
    """Returns where a table is on this machine; None for one that is elsewhere."""
    if not is_local_path(tables_location):
        return None
    return Path(table_location(tables_location.removeprefix("file://"), spec))
