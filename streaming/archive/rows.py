"""Makes rows of Kafka records: all rows of the archive (streaming/archive/tables.py), and those of questions without Spark.

A column is defined once, for both forms of a record (streaming/archive/cells.py). Whatever bytes a record has, Spark makes it a
row: what cannot be read is a ledger row with transition `unreadable`. Without Spark such records are left out.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sinks.delta.tables import PARTITION, TableSpec
from state.errors import UNDECODABLE, UnreadableRecord
from state.records import dead_letters, messages, uplink
from state.records.ledger import LedgerRow
from state.records.properties import CONTENT_TYPE, PROPERTIES, Property, PropertyKind
from state.records.receipts import Receipt, decode_receipts
from streaming.archive.cells import LATEST_MS, Cell, KafkaRecord, PlainCells, SparkCells, is_time
from streaming.archive.spark_types import spark_types, struct_of
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, UPLINK

UNREADABLE: Final = "unreadable"
_SHOWN_CHARACTERS: Final = 1_000
_LEDGER_ROW: Final = spark_types(LedgerRow)
_LEDGER_ROWS: Final = f"array<{struct_of(_LEDGER_ROW)}>"
_RECEIPT_FIELDS: Final = (
    "message_id", "client_id", "outcome", "reason_code", "attempts", "accepted_ms", "first_sent_ms", "outcome_ms", "recorded_ms",
    "detail", "fast_path",
)  # fmt: skip
_RECEIPT: Final = struct_of(spark_types(Receipt, *_RECEIPT_FIELDS))
_RECEIPTS: Final = f"array<{_RECEIPT}>"
"""Spark makes an array of one of a receipt that is no array."""
_plain_ledger: Final = msgspec.json.Decoder(list[LedgerRow])

# --- columns, for both forms ----------------------------------------------------------------------------------------------------


def _ledger_columns(of: SparkCells | PlainCells, row: Cell, index: Cell) -> dict[str, Cell]:
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
        **_position_columns(of),
    }


def _dead_letter_columns(of: SparkCells | PlainCells) -> dict[str, Cell]:
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
        **_position_columns(of),
    }


def _receipt_columns(of: SparkCells | PlainCells, receipt: Cell) -> dict[str, Cell]:
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
        **_position_columns(of),
        "fast_path": receipt["fast_path"],
        "recorded_ms": of.time_or(receipt["recorded_ms"], outcome_ms),
    }


def _position_columns(of: SparkCells | PlainCells) -> dict[str, Cell]:
    return {"kafka_partition": of.partition, "kafka_offset": of.offset}


def message_id_of(of: SparkCells | PlainCells) -> Cell:
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
    return [_ledger_columns(of, msgspec.structs.asdict(row), index) for index, row in enumerate(rows)]


def plain_dead_letter_row(record: KafkaRecord) -> dict[str, Any]:
    """Returns the row of a dead letter."""
    return _dead_letter_columns(PlainCells(record))


def plain_receipt_rows(record: KafkaRecord) -> list[dict[str, Any]]:
    """Returns the rows of a record of `inflight.receipts`; none for what is no receipt."""
    try:
        receipts = decode_receipts(record.value or b"")
    except UnreadableRecord:
        return []
    of = PlainCells(record)
    return [_receipt_columns(of, msgspec.structs.asdict(receipt)) | {"outcome": receipt.outcome.value} for receipt in receipts]


# --- rows of the archive --------------------------------------------------------------------------------------------------------


def ledger_rows(records: DataFrame) -> DataFrame:
    """Makes each element of each array a row."""
    of = SparkCells()
    parsed = F.from_json(of.value, _LEDGER_ROWS)
    unreadable = {
        "transition": F.lit(UNREADABLE),
        "batch_ms": of.time_ms,
        "detail": F.substring(of.value, 1, _SHOWN_CHARACTERS),
    }
    nothing = F.array(F.struct(*(unreadable.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _LEDGER_ROW.items())))
    readable = F.forall(parsed, lambda row: row["transition"].isNotNull() & is_time(row["batch_ms"]))
    elements = F.when(F.coalesce(readable, F.lit(False)), parsed).otherwise(nothing)
    exploded = records.select("*", _record_hash(), F.posexplode(elements).alias("row_index", "row"))
    return _select(exploded, LEDGER, _ledger_columns(of, F.col("row"), F.col("row_index")), day_of="batch_ms")


def dead_letter_rows(records: DataFrame) -> DataFrame:
    """Makes each record a row of `dead_letters`, or of a table that has its columns."""
    return _select(records, DEAD_LETTERS, _dead_letter_columns(SparkCells()), day_of="died_ms")


def bound_table(names: Sequence[str]) -> Column:
    """Returns the table that a dead letter's exchange names, if it is one of `names`; null = `dead_letters`, for all others."""
    named = SparkCells().header(dead_letters.TABLE)
    return F.when(named.isin(*names), named) if names else F.lit(None).cast("string")


