"""Records of Kafka → rows of the archive's tables, whose columns are in streaming/archive/tables.py. Transforms only.

Whatever bytes a record has, it becomes a row: what cannot be read is a ledger row with transition `unreadable`.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sinks.delta.tables import TableSpec
from state.records import dead_letters, messages, uplink
from state.records.dead_letters import DeathJson
from state.records.ledger import LedgerRow
from state.records.properties import CONTENT_TYPE, PROPERTIES, Property, PropertyKind
from state.records.receipts import Receipt
from streaming.archive.spark_types import spark_types, struct_of
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, UPLINK

UNREADABLE: Final = "unreadable"
_SHOWN_CHARACTERS: Final = 1_000
_LATEST_MS: Final = 4_102_444_800_000
"""The year 2100."""
_LEDGER_ROW: Final = spark_types(LedgerRow)
_LEDGER_ROWS: Final = f"array<{struct_of(_LEDGER_ROW)}>"
_RECEIPT: Final = struct_of(
    spark_types(
        Receipt,
        "message_id",
        "client_id",
        "outcome",
        "reason_code",
        "attempts",
        "accepted_ms",
        "first_sent_ms",
        "outcome_ms",
        "detail",
        "fast_path",
    )
)
_DEATHS: Final = f"array<{struct_of(spark_types(DeathJson, 'queue', 'reason', 'count', 'time'))}>"


def ledger_rows(records: DataFrame) -> DataFrame:
    """Each element of each array is a row."""
    key, text = _text("key"), _text("value")
    parsed = F.from_json(text, _LEDGER_ROWS)
    unreadable = {
        "transition": F.lit(UNREADABLE),
        "batch_ms": F.unix_millis("timestamp"),
        "detail": F.substring(text, 1, _SHOWN_CHARACTERS),
    }
    nothing = F.array(F.struct(*(unreadable.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _LEDGER_ROW.items())))
    readable = F.forall(parsed, lambda row: row["transition"].isNotNull() & _is_time(row["batch_ms"]))
    exploded = records.select(
        key.alias("key"),
        F.xxhash64("key", "value").alias("record_hash"),
        F.col("partition"),
        F.col("offset"),
        F.posexplode(F.when(F.coalesce(readable, F.lit(False)), parsed).otherwise(nothing)).alias("row_index", "row"),
    )
    row = F.col("row")
    return _select(
        exploded,
        LEDGER,
        client_id=F.coalesce(row["client_id"], F.col("key"), F.lit("")),
        message_id=row["message_id"],
        time=F.timestamp_millis(_time_or(row["time_ms"], row["batch_ms"])),
        transition=row["transition"],
        attempt=F.coalesce(row["attempt"], F.lit(0)),
        packet_id=row["packet_id"],
        outcome=row["outcome"],
        reason_code=F.coalesce(row["reason_code"], F.lit(0)),
        detail=F.coalesce(row["detail"], F.lit("")),
        batch_ms=row["batch_ms"],
        date=_day(row["batch_ms"]),
    )


def dead_letter_rows(records: DataFrame) -> DataFrame:
    """The record as it is, and what people ask for as columns."""
    history = _header(dead_letters.DEATHS)
    deaths = F.from_json(history, _DEATHS)
    newest = F.coalesce(_integer(_header(dead_letters.LAST_DEATH + "time"), "bigint"), F.get(deaths, F.lit(0))["time"])
    died_ms = _time_or(newest, F.unix_millis("timestamp"))
    content = F.to_json(F.struct("topic", "key", "value", "headers"))
    return _select(
        records.withColumn("died_ms", died_ms),
        DEAD_LETTERS,
        dead_letter_id=F.md5(content),
        client_id=F.coalesce(_text("key"), F.lit("")),
        message_id=F.coalesce(_header(messages.MESSAGE_ID), _position()),
        time=F.col("timestamp"),
        reason=F.coalesce(_header(dead_letters.LAST_DEATH + "reason"), F.get(deaths, F.lit(0))["reason"]),
        deaths=F.coalesce(
            F.aggregate(deaths, F.lit(0), lambda total, death: total + F.coalesce(death["count"], F.lit(1))), F.lit(0)
        ),
        first_reason=_header(dead_letters.FIRST_DEATH + "reason"),
        first_queue=_header(dead_letters.FIRST_DEATH + "queue"),
        detail=F.coalesce(_header(dead_letters.DETAIL), F.lit("")),
        topic=_header(messages.TOPIC),
        qos=_integer(_header(messages.QOS), "int"),
        priority=F.coalesce(_integer(_header(messages.PRIORITY), "int"), F.lit(0)),
        **{CONTENT_TYPE.field: _property(CONTENT_TYPE)},
        payload=F.coalesce(F.col("value"), F.lit(b"")),
        headers=F.col("headers"),
        x_death=history,
        replay_of=_header(dead_letters.REPLAY_OF),
        replays=F.coalesce(_integer(_header(dead_letters.REPLAYS), "int"), F.lit(0)),
        kafka_topic=F.col("topic"),
        date=_day(F.col("died_ms")),
    )


def bound_table(names: Sequence[str]) -> Column:
    """The table that a dead letter's exchange names, if it is one of `names`; null = `dead_letters`, for all others."""
    named = _header(dead_letters.TABLE)
    return F.when(named.isin(*names), named) if names else F.lit(None).cast("string")


