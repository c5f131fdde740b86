"""How many messages ended how, and how many clients were quarantined: counted while receipts and dead letters pass by on their
way to Kafka, told by each micro-batch's progress."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.dead_letters.quarantine import ROW_VERSION
from state.model import Outcome
from streaming.engine.operator.settings import PipelineSettings
from streaming.engine.progress import CLIENTS_QUARANTINED, OUTCOMES


def counted(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    """The same rows. What is counted is the receipts among them, so no message is when `engine.receipts` is off."""
    is_receipt = F.col("topic") == settings.topics.receipts
    outcome = F.when(is_receipt, F.get_json_object(F.col("value").cast("string"), "$.outcome"))
    # The copy of the client's blob. It is no message, so its first header, the MQTT topic, is empty.
    names = F.transform(F.col("headers"), lambda header: header["key"])
    is_blob = F.array_contains(names, ROW_VERSION) & (F.get(F.col("headers"), F.lit(0))["value"] == F.lit(b""))
    is_quarantine = F.when(F.col("topic") == settings.topics.dead_letters, is_blob)
    counts = [F.count_if(F.col(OUTCOMES) == one.value).alias(one.value) for one in Outcome]
    counts.append(F.count_if(F.coalesce(is_quarantine, F.lit(False))).alias(CLIENTS_QUARANTINED))
    return rows.withColumn(OUTCOMES, outcome).observe(OUTCOMES, *counts).drop(OUTCOMES)
