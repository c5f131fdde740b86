"""Makes the rows by which people see the sessions: the columns of `inflight sessions`, from the checkpoint."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.engine.operator.state_row import QUARANTINED_ROW_VERSION
from streaming.spark_internals.state_rows import state_rows


def session_rows(spark: SparkSession, checkpoint: str, *, blobs: bool = False) -> DataFrame:
    """Returns the sessions of the newest committed state.

    Args:
        blobs: Adds their stored form in `version` and `blob`.

    Raises:
        SPARK_ERRORS: The checkpoint cannot be read; before the first micro-batch it never can.
    """
    return state_rows(spark, checkpoint).select(
        *("client_id", "connected", "inflight", "queued", "queued_bytes"),
        F.timestamp_millis("oldest_unacked_ms").alias("oldest_unacked"),
        F.timestamp_millis("next_deadline_ms").alias("next_deadline"),
        F.length("blob").alias("state_bytes"),
        "partition_id",
        (F.col("version") == QUARANTINED_ROW_VERSION).alias("quarantined"),
        *(("version", "blob") if blobs else ()),
    )


def longest_queues(rows: DataFrame, *, limit: int, prefix: str = "") -> DataFrame:
    """Returns the sessions with the longest queues first.

    Args:
        prefix: How their client ids begin.
    """
    chosen = rows.where(F.startswith(F.col("client_id"), F.lit(prefix))) if prefix else rows
    return chosen.orderBy("queued", "inflight", "client_id", ascending=[False, False, True]).limit(limit)


def json_documents(rows: DataFrame) -> DataFrame:
    """Returns one column, `document`: each row as JSON with all fields, times in ISO 8601, binary as base64."""
    return rows.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("document"))
