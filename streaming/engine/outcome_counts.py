"""How many messages ended how, how many were sent again, and how many clients were quarantined: counted while receipts, ledger
and dead letters pass by on their way to Kafka, told by each micro-batch's progress.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.dead_letters.quarantine import ROW_VERSION
from state.model import Outcome
from streaming.engine.operator.settings import PipelineSettings
from streaming.engine.progress import CLIENTS_QUARANTINED, OUTCOMES, RESENDS


def counted(rows: DataFrame, settings: PipelineSettings) -> DataFrame:
    """The same rows. Messages are counted by their receipts, so none is when `engine.receipts` is off, and resends by the rows of
    the ledger, so none is when `engine.ledger` is off.
    """
    topics, text = settings.topics, F.col("value").cast("string")
    outcome = F.when(F.col("topic") == topics.receipts, F.get_json_object(text, "$.outcome"))
    # The copy of the client's blob. It is no message, so its first header, the MQTT topic, is empty.
    names = F.transform(F.col("headers"), lambda header: header["key"])
    is_blob = F.array_contains(names, ROW_VERSION) & (F.get(F.col("headers"), F.lit(0))["value"] == F.lit(b""))
    is_quarantine = F.when(F.col("topic") == topics.dead_letters, is_blob)
    counts = [F.count_if(F.col(OUTCOMES) == one.value).alias(one.value) for one in Outcome]
    for transition in RESENDS:
        # Not parsed: within a value of the JSON, such as an id, the quotes would be escaped.
        found = F.when(F.col("topic") == topics.ledger, F.regexp_count(text, F.lit(f'"transition":"{transition}"')))
        counts.append(F.coalesce(F.sum(found), F.lit(0)).alias(transition))
    counts.append(F.count_if(F.coalesce(is_quarantine, F.lit(False))).alias(CLIENTS_QUARANTINED))
    return rows.withColumn(OUTCOMES, outcome).observe(OUTCOMES, *counts).drop(OUTCOMES)
