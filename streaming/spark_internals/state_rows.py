"""Reads the sessions out of a checkpoint with Spark's state data source.

Tried with PySpark 4.2.0. The layout is that of `applyInPandasWithState`: a key struct of one column, and the state row in
`value.groupState`. With another layout Spark refuses the query: PySparkException.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.spark_internals.locations import location_without_escapes


def state_rows(spark: SparkSession, checkpoint: str) -> DataFrame:
    """Returns the newest committed state: `client_id`, `partition_id`, and the columns of the state row.

    Raises SPARK_ERRORS if the checkpoint cannot be read; before the first micro-batch it never can.
    """
    _ = spark.streams.active  # creates the state store coordinator, which a session without queries lacks
    rows = spark.read.format("statestore").load(location_without_escapes(checkpoint))
    (key,) = rows.select("key.*").columns
    return rows.select(F.col("key")[key].alias("client_id"), "partition_id", "value.groupState.*")