def uplink_rows(records: DataFrame, *, events_topic: str) -> DataFrame:
    """events_topic: ids that begin with it were given by the engine, and end with the offset of the event."""
    inflight_id = F.coalesce(_header(uplink.INFLIGHT_ID), _position())
    event_offset = F.when(
        F.startswith(inflight_id, F.lit(f"{events_topic}-")), _integer(F.substring_index(inflight_id, "-", -1), "bigint")
    )
    return _select(
        records.withColumn("event_offset", event_offset),
        UPLINK,
        inflight_id=inflight_id,
        client_id=F.coalesce(_header(uplink.CLIENT_ID), _text("key"), F.lit("")),
        time=F.col("timestamp"),
        topic=_header(messages.TOPIC),
        qos=_integer(_header(messages.QOS), "int"),
        retain=F.coalesce(_header(messages.RETAIN) == uplink.TRUE.decode(), F.lit(False)),
        payload=F.coalesce(F.col("value"), F.lit(b"")),
        **{row.field: _property(row) for row in PROPERTIES},
        message_expiry_s=_integer(_header(uplink.MESSAGE_EXPIRY), "bigint"),
        appended_ms=F.when(F.col("event_offset").isNull(), F.unix_millis("timestamp")),
        date=F.to_date("timestamp"),
    )


def receipt_rows(records: DataFrame) -> DataFrame:
    """One record is one row; what is no receipt keeps its text in `detail`."""
    parsed = records.withColumn("receipt", F.from_json(_text("value"), _RECEIPT)).withColumn(
        "record_hash", F.xxhash64("key", "value")
    )
    receipt = F.col("receipt")
    outcome_ms = _time_or(receipt["outcome_ms"], F.unix_millis("timestamp"))
    accepted_ms = _time_or(receipt["accepted_ms"], F.lit(None))
    return _select(
        parsed,
        RECEIPTS,
        client_id=F.coalesce(receipt["client_id"], _text("key"), F.lit("")),
        message_id=F.coalesce(receipt["message_id"], _position()),
        outcome=F.coalesce(receipt["outcome"], F.lit(UNREADABLE)),
        reason_code=F.coalesce(receipt["reason_code"], F.lit(0)),
        attempts=F.coalesce(receipt["attempts"], F.lit(0)),
        accepted=F.timestamp_millis(accepted_ms),
        first_sent=F.timestamp_millis(_time_or(receipt["first_sent_ms"], F.lit(None))),
        time=F.timestamp_millis(outcome_ms),
        latency_ms=outcome_ms - accepted_ms,
        detail=F.when(receipt["outcome"].isNull(), F.substring(_text("value"), 1, _SHOWN_CHARACTERS)).otherwise(
            F.coalesce(receipt["detail"], F.lit(""))
        ),
        outcome_ms=outcome_ms,
        fast_path=receipt["fast_path"],
        date=_day(outcome_ms),
    )


def _select(records: DataFrame, spec: TableSpec, **columns: Column) -> DataFrame:
    """The columns of `spec` in their order; those that are not given have the same name in `records`."""
    given = {"kafka_partition": F.col("partition"), "kafka_offset": F.col("offset"), **columns}
    return records.select(
        *(given.get(column.name, F.col(column.name)).cast(column.sql_type).alias(column.name) for column in spec.columns)
    )


def _property(row: Property) -> Column:
    """Returns the value of an MQTT 5 property, made of the record's headers."""
    match row.kind:
        case PropertyKind.FLAG:
            return _integer(_header(row.header), "int")
        case PropertyKind.BINARY:
            return _raw_header(row.header)
        case PropertyKind.TEXT_PAIRS:
            pairs = F.transform(
                F.filter("headers", lambda header: F.startswith(header["key"], F.lit(row.header))),
                lambda header: F.struct(
                    F.substr(header["key"], F.lit(len(row.header) + 1)).alias("name"), _as_text(header["value"]).alias("value")
                ),
            )
            return F.coalesce(pairs, F.array().cast("array<struct<name: string, value: string>>"))
        case _:
            return _header(row.header)


def _raw_header(name: str) -> Column:
    """The last header of that name, as bytes; null = there is none."""
    return F.try_element_at(F.filter("headers", lambda header: header["key"] == name), F.lit(-1))["value"]


def _header(name: str) -> Column:
    return _as_text(_raw_header(name))


def _text(column: str) -> Column:
    return _as_text(F.col(column))


def _as_text(binary: Column) -> Column:
    """UTF-8 with U+FFFD for what is not; null stays null."""
    return F.make_valid_utf8(binary.cast("string"))


def _is_time(milliseconds: Column) -> Column:
    """A time that a table can hold; what others write into Kafka may be any number."""
    return milliseconds.between(0, _LATEST_MS)


def _time_or(milliseconds: Column, otherwise: Column) -> Column:
    return F.when(_is_time(milliseconds), milliseconds).otherwise(otherwise)


def _integer(text: Column, sql_type: str) -> Column:
    """Null for what is no whole number, whatever spark.sql.ansi.enabled says."""
    return text.try_cast(sql_type)


def _position() -> Column:
    return F.concat_ws("-", F.col("topic"), F.col("partition"), F.col("offset"))


def _day(milliseconds: Column) -> Column:
    return F.to_date(F.timestamp_millis(milliseconds))
