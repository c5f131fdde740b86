"""Says what the columns of the archive's tables are made of (streaming/archive/tables.py), and makes rows without Spark.

A column is defined once, for both forms of a record: with Spark (streaming/archive/spark_rows.py) for the archive, without for
questions. Both make equal rows. Whatever bytes a record has, it becomes a row: what cannot be read has the transition or outcome
`unreadable`.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import xxhash

from sinks.delta.spec import PARTITION, TableSpec
from state.errors import UNDECODABLE, UnreadableRecord
from state.records import dead_letters, messages, uplink
from state.records.ledger import LedgerRow
from state.records.properties import CONTENT_TYPE, PROPERTIES, Property, PropertyKind
from state.records.receipts import decode_receipt
from streaming.archive.cells import LATEST_MS, Cell, KafkaRecord, PlainCells
from streaming.archive.tables import LEDGER, RECEIPTS, UPLINK

if TYPE_CHECKING:
    from streaming.archive.spark_cells import SparkCells

Row: TypeAlias = dict[str, Any]
"""Values by the names of columns."""

UNREADABLE: Final = "unreadable"
SHOWN_CHARACTERS: Final = 1_000
RECEIPT_FIELDS: Final = (
    "message_id", "client_id", "outcome", "reason_code", "attempts", "accepted_ms", "first_sent_ms", "outcome_ms", "recorded_ms",
    "detail", "fast_path",
)  # fmt: skip
_HASH_SEED: Final = 42
"""Spark's."""
_LARGEST: Final = {"INT": (1 << 31) - 1, "BIGINT": (1 << 63) - 1}
_plain_ledger: Final = msgspec.json.Decoder(list[LedgerRow])

# --- columns, for both forms ----------------------------------------------------------------------------------------------------


def ledger_columns(of: "SparkCells | PlainCells", row: Cell, index: Cell) -> dict[str, Cell]:
    """Returns the columns of an element of the record's array.

    Args:
        row: The element, by the fields of LedgerRow.
        index: Its place in the array.
    """
    return {
        "client_id": of.first(row["client_id"], of.key, ""),
        "message_id": row["message_id"],
        "time": of.to_time(of.time_or(row["time_ms"], row["batch_ms"])),
        "transition": row["transition"],
        "attempt": of.first(row["attempt"], 0),
        "packet_id": row["packet_id"],
        "outcome": row["outcome"],
        "reason_code": of.first(row["reason_code"], 0),
        "detail": of.first(row["detail"], ""),
        "batch_ms": row["batch_ms"],
        "row_index": index,
        **position_columns(of),
    }


def dead_letter_columns(of: "SparkCells | PlainCells") -> dict[str, Cell]:
    """Returns the record as it is, and what people ask for as columns."""
    history = of.header(dead_letters.DEATHS)
    newest_reason, newest_ms, deaths = of.deaths(history)
    died_ms = of.time_or(of.first(of.integer(of.header(dead_letters.LAST_DEATH + "time"), "bigint"), newest_ms), of.time_ms)
    return {
        "dead_letter_id": of.content_hash(),
        "client_id": of.first(of.key, ""),
        "message_id": message_id_of(of),
        "time": of.time,
        "reason": of.first(of.header(dead_letters.LAST_DEATH + "reason"), newest_reason),
        "deaths": of.first(deaths, 0),
        "first_reason": of.header(dead_letters.FIRST_DEATH + "reason"),
        "first_queue": of.header(dead_letters.FIRST_DEATH + "queue"),
        "detail": of.first(of.header(dead_letters.DETAIL), ""),
        "topic": of.header(messages.TOPIC),
        "qos": of.integer(of.header(messages.QOS), "int"),
        "priority": of.first(of.integer(of.header(messages.PRIORITY), "int"), 0),
        CONTENT_TYPE.field: of.header(CONTENT_TYPE.header),
        "payload": of.payload,
        "headers": of.headers,
        "x_death": history,
        "replay_of": of.header(dead_letters.REPLAY_OF),
        "replays": of.first(of.integer(of.header(dead_letters.REPLAYS), "int"), 0),
        "died_ms": died_ms,
        "kafka_topic": of.topic,
        **position_columns(of),
    }


