"""Records of Kafka → rows about one message, each once: what streaming/archive/rows.py makes of them, without Spark.

The engine may have written a record twice, because its micro-batch was executed again: the copy has another offset and the same
content, by which it is known here as in the archive.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.records import dead_letters, messages
from state.records.dead_letters import DeathJson
from state.records.ledger import LedgerRow
from state.records.receipts import decode_receipt
from state.records.record import position
from streaming.history.sources.source import MessageRows, Row

if TYPE_CHECKING:
    from streaming.settings import TopicSettings

_ledger_rows: Final = msgspec.json.Decoder(list[LedgerRow])
_deaths: Final = msgspec.json.Decoder(list[DeathJson])
_JACKSON: Final = {number: f"\\u{number:04X}" for number in range(0x20)} | {
    ord(character): json.dumps(character)[1:-1] for character in '"\\\b\f\n\r\t'
}
"""How Spark's JSON writes the characters that JSON escapes."""

_LAST_MS: Final = 253_402_214_400_000
"""The last day of the year 9999 begins."""


class Record(Protocol):
    """What of kafka-python's ConsumerRecord is used here. timestamp: ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Any


class RowsOfMessage:
    """Give it records with `take`; `rows` is what they say about the message. client_id: None = of every client."""

    def __init__(self, message_id: str, topics: "TopicSettings", client_id: str | None) -> None:
        self.rows = MessageRows()
        self._message_id = message_id
        self._client_id = client_id
        self._topics = topics
        # As it stands in the JSON of the ledger and of receipts, so that most records need not be decoded.
        self._id_in_json = msgspec.json.encode(message_id)
        self._seen: set[tuple[str, bytes | None, bytes | None]] = set()

    def take(self, record: Record) -> None:
        """A record of one of the topics; bytes that nobody can read are of no message."""
        if self._client_id is not None and _text(record.key) != self._client_id:
            return
        if record.topic == self._topics.ledger:
            self._take_ledger(record)
        elif record.topic == self._topics.receipts:
            self._take_receipt(record)
        elif _message_id(record) == self._message_id:
            if record.topic == self._topics.messages:
                self.rows.submitted.append(submitted_row(record))
            else:
                row = dead_letter_row(record)
                if all(row["dead_letter_id"] != known["dead_letter_id"] for known in self.rows.dead_letters):
                    self.rows.dead_letters.append(row)

    def _take_ledger(self, record: Record) -> None:
        if self._concerns(record):
            self.rows.ledger.extend(row for row in ledger_rows(record) if row["message_id"] == self._message_id)

    def _take_receipt(self, record: Record) -> None:
        if self._concerns(record) and (row := receipt_row(record)) is not None and row["message_id"] == self._message_id:
            self.rows.receipts.append(row)

    def _concerns(self, record: Record) -> bool:
        """Whether it names the message, and is no copy of another one."""
        content = (record.topic, record.key, record.value)
        if self._id_in_json not in (record.value or b"") or content in self._seen:
            return False
        self._seen.add(content)
        return True


def ledger_rows(record: Record) -> list[Row]:
    """None for bytes that are no ledger."""
    try:
        rows = _ledger_rows.decode(record.value or b"")
    except UNDECODABLE:
        return []
    return [
        {
            **msgspec.structs.asdict(row),
            "time": _time(row.time_ms),
            "row_index": index,
            "kafka_partition": record.partition,
            "kafka_offset": record.offset,
        }
        for index, row in enumerate(rows)
    ]


def receipt_row(record: Record) -> Row | None:
    """None for what is no receipt."""
    try:
        receipt = decode_receipt(record.value or b"")
    except UnreadableRecord:
        return None
    names = ("client_id", "message_id", "outcome_ms", "reason_code", "attempts", "detail")
    return {
        **{name: getattr(receipt, name) for name in names},
        "outcome": receipt.outcome.value,
        "kafka_partition": record.partition,
        "kafka_offset": record.offset,
    }


def submitted_row(record: Record) -> Row:
    """A record of `inflight.messages`."""
    return {
        "client_id": _text(record.key),
        "time_ms": record.timestamp,
        "kafka_topic": record.topic,
        "kafka_partition": record.partition,
        "kafka_offset": record.offset,
    }


def dead_letter_row(record: Record) -> Row:
    """The columns that a trace shows."""
    headers = {name: value or b"" for name, value in record.headers}
    try:
        deaths = _deaths.decode(headers.get(dead_letters.DEATHS, b""))
    except UNDECODABLE:
        deaths = []
    last = {name: headers.get(dead_letters.LAST_DEATH + name) for name in ("reason", "time")}
    died_ms = _integer(last["time"])
    if died_ms is None:
        died_ms = deaths[0].time if deaths else record.timestamp
    return {
        "dead_letter_id": dead_letter_id(record),
        "client_id": _text(record.key),
        "message_id": _message_id(record),
        "time": _time(record.timestamp),
        "reason": _text(last["reason"]) if last["reason"] is not None else deaths[0].reason if deaths else None,
        "deaths": sum(death.count for death in deaths),
        "detail": _text(headers.get(dead_letters.DETAIL)),
        "topic": _text(headers.get(messages.TOPIC)),
        "died_ms": died_ms,
        "replays": _integer(headers.get(dead_letters.REPLAYS)) or 0,
        "kafka_topic": record.topic,
        "kafka_partition": record.partition,
        "kafka_offset": record.offset,
    }


def dead_letter_id(record: Record) -> str:
    """The same as the archive's: MD5 of the record's content as Spark's JSON has it."""
    parts = [("topic", _quoted(record.topic)), ("key", _base64(record.key)), ("value", _base64(record.value))]
    if record.headers:
        parts.append(
            (
                "headers",
                f"[{','.join(_object([('key', _quoted(name)), ('value', _base64(value))]) for name, value in record.headers)}]",
            )
        )
    return hashlib.md5(_object(parts).encode(), usedforsecurity=False).hexdigest()


def _object(parts: Iterable[tuple[str, str | None]]) -> str:
    """Of names and JSON; without what is null."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in parts if value is not None) + "}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_JACKSON)}"'


def _base64(data: bytes | None) -> str | None:
    return None if data is None else f'"{base64.b64encode(data).decode()}"'


def _message_id(record: Record) -> str:
    """Of a record whose headers name it; else it is called by its position."""
    for name, value in reversed(record.headers):
        if name == messages.MESSAGE_ID:
            return _text(value)
    return position(record.topic, record.partition, record.offset)


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def _integer(data: bytes | None) -> int | None:
    try:
        return None if data is None else int(data)
    except ValueError:
        return None


def _time(milliseconds: int) -> datetime:
    """The nearest one that Python can name: whoever writes a record chooses it."""
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LAST_MS) / 1_000, UTC)
