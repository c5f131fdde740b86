"""How many messages ended how: counted while the receipts pass by on their way to Kafka, told by each micro-batch's progress."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.model import Outcome
from streaming.engine.operator.settings import PipelineSettings
from streaming.engine.progress import OUTCOMES


def counted(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    """The same rows. What is counted is the receipts among them, so nothing is when `engine.receipts` is off."""
    is_receipt = F.col("topic") == settings.topics.receipts
    outcome = F.when(is_receipt, F.get_json_object(F.col("value").cast("string"), "$.outcome"))
    counts = [F.count_if(F.col(OUTCOMES) == one.value).alias(one.value) for one in Outcome]
    return rows.withColumn(OUTCOMES, outcome).observe(OUTCOMES, *counts).drop(OUTCOMES)
