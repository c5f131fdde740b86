"""The values of a Kafka record without Spark. streaming/archive/spark_cells.py has the same values as Spark's columns.

streaming/archive/rows.py says which columns are made of them and does not know which form they have. Both give equal values.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from state.errors import UNDECODABLE
from state.records.dead_letters import DeathJson
from state.records.record import position

Cell: TypeAlias = Any
"""A Column, or the value itself; null is None."""

LATEST_MS: Final = 4_102_444_800_000
"""The year 2100. A table cannot hold every number that somebody writes into a record, so later times count as none."""

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

    def event_offset(self, inflight_id: str, events_topic: str) -> Cell:
        is_of_engine = inflight_id.startswith(f"{events_topic}-")
        return self.integer(inflight_id.rpartition("-")[2], "bigint") if is_of_engine else None

    def unless(self, cell: Cell, otherwise: Cell) -> Cell:
        return otherwise if cell is None else None

    def pairs(self, prefix: str) -> Cell:
        found = ((name.removeprefix(prefix), self.text(value)) for name, value in self.headers if name.startswith(prefix))
        return [{"name": name, "value": value} for name, value in found]


def _object(parts: Iterable[tuple[str, str | None]]) -> str:
    """Returns the JSON of names and JSON, without what is null."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in parts if value is not None) + "}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_JACKSON)}"'


def _base64(data: bytes | None) -> str | None:
    return None if data is None else f'"{base64.b64encode(data).decode()}"'
