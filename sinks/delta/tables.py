"""Appends rows of a streaming query to Delta tables, each row once.

A row can come twice for two reasons:

1. Spark repeats a micro-batch of this query that was killed between the commit of the table and its own. Delta remembers the
   number of the newest micro-batch of each writer (`txnAppId`, `txnVersion`) and skips it.
2. The writer of the Kafka topic repeats a record, because its own micro-batch was executed again. The copy has another offset and
   the same content, so rows are compared by a key made of content with the rows of the table that can be equal.

For 2 only a small part of the table is read. A table names columns (`CopyBound`) whose values are the same in a copy, and Delta's
file statistics leave out every file that has none of the values of the micro-batch.
"""

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sinks.delta.spec import PARTITION, TableSpec

ROWS_PER_FILE: Final = 250_000
"""A micro-batch of up to this many rows is one file, written by one task. The other cores are left to the sessions."""

TABLE_PROPERTIES: Final = {
    # Files that compaction has replaced stay for readers that began before it.
    "delta.deletedFileRetentionDuration": "interval 1 day",
    "delta.logRetentionDuration": "interval 7 days",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTransaction:
    """Names a write, which Delta applies once.

    Attributes:
        app_id: The writer, different for each checkpoint.
        version: Counts the writes of this writer.
    """

    app_id: str
    version: int

    @property
    def options(self) -> dict[str, str]:
        return {"txnAppId": self.app_id, "txnVersion": str(self.version)}


def create_table(spark: SparkSession, spec: TableSpec, location: str) -> None:
    """Makes the table if there is none at `location`. A table of an older version gets the columns that it does not have."""
    if DeltaTable.isDeltaTable(spark, location):
        _add_columns(spark, spec, location)
        return
    builder = DeltaTable.createIfNotExists(spark).location(location).comment(spec.comment).partitionedBy(PARTITION)
    for column in spec.columns:
        builder = builder.addColumn(column.name, column.sql_type, comment=column.comment)
    for name, value in TABLE_PROPERTIES.items():
        builder = builder.property(name, value)
    builder.execute()


def _add_columns(spark: SparkSession, spec: TableSpec, location: str) -> None:
    known = spark.read.format("delta").load(location).columns
    missing = [column for column in spec.columns if column.name not in known]
    if missing:
        added = ", ".join(f'{column.name} {column.sql_type} COMMENT "{column.comment}"' for column in missing)
        spark.sql(f"ALTER TABLE delta.`{location}` ADD COLUMNS ({added})")


def append_new(rows: DataFrame, spec: TableSpec, location: str, transaction: DeltaTransaction) -> int:
    """Appends the rows that the table does not have, in one commit. Returns how many rows came, copies included.

    `rows` has the columns of `spec`. It is computed once and kept in memory meanwhile. Without rows nothing is committed.
    """
    kept = rows.select(*spec.column_names).persist()
    try:
        return _append_new(kept, spec, location, transaction)
    finally:
        kept.unpersist()


def _append_new(rows: DataFrame, spec: TableSpec, location: str, transaction: DeltaTransaction) -> int:
    measures = [F.count(F.lit(1)).alias("rows")]
    for bound in spec.bounds:
        measures += [F.min(bound.column).alias(f"min_{bound.column}"), F.max(bound.column).alias(f"max_{bound.column}")]
    found = rows.agg(*measures).first()
    if found is None or found["rows"] == 0:
        return 0
    came = int(found["rows"])
    limits = {bound.column: (found[f"min_{bound.column}"], found[f"max_{bound.column}"]) for bound in spec.bounds}
    comparable = _within(spec, limits)
    known = None
    if comparable is not None:
        known = rows.sparkSession.read.format("delta").load(location).where(comparable).select(*spec.key)
    new = _without_copies(rows, known, list(spec.key)) if _may_have_copies(rows, known, list(spec.key)) else rows
    if came <= ROWS_PER_FILE:
        new = new.coalesce(1)
    (
        new.select(*spec.column_names)
        .sortWithinPartitions(PARTITION, spec.cluster_by)
        .write.format("delta")
        .mode("append")
        .option("compression", "zstd")
        .options(**transaction.options)
        .save(location)
    )
    return came


def _may_have_copies(rows: DataFrame, known: DataFrame | None, key: list[str]) -> bool:
    """Returns False only if every key in `rows` is there once and not in `known`.

    Copies are rare, and counting hashes costs a small part of a shuffle of whole rows. Two keys with the same hash only cost that
    shuffle.
    """
    hashes = rows.select(F.xxhash64(*key).alias("hash"), F.lit(True).alias("is_new"))
    if known is not None:
        # A key that the table has several times counts once.
        hashes = hashes.unionAll(known.select(F.xxhash64(*key).alias("hash"), F.lit(False).alias("is_new")).distinct())
    counted = hashes.groupBy("hash").agg(F.count(F.lit(1)).alias("times"), F.max("is_new").alias("is_new"))
    return not counted.where((F.col("times") > 1) & F.col("is_new")).limit(1).isEmpty()


def _without_copies(rows: DataFrame, known: DataFrame | None, key: list[str]) -> DataFrame:
    once = rows.dropDuplicates(key)
    return once if known is None else once.join(known, on=key, how="left_anti")


def _within(spec: TableSpec, limits: Mapping[str, tuple[int | None, int | None]]) -> Column | None:
    conditions: list[Column] = []
    for bound in spec.bounds:
        low, high = limits[bound.column]
        if low is not None and high is not None:
            conditions.append(F.col(bound.column).between(low - bound.slack, high + bound.slack))
    return functools.reduce(operator.or_, conditions) if conditions else None


def compact(spark: SparkSession, location: str, *, from_date: str, until_date: str, cluster_by: str | None) -> None:
    """Rewrites the days from_date ≤ date < until_date (ISO) as few files instead of many (OPTIMIZE).

    Args:
        cluster_by: Sorts the days by this column too (Z-order), so a look-up reads few files. It rewrites all files, so use it
            for days that are over. None = keep the order.
    """
    builder = (
        DeltaTable.forPath(spark, location).optimize().where(f"{PARTITION} >= '{from_date}' AND {PARTITION} < '{until_date}'")
    )
    if cluster_by is None:
        builder.executeCompaction()
    else:
        builder.executeZOrderBy(cluster_by)


def drop_days_before(spark: SparkSession, location: str, date: str) -> None:
    """Deletes the days before `date` (ISO) from the table, if there are any; `vacuum` later deletes the files."""
    table = DeltaTable.forPath(spark, location)
    old = F.col(PARTITION) < F.lit(date).cast("date")
    if table.toDF().where(old).limit(1).count():
        table.delete(old)


def vacuum(spark: SparkSession, location: str) -> None:
    """Deletes the files that no version within `delta.deletedFileRetentionDuration` needs."""
    DeltaTable.forPath(spark, location).vacuum()


def properties(spark: SparkSession, location: str) -> dict[str, str]:
    """Returns the table's properties."""
    row = DeltaTable.forPath(spark, location).detail().select("properties").first()
    return {} if row is None else dict(row["properties"])


def set_property(spark: SparkSession, location: str, name: str, value: str) -> None:
    """Stores a property in the table."""
    quoted = location.replace("`", "``")
    spark.sql(f"ALTER TABLE delta.`{quoted}` SET TBLPROPERTIES ('{name}' = '{value}')")
