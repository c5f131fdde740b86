"""The values of a Kafka record as Spark's columns, for the archive. streaming/archive/cells.py has them without Spark."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.records.dead_letters import DeathJson
from streaming.archive.cells import LATEST_MS, Cell
from streaming.archive.spark_types import spark_types, struct_of

_DEATHS: Final = f"array<{struct_of(spark_types(DeathJson, 'queue', 'reason', 'count', 'time'))}>"


class SparkCells:
    """Columns of a DataFrame that Kafka's source has read. Text is UTF-8 with U+FFFD for what is not; null stays null.

    time, time_ms: when the record was written. key: as text. payload: the value, a null one as no bytes.
    """

    def __init__(self) -> None:
        self.topic: Cell = F.col("topic")
        self.partition: Cell = F.col("partition")
        self.offset: Cell = F.col("offset")
        self.time: Cell = F.col("timestamp")
        self.time_ms: Cell = F.unix_millis("timestamp")
        self.key, self.value = self.text(F.col("key")), self.text(F.col("value"))
        self.payload: Cell = F.coalesce(F.col("value"), F.lit(b""))
        self.headers: Cell = F.col("headers")

    def text(self, binary: Column) -> Cell:
        return F.make_valid_utf8(binary.cast("string"))

    def raw_header(self, name: str) -> Cell:
        """Returns the last header of that name, as bytes."""
        return F.try_element_at(F.filter("headers", lambda header: header["key"] == name), F.lit(-1))["value"]

    def header(self, name: str) -> Cell:
        return self.text(self.raw_header(name))

    def integer(self, text: Column, sql_type: str) -> Cell:
        """Returns null for what is no whole number of this type, whatever spark.sql.ansi.enabled says."""
        return text.try_cast(sql_type)

    def first(self, *cells: Cell) -> Cell:
        """Returns the first cell or constant that is not null."""
        return F.coalesce(*(cell if isinstance(cell, Column) else F.lit(cell) for cell in cells))

    def position(self) -> Cell:
        return F.concat_ws("-", self.topic, self.partition, self.offset)

    def deaths(self, x_death: Column) -> tuple[Cell, Cell, Cell]:
        """Returns reason and time of the newest death of a history, null if there is none, and the number of deaths."""
        deaths = F.from_json(x_death, _DEATHS)
        newest = F.get(deaths, F.lit(0))
        count = F.aggregate(deaths, F.lit(0), lambda total, death: total + F.coalesce(death["count"], F.lit(1)))
        return newest["reason"], newest["time"], count

    def content_hash(self) -> Cell:
        """Returns the MD5 of the record's content, which is the same for a copy."""
        return F.md5(F.to_json(F.struct("topic", "key", "value", "headers")))

    def time_or(self, milliseconds: Column, otherwise: Cell) -> Cell:
        """Returns the time if a table can hold it."""
        return F.when(is_time(milliseconds), milliseconds).otherwise(otherwise)

    def to_time(self, milliseconds: Column) -> Cell:
        return F.timestamp_millis(milliseconds)

    def event_offset(self, inflight_id: Column, events_topic: str) -> Cell:
        """Returns the offset at the end of an id that begins with the topic of events; null for another id."""
        offset = self.integer(F.substring_index(inflight_id, "-", -1), "bigint")
        return F.when(F.startswith(inflight_id, F.lit(f"{events_topic}-")), offset)

    def unless(self, cell: Column, otherwise: Cell) -> Cell:
        """Returns `otherwise` where the cell is null, and null where it is not."""
        return F.when(cell.isNull(), otherwise)

    def pairs(self, prefix: str) -> Cell:
        """Returns the headers whose names begin so, in order, with the rest of their names."""
        pairs = F.transform(
            F.filter("headers", lambda header: F.startswith(header["key"], F.lit(prefix))),
            lambda header: F.struct(
                F.substr(header["key"], F.lit(len(prefix) + 1)).alias("name"), self.text(header["value"]).alias("value")
            ),
        )
        return F.coalesce(pairs, F.array().cast("array<struct<name: string, value: string>>"))


def is_time(milliseconds: Column) -> Column:
    """True for a time that a table can hold; null for null."""
    return milliseconds.between(0, LATEST_MS)