def uplink_rows(records: DataFrame, *, events_topic: str) -> DataFrame:
    """Makes each record a row.

    Args:
        events_topic: Ids that begin with it are the engine's, and end with the offset of the event.
    """
    of = SparkCells()
    inflight_id = F.coalesce(of.header(uplink.INFLIGHT_ID), of.position())
    event_offset = F.when(
        F.startswith(inflight_id, F.lit(f"{events_topic}-")), of.integer(F.substring_index(inflight_id, "-", -1), "bigint")
    )
    columns = {
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
        "appended_ms": F.when(event_offset.isNull(), of.time_ms),
        "time_ms": of.time_ms,
        **_position_columns(of),
    }
    return _select(records, UPLINK, columns, day_of="time_ms")


def receipt_rows(records: DataFrame) -> DataFrame:
    """Makes each receipt a row, and each record that is no receipt; that keeps its text in `detail`."""
    of, receipt = SparkCells(), F.col("receipt")
    columns = _receipt_columns(of, receipt)
    text = F.substring(of.value, 1, _SHOWN_CHARACTERS)
    columns["detail"] = F.when(receipt["outcome"].isNull(), text).otherwise(columns["detail"])
    columns["latency_ms"] = columns["outcome_ms"] - of.time_or(receipt["accepted_ms"], None)
    nothing = F.array(F.lit(None).cast(_RECEIPT))
    parsed = F.from_json(of.value, _RECEIPTS)
    elements = F.when(F.size(parsed) > 0, parsed).otherwise(nothing)
    exploded = records.select("*", F.posexplode(elements).alias("row_index", "receipt"))
    # A message id may be in an array twice. The first receipt has the hash that one without an array has.
    later = F.xxhash64("key", "value", "row_index")
    record_hash = F.when(F.col("row_index") == 0, F.xxhash64("key", "value")).otherwise(later)
    return _select(exploded.withColumn("record_hash", record_hash), RECEIPTS, columns, day_of="outcome_ms")


def _property(of: SparkCells, row: Property) -> Cell:
    """Returns the value of an MQTT 5 property, made of the record's headers."""
    match row.kind:
        case PropertyKind.FLAG:
            return of.integer(of.header(row.header), "int")
        case PropertyKind.BINARY:
            return of.raw_header(row.header)
        case PropertyKind.TEXT_PAIRS:
            pairs = F.transform(
                F.filter("headers", lambda header: F.startswith(header["key"], F.lit(row.header))),
                lambda header: F.struct(
                    F.substr(header["key"], F.lit(len(row.header) + 1)).alias("name"), of.text(header["value"]).alias("value")
                ),
            )
            return F.coalesce(pairs, F.array().cast("array<struct<name: string, value: string>>"))
        case _:
            return of.header(row.header)


def _record_hash() -> Column:
    return F.xxhash64("key", "value").alias("record_hash")


def _select(records: DataFrame, spec: TableSpec, columns: dict[str, Column], *, day_of: str) -> DataFrame:
    """Returns the columns of `spec` in their order; those that are not given have the same name in `records`.

    Args:
        day_of: The column, in ms since 1970, whose day is the column `date`.
    """
    columns = columns | {PARTITION: F.to_date(F.timestamp_millis(columns[day_of]))}
    cells = (columns.get(column.name, F.col(column.name)).cast(column.sql_type).alias(column.name) for column in spec.columns)
    return records.select(*cells)
