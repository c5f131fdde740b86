"""The values of a Kafka record, in two forms: Spark's columns for the archive, plain values for questions without Spark.

streaming/archive/rows.py makes rows of them and does not know which form they have. Both forms give equal values.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.errors import UNDECODABLE
from state.records.dead_letters import DeathJson
from state.records.record import position
from streaming.archive.spark_types import spark_types, struct_of

Cell: TypeAlias = Any
"""A Column, or the value itself; null is None."""

LATEST_MS: Final = 4_102_444_800_000
"""The year 2100. A table cannot hold every number that somebody writes into a record, so later times count as none."""

_DEATHS: Final = f"array<{struct_of(spark_types(DeathJson, 'queue', 'reason', 'count', 'time'))}>"
_INTEGER: Final = re.compile(r"[\x00-\x20]*([+-]?)(?=[0-9])0*([0-9]{0,19})[\x00-\x20]*")
"""At most as many digits as the largest number has: Python reads no number of 5,000 digits."""
_BITS: Final = {"int": 31, "bigint": 63}
_JACKSON: Final = {number: f"\\u{number:04X}" for number in range(0x20)} | {
    ord(character): json.dumps(character)[1:-1] for character in '"\\\b\f\n\r\t'
}
"""How Spark's JSON writes the characters that JSON escapes."""

_LAST_MS: Final = 253_402_214_400_000
"""The last day of the year 9999 begins: the last one that Python can name."""

_deaths: Final = msgspec.json.Decoder(list[DeathJson])


class KafkaRecord(Protocol):
    """The part of kafka-python's ConsumerRecord that is used here.

    Attributes:
        timestamp: In ms since 1970.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Any


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


class PlainCells:
    """Values of one record, equal to those of SparkCells, without Spark."""

    def __init__(self, record: KafkaRecord) -> None:
        self.topic: Cell = record.topic
        self.partition: Cell = record.partition
        self.offset: Cell = record.offset
        self.time = self.to_time(record.timestamp)
        self.time_ms: Cell = record.timestamp
        self.key, self.value = self.text(record.key), self.text(record.value)
        self.payload: Cell = record.value or b""
        self.headers: Cell = record.headers
        self._record = record

    def text(self, binary: bytes | None) -> Cell:
        return None if binary is None else binary.decode(errors="replace")

    def raw_header(self, name: str) -> Cell:
        return next((value for known, value in reversed(self.headers) if known == name), None)

    def header(self, name: str) -> Cell:
        return self.text(self.raw_header(name))

    def integer(self, text: str | None, sql_type: str) -> Cell:
        found = _INTEGER.fullmatch(text or "")
        number = None if found is None else int(f"{found[1]}{found[2] or 0}")
        return number if number is not None and -(1 << _BITS[sql_type]) <= number < 1 << _BITS[sql_type] else None

    def first(self, *cells: Cell) -> Cell:
        return next((cell for cell in cells if cell is not None), None)

    def position(self) -> Cell:
        return position(self.topic, self.partition, self.offset)

    def deaths(self, x_death: str | None) -> tuple[Cell, Cell, Cell]:
        try:
            deaths = _deaths.decode(x_death or "")
        except UNDECODABLE:
            return None, None, None
        newest = deaths[0] if deaths else None
        count = sum(death.count for death in deaths)
        return (None, None, count) if newest is None else (newest.reason, newest.time, count)

    def content_hash(self) -> Cell:
        parts = [("topic", _quoted(self.topic)), ("key", _base64(self._record.key)), ("value", _base64(self._record.value))]
        if self.headers:
            headers = (_object([("key", _quoted(name)), ("value", _base64(value))]) for name, value in self.headers)
            parts.append(("headers", f"[{','.join(headers)}]"))
        return hashlib.md5(_object(parts).encode(), usedforsecurity=False).hexdigest()

    def time_or(self, milliseconds: int | None, otherwise: int | None) -> Cell:
        return milliseconds if milliseconds is not None and 0 <= milliseconds <= LATEST_MS else otherwise

    def to_time(self, milliseconds: int | None) -> Cell:
        return None if milliseconds is None else datetime.fromtimestamp(min(max(milliseconds, 0), _LAST_MS) / 1_000, UTC)


def is_time(milliseconds: Column) -> Column:
    """True for a time that a table can hold; null for null."""
    return milliseconds.between(0, LATEST_MS)


def _object(parts: Iterable[tuple[str, str | None]]) -> str:
    """Returns the JSON of names and JSON, without what is null."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in parts if value is not None) + "}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_JACKSON)}"'


def _base64(data: bytes | None) -> str | None:
    return None if data is None else f'"{base64.b64encode(data).decode()}"'