def receipt_columns(of: "SparkCells | PlainCells", receipt: Cell) -> dict[str, Cell]:
    """Returns the columns of a receipt.

    Args:
        receipt: By the fields of Receipt, all null for what is no receipt.
    """
    outcome_ms = of.time_or(receipt["outcome_ms"], of.time_ms)
    accepted_ms = of.time_or(receipt["accepted_ms"], None)
    return {
        "client_id": of.first(receipt["client_id"], of.key, ""),
        "message_id": of.first(receipt["message_id"], of.position()),
        "outcome": of.first(receipt["outcome"], UNREADABLE),
        "reason_code": of.first(receipt["reason_code"], 0),
        "attempts": of.first(receipt["attempts"], 0),
        "accepted": of.to_time(accepted_ms),
        "first_sent": of.to_time(of.time_or(receipt["first_sent_ms"], None)),
        "time": of.to_time(outcome_ms),
        "detail": of.first(receipt["detail"], ""),
        "outcome_ms": outcome_ms,
        **position_columns(of),
        "fast_path": receipt["fast_path"],
        "recorded_ms": of.time_or(receipt["recorded_ms"], outcome_ms),
    }


def uplink_columns(of: "SparkCells | PlainCells", events_topic: str) -> dict[str, Cell]:
    """Returns the columns of a publication.

    Args:
        events_topic: Ids that begin with it are the engine's, and end with the offset of the event.
    """
    inflight_id = of.first(of.header(uplink.INFLIGHT_ID), of.position())
    event_offset = of.event_offset(inflight_id, events_topic)
    return {
        "inflight_id": inflight_id,
        "client_id": of.first(of.header(uplink.CLIENT_ID), of.key, ""),
        "time": of.time,
        "topic": of.header(messages.TOPIC),
        "qos": of.integer(of.header(messages.QOS), "int"),
        "retain": of.first(of.header(messages.RETAIN) == uplink.TRUE.decode(), False),
        "payload": of.payload,
        **{row.field: _property(of, row) for row in PROPERTIES},
        "message_expiry_s": of.integer(of.header(uplink.MESSAGE_EXPIRY), "bigint"),
        "event_offset": event_offset,
        "appended_ms": of.unless(event_offset, of.time_ms),
        **position_columns(of),
    }


def _property(of: "SparkCells | PlainCells", row: Property) -> Cell:
    """Returns the value of an MQTT 5 property, made of the record's headers."""
    match row.kind:
        case PropertyKind.FLAG:
            return of.integer(of.header(row.header), "int")
        case PropertyKind.BINARY:
            return of.raw_header(row.header)
        case PropertyKind.TEXT_PAIRS:
            return of.pairs(row.header)
        case _:
            return of.header(row.header)


def position_columns(of: "SparkCells | PlainCells") -> dict[str, Cell]:
    return {"kafka_partition": of.partition, "kafka_offset": of.offset}


def message_id_of(of: "SparkCells | PlainCells") -> Cell:
    """Returns the message id that the headers of a record say, else its position."""
    return of.first(of.header(messages.MESSAGE_ID), of.position())


# --- rows without Spark ---------------------------------------------------------------------------------------------------------


def plain_ledger_rows(record: KafkaRecord) -> list[dict[str, Any]]:
    """Returns the rows of a record of `inflight.ledger`; none for bytes that are no ledger."""
    try:
        rows = _plain_ledger.decode(record.value or b"")
    except UNDECODABLE:
        return []
    if not all(0 <= row.batch_ms <= LATEST_MS for row in rows):
        return []
    of = PlainCells(record)
    return [ledger_columns(of, msgspec.structs.asdict(row), index) for index, row in enumerate(rows)]


