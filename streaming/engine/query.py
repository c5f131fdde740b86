"""The query `sessions` as transforms of DataFrames: Kafka → (client_id, record) → state operator → (records) → Kafka.

Each border is one `select`; nothing else may pass it. No I/O happens until `start` is called on what `sessions_writer` returns.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupStateTimeout

from state.records.events import WAKE_UP_KEY
from streaming.engine.intake.newer_events import refused_if_newer
from streaming.engine.operator.cells import EVENTS, MESSAGES
from streaming.engine.operator.session_operator import UNADDRESSED, Function, SessionOperator
from streaming.engine.operator.settings import PipelineSettings
from streaming.engine.operator.sink_columns import SINK_SCHEMA
from streaming.engine.operator.state_row import STATE_SCHEMA

QUERY_NAME: Final = "sessions"


def read_records(
    spark: SparkSession,
    settings: PipelineSettings,
    *,
    kafka_options: Mapping[str, str],
    max_offsets_per_trigger: int,
    starting_offsets: Mapping[str, str] | None = None,
    partitions: Mapping[str, int] | None = None,
) -> DataFrame:
    """The stream of messages and events, as Kafka's source has it. kafka_options: `kafka.bootstrap.servers` and security.
    starting_offsets: by topic, Spark's `startingOffsets` for a new checkpoint; without one it begins with the earliest record.
    partitions: by topic, how many to read, from the first one on; all where it says nothing, also those that are added later.

    A source for each topic, and `max_offsets_per_trigger` for each: with one source for both, Spark shares the limit out by what
    waits, and the acknowledgements of devices would wait behind a backlog of messages until those they answer are sent again.
    """
    options = {
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        # Producers of backends may use transactions; what they abort was never sent.
        "kafka.isolation.level": "read_committed",
        # A task that has read to the end would else wait 500 ms for more.
        "kafka.fetch.max.wait.ms": "10",
        **kafka_options,
    }
    events, messages = (
        spark.readStream.format("kafka")
        .options(**options)
        .option("startingOffsets", (starting_offsets or {}).get(topic, "earliest"))
        .options(**_selection(topic, (partitions or {}).get(topic)))
        .load()
        for topic in (settings.topics.events, settings.topics.messages)
    )
    return _in_few_tasks(events.union(messages), spark)


def source_records(records: DataFrame, settings: PipelineSettings) -> DataFrame:
    """client_id: string, never null, the empty string for a key that is no client id. record: binary, operator/cells.py.

    Wake-up records have done their work when they are read, and end here. An event of a newer version ends the query here
    (intake/newer_events.py).
    """
    addressed = _is_client_id(F.col("key"), settings.limits.max_client_id_bytes)
    is_event, value = F.col("topic") == settings.topics.events, F.col("value")
    if settings.stop_at_newer_events:
        value = F.when(is_event, refused_if_newer(value)).otherwise(value)
    record = F.struct(
        F.when(is_event, EVENTS).otherwise(MESSAGES).alias("s"),
        F.col("partition").alias("p"),
        F.col("offset").alias("o"),
        F.unix_millis("timestamp").alias("t"),
        F.col("headers").alias("h"),
        value.alias("v"),
        F.when(~addressed, F.col("key")).alias("k"),
    )
    is_wake_up = is_event & F.col("key").eqNullSafe(F.lit(WAKE_UP_KEY))
    return records.where(~is_wake_up).select(
        F.when(addressed, F.col("key").cast("string")).otherwise(UNADDRESSED).alias("client_id"),
        F.to_json(record).cast("binary").alias("record"),
    )


def sessions(records: DataFrame, settings: PipelineSettings, function: Function | None = None) -> DataFrame:
    """The whole transform: records of Kafka in, and out, as its sink wants them, topic, key, value, headers and partition.

    function: another state operator in place of the session (the benchmark's trivial one).
    """
    return (
        source_records(records, settings)
        .groupBy("client_id")
        .applyInPandasWithState(
            function or SessionOperator(settings),
            outputStructType=SINK_SCHEMA,
            stateStructType=STATE_SCHEMA,
            outputMode="append",
            timeoutConf=GroupStateTimeout.ProcessingTimeTimeout,
        )
    )


def sessions_writer(
    rows: DataFrame,
    settings: PipelineSettings,
    *,
    kafka_options: Mapping[str, str],
    checkpoint_location: str,
    trigger_interval_ms: int,
) -> DataStreamWriter:
    """Writes `sessions` to Kafka; call `start()`. A micro-batch is committed after Kafka has confirmed all its records."""
    options = {
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        # The broker's max.message.bytes is the limit that counts, and RecordLimits.max_record_bytes keeps us below it.
        "kafka.max.request.size": str(4 * settings.limits.max_record_bytes),
        **kafka_options,
    }
    return (
        rows.writeStream.queryName(QUERY_NAME)
        .format("kafka")
        .outputMode("append")
        .options(**options)
        .option("checkpointLocation", checkpoint_location)
        # With an interval of 0 Spark would never ask its clock (streaming/engine/pacing).
        .trigger(processingTime=f"{max(1, trigger_interval_ms)} milliseconds")
    )


def _in_few_tasks(records: DataFrame, spark: SparkSession) -> DataFrame:
    """On one machine a task reads several of Kafka's partitions, so that all tasks run at once: each costs some 10 ms by itself.

    On a cluster each partition has a task, where a consumer of it is kept.
    """
    context = spark.sparkContext
    return records.coalesce(context.defaultParallelism) if (context.master or "").startswith("local") else records


def _selection(topic: str, partitions: int | None) -> dict[str, str]:
    if partitions is None:
        return {"subscribe": topic}
    return {"assign": json.dumps({topic: list(range(partitions))})}


def _is_client_id(key: Column, max_bytes: int) -> Column:
    """False, never null, for what Arrow or MQTT could not carry: no key, an empty one, one that is too long or not UTF-8."""
    valid = F.length(key).between(1, max_bytes) & F.is_valid_utf8(key.cast("string"))
    return F.coalesce(valid, F.lit(False))
