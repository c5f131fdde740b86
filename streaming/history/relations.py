"""Loads one table of the store: the archive's rows through deltalake, and the rows of Kafka's records that the archive lacks.

Which records are newer: the archive reads each partition in order, so what lies behind the newest offset in its table is not in
it. Where that offset says nothing (a partition without a row on the newest day, a topic that was made anew), records are read
from some minutes before the table's newest row on. A row that is in both is recognised by the key of the table.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sinks.delta.spec import PARTITION, ColumnSpec, TableSpec
from streaming.archive.cells import KafkaRecord
from streaming.archive.rows import Row, rows_of_record
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, UPLINK, topics_of
from streaming.history.database import Database
from streaming.history.delta_reader import DeltaRows
from streaming.history.sources.kafka_ranges import ArchivedUntil, OffsetRange

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_PORTION: Final = 5_000
_PORTION_BYTES: Final = 16 << 20
"""Rows, and bytes of records, that are held in Python until they go to the database."""
_TYPES: Final = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<STRUCT<key: STRING, value: BINARY>>": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "ARRAY<STRUCT<name: STRING, value: STRING>>": pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])),
}
_TIME_MS: Final = {
    DEAD_LETTERS.name: "died_ms",
    LEDGER.name: "batch_ms",
    RECEIPTS.name: "outcome_ms",
    UPLINK.name: "epoch_ms(time)",
}
"""When a row happened, ms since 1970."""


def schema_of(columns: Iterable[ColumnSpec]) -> pa.Schema:
    """Returns Arrow's types of the columns."""
    return pa.schema([(column.name, _TYPES[column.sql_type]) for column in columns])


@dataclass(slots=True, kw_only=True)
class Relation:
    """A table that is being loaded.

    Attributes:
        archived: The rows of the archive; None = there are none.
        ranges: What is read of Kafka.
        containing: Only records whose value has these bytes are needed; None = all.
    """

    spec: TableSpec
    archived: DeltaRows | None
    ranges: list[OffsetRange] = field(default_factory=list)
    containing: bytes | None = None

    @property
    def _quoted_key(self) -> str:
        return ", ".join(f'"{name}"' for name in self.spec.key)

    @property
    def _read(self) -> str:
        return f'"{self.spec.name} of Kafka"'

    @property
    def _newer(self) -> str:
        return f'"{self.spec.name} that is newer"'

    @property
    def _table(self) -> str:
        return f'"{self.spec.name} of the archive"'

    def open(self, database: Database) -> None:
        """Makes the rows of the archive, and no row of Kafka yet, known to the database."""
        if self.archived is not None:
            database.register(self._table.strip('"'), self.archived.rows)
        database.register(self._read.strip('"'), schema_of(self.spec.columns).empty_table())
        database.execute(f"CREATE TABLE {self._newer} AS FROM {self._read}")
        database.unregister(self._read.strip('"'))

    def archived_until(self, database: Database) -> tuple[dict[tuple[str | None, int], ArchivedUntil], int | None]:
        """Returns the newest archived offsets by (topic, partition) with their times, and the time of the newest row.

        The topic is None where a table has the records of one topic. Without rows there are none, and None.
        """
        if self.archived is None or self.archived.days is None:
            return {}, None
        time_ms = _TIME_MS[self.spec.name]
        topic = "kafka_topic" if "kafka_topic" in self.spec.column_names else "NULL"
        rows = database.execute(
            f"SELECT {topic}, kafka_partition, max(kafka_offset), max({time_ms}) FROM {self._table} "  # noqa: S608  # nosec B608
            f"WHERE {PARTITION} = '{self.archived.days[1]}' GROUP BY ALL"
        )
        found = {(topic, partition): ArchivedUntil(offset=offset, time_ms=time_ms) for topic, partition, offset, time_ms in rows}
        return found, max((one.time_ms for one in found.values()), default=None)

    def add(self, database: Database, rows: list[Row]) -> None:
        """Adds rows that were read from Kafka."""
        arrow = pa.Table.from_pylist(rows, schema=schema_of(self.spec.columns))
        database.register("read just now", arrow)
        database.execute(f'INSERT INTO {self._newer} FROM "read just now"')
        database.unregister("read just now")

    def finish(self, database: Database, condition: str) -> None:
        """Makes the view that questions read, with each row once.

        Args:
            condition: Chooses rows of the view; empty = all.
        """
        where = f" WHERE {condition}" if condition else ""
        own = f"SELECT DISTINCT ON ({self._quoted_key}) * FROM {self._newer} ORDER BY kafka_offset"  # noqa: S608  # nosec B608
        known = self._archived_copies(database)
        if known is not None:
            own = f"SELECT * FROM ({own}) ANTI JOIN ({known}) USING ({self._quoted_key})"  # noqa: S608  # nosec B608
        database.execute(f'CREATE TABLE "new {self.spec.name}" AS {own}')
        database.execute(f"DROP TABLE {self._newer}")
        source = f'FROM "new {self.spec.name}"'
        if self.archived is not None:
            source = f"FROM (FROM {self._table} UNION ALL BY NAME {source})"
        database.execute(f'CREATE VIEW "{self.spec.name}" AS SELECT {_columns(self.spec)} {source}{where}')

    def _archived_copies(self, database: Database) -> str | None:
        """Returns a query for the keys of archived rows that a row of Kafka may equal; None = there are none.

        As in the archive itself, only rows within the bounds of the table are compared (sinks/delta/tables.py).
        """
        if self.archived is None or self.archived.days is None:
            return None
        parts = []
        for bound in self.spec.bounds:
            ((low, high),) = database.execute(f'SELECT min("{bound.column}"), max("{bound.column}") FROM {self._newer}')  # noqa: S608  # nosec B608
            if low is not None:
                parts.append(f'"{bound.column}" BETWEEN {low - bound.slack} AND {high + bound.slack}')
        return f"SELECT {self._quoted_key} FROM {self._table} WHERE {' OR '.join(parts)}" if parts else None  # noqa: S608  # nosec B608


class RecordSink:
    """Adds the rows of Kafka's records to relations, in portions."""

    def __init__(self, settings: "Settings", database: Database, relations: Iterable[Relation]) -> None:
        self._database = database
        self._events = settings.topics.events
        topics = topics_of(settings)
        self._by_topic = {topic: relation for relation in relations for topic in topics[relation.spec.name]}
        self._waiting: dict[str, list[Row]] = {}
        self._bytes: dict[str, int] = {}

    def add(self, record: KafkaRecord) -> None:
        relation = self._by_topic[record.topic]
        if relation.containing is None or relation.containing in (record.value or b""):
            name = relation.spec.name
            rows = self._waiting.setdefault(name, [])
            rows += rows_of_record(relation.spec, record, self._events)
            self._bytes[name] = self._bytes.get(name, 0) + len(record.value or b"")
            if len(rows) >= _PORTION or self._bytes[name] >= _PORTION_BYTES:
                self.flush([relation])

    def flush(self, relations: Iterable[Relation]) -> None:
        """Adds what is left."""
        for relation in relations:
            self._bytes.pop(relation.spec.name, None)
            if rows := self._waiting.pop(relation.spec.name, None):
                relation.add(self._database, rows)


def _columns(spec: TableSpec) -> str:
    """Returns the columns of a view: those of the table, and `payload_text`."""
    text = ', TRY(decode("payload")) AS payload_text'
    return ", ".join(f'"{name}"{text if name == "payload" else ""}' for name in spec.column_names)