def plain_dead_letter_row(record: KafkaRecord) -> dict[str, Any]:
    """Returns the row of a dead letter."""
    return dead_letter_columns(PlainCells(record))


def plain_receipt_row(record: KafkaRecord) -> dict[str, Any] | None:
    """Returns the row of a record of `inflight.receipts`; None for what is no receipt."""
    try:
        receipt = decode_receipt(record.value or b"")
    except UnreadableRecord:
        return None
    return receipt_columns(PlainCells(record), msgspec.structs.asdict(receipt)) | {"outcome": receipt.outcome.value}


# --- whole rows of the tables ---------------------------------------------------------------------------------------------------


def rows_of_record(spec: TableSpec, record: KafkaRecord, events_topic: str) -> list[Row]:
    """Returns the rows that a record makes in a table, with all columns of the table.

    Args:
        events_topic: See `uplink_columns`.
    """
    make: dict[str, Callable[[KafkaRecord], list[Row]]] = {
        LEDGER.name: _whole_ledger_rows,
        RECEIPTS.name: _whole_receipt_row,
        UPLINK.name: partial(_whole_uplink_row, events_topic=events_topic),
    }
    types = {column.name: column.sql_type for column in spec.columns}
    found = make.get(spec.name, _whole_dead_letter_row)(record)
    return [{name: _storable(row[name], sql_type) for name, sql_type in types.items()} for row in found]


def _whole_ledger_rows(record: KafkaRecord) -> list[Row]:
    of, rows = PlainCells(record), plain_ledger_rows(record)
    if not rows and record.value != b"[]":
        row = LedgerRow(
            client_id=of.first(of.key, ""),
            batch_ms=of.time_ms,
            transition=UNREADABLE,
            time_ms=of.time_ms,
            detail=of.first(of.value, "")[:SHOWN_CHARACTERS],
        )
        rows = [ledger_columns(of, msgspec.structs.asdict(row), 0)]
    record_hash = _spark_hash(record.key, record.value)
    return [row | {"record_hash": record_hash, PARTITION: _day(row["batch_ms"])} for row in rows]


def _whole_dead_letter_row(record: KafkaRecord) -> list[Row]:
    row = plain_dead_letter_row(record)
    headers = [{"key": name, "value": value} for name, value in row["headers"]] or None
    return [row | {"headers": headers, PARTITION: _day(row["died_ms"])}]


def _whole_receipt_row(record: KafkaRecord) -> list[Row]:
    of, row = PlainCells(record), plain_receipt_row(record)
    if row is None:
        detail = None if of.value is None else of.value[:SHOWN_CHARACTERS]
        row = receipt_columns(of, dict.fromkeys(RECEIPT_FIELDS)) | {"detail": detail}
    accepted: datetime | None = row["accepted"]
    latency_ms = None if accepted is None else row["outcome_ms"] - round(accepted.timestamp() * 1_000)
    record_hash = _spark_hash(record.key, record.value)
    return [row | {"latency_ms": latency_ms, "record_hash": record_hash, PARTITION: _day(row["outcome_ms"])}]


def _whole_uplink_row(record: KafkaRecord, *, events_topic: str) -> list[Row]:
    of = PlainCells(record)
    return [uplink_columns(of, events_topic) | {PARTITION: _day(of.time_ms)}]


def _storable(value: Any, sql_type: str) -> Any:
    """Returns a value that a column of this type can hold; null for a larger number."""
    largest = _LARGEST.get(sql_type)
    return value if largest is None or value is None or -largest <= value <= largest else None


def _day(milliseconds: int) -> date:
    return datetime.fromtimestamp(min(max(milliseconds, 0), LATEST_MS) / 1_000, UTC).date()


def _spark_hash(*parts: bytes | None) -> int:
    """Returns Spark's xxhash64 of binary columns; null adds nothing."""
    found = _HASH_SEED
    for part in parts:
        if part is not None:
            found = xxhash.xxh64_intdigest(part, found)
    return found - (1 << 64) if found >> 63 else found
