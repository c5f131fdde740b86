"""Makes rows of the archive's tables of the DataFrame that Kafka's source reads (streaming/archive/rows.py has the columns)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sinks.delta.spec import PARTITION, TableSpec
from state.records.ledger import LedgerRow
from state.records.receipts import Receipt
from streaming.archive.rows import (
    RECEIPT_FIELDS,
    SHOWN_CHARACTERS,
    UNREADABLE,
    dead_letter_columns,
    ledger_columns,
    receipt_columns,
    uplink_columns,
)
from streaming.archive.spark_cells import SparkCells, is_time
from streaming.archive.spark_types import spark_types, struct_of
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, UPLINK

_LEDGER_ROW: Final = spark_types(LedgerRow)
_LEDGER_ROWS: Final = f"array<{struct_of(_LEDGER_ROW)}>"
_RECEIPT: Final = struct_of(spark_types(Receipt, *RECEIPT_FIELDS))


def ledger_rows(records: DataFrame) -> DataFrame:
    """Makes each element of each array a row."""
    of = SparkCells()
    parsed = F.from_json(of.value, _LEDGER_ROWS)
    unreadable = {
        "transition": F.lit(UNREADABLE),
        "batch_ms": of.time_ms,
        "detail": F.substring(of.value, 1, SHOWN_CHARACTERS),
    }
    nothing = F.array(F.struct(*(unreadable.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _LEDGER_ROW.items())))
    readable = F.forall(parsed, lambda row: row["transition"].isNotNull() & is_time(row["batch_ms"]))
    elements = F.when(F.coalesce(readable, F.lit(False)), parsed).otherwise(nothing)
    exploded = records.select("*", _record_hash(), F.posexplode(elements).alias("row_index", "row"))
    columns = ledger_columns(of, F.col("row"), F.col("row_index"))
    return _select(exploded, LEDGER, columns, day_of=columns["batch_ms"])


def dead_letter_rows(records: DataFrame) -> DataFrame:
    """Makes each record a row of `dead_letters`."""
    columns = dead_letter_columns(SparkCells())
    return _select(records, DEAD_LETTERS, columns, day_of=columns["died_ms"])


def uplink_rows(records: DataFrame, *, events_topic: str) -> DataFrame:
    """Makes each record a row. events_topic: see `uplink_columns`."""
    columns = uplink_columns(SparkCells(), events_topic)
    return _select(records, UPLINK, columns, day_of=SparkCells().time_ms)


def receipt_rows(records: DataFrame) -> DataFrame:
    """Makes each record a row; one that is no receipt keeps its text in `detail`."""
    of, receipt = SparkCells(), F.col("receipt")
    columns = receipt_columns(of, receipt)
    text = F.substring(of.value, 1, SHOWN_CHARACTERS)
    columns["detail"] = F.when(receipt["outcome"].isNull(), text).otherwise(columns["detail"])
    columns["latency_ms"] = columns["outcome_ms"] - of.time_or(receipt["accepted_ms"], None)
    # Of a JSON array Spark would read the first element.
    parsed = F.when(F.startswith(F.ltrim(of.value), F.lit("{")), F.from_json(of.value, _RECEIPT)).alias("receipt")
    return _select(records.select("*", _record_hash(), parsed), RECEIPTS, columns, day_of=columns["outcome_ms"])


def _record_hash() -> Column:
    return F.xxhash64("key", "value").alias("record_hash")


def _select(records: DataFrame, spec: TableSpec, columns: dict[str, Column], *, day_of: Column) -> DataFrame:
    """Returns the columns of `spec` in their order; those that are not given have the same name in `records`.

    Args:
        day_of: A column, in ms since 1970, whose day is the column `date`.
    """
    columns = columns | {PARTITION: F.to_date(F.timestamp_millis(day_of))}
    cells = (columns.get(column.name, F.col(column.name)).cast(column.sql_type).alias(column.name) for column in spec.columns)
    return records.select(*cells)
