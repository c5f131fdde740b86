"""Defines the query `sessions` as transforms of DataFrames: Kafka → (client_id, record) → state operator → (records) → Kafka.

Each boundary is one `select`, the schema contract there. No I/O happens until `start` is called on the result of
`sessions_writer`.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupStateTimeout

from state.model import numbered_partition
from state.records.events import WAKE_UP_KEY
from state.records.routing import MAX_RECIPIENTS, RECIPIENT_PREFIX
from streaming.engine.intake.newer_events import refused_if_newer
from streaming.engine.operator.cells import EVENTS, MESSAGES
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import UNADDRESSED, Function, SessionOperator
from streaming.engine.operator.sink_columns import SINK_SCHEMA
from streaming.engine.operator.state_row import STATE_SCHEMA
from streaming.engine.spark_options import SLOTS_OF_A_PROCESSOR

QUERY_NAME: Final = "sessions"

_POLLED: Final = 2
_MOST_POLLED: Final = 500
"""Kafka's default."""
_HEADER_BYTES: Final = 16
"""Counted for a header beside its name and value: an empty one takes space in each format, too."""


def read_records(
    spark: SparkSession,
    settings: PipelineSettings,
    *,
    kafka_options: Mapping[str, str],
    max_offsets_per_trigger: int,
    starting_offsets: Mapping[str, str] | None = None,
    partitions: Mapping[str, int] | None = None,
) -> DataFrame:
    """Returns the stream of messages and events with the columns of Kafka's source.

    Each topic has a source with `max_offsets_per_trigger` of its own. Spark would distribute the limit of a common source by what
    waits. Acknowledgements would then wait behind a backlog of messages, until the messages they answer are sent again.

    Args:
        kafka_options: `kafka.bootstrap.servers` and security.
        starting_offsets: By topic, Spark's `startingOffsets` for a new checkpoint. Default: the earliest record.
        partitions: By topic, how many to read, from the first on. Default: all, including those added later.
    """
    options = {
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        # Producers of backends may use transactions; aborted records were never sent.
        "kafka.isolation.level": "read_committed",
        # Otherwise a task that has read to the end waits 500 ms for more.
        "kafka.fetch.max.wait.ms": "10",
        # A consumer decompresses so many records at once, whatever the micro-batch takes of them: more than that may have
        # would not fit in memory, fewer cost a fetch each.
        "kafka.max.poll.records": str(min(_MOST_POLLED, _POLLED * max_offsets_per_trigger)),
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
    context = spark.sparkContext
    if not (context.master or "").startswith("local"):
        return events.union(messages)  # on a cluster each partition keeps its task, where a consumer of it is cached
    return in_few_tasks(events, messages, max(1, context.defaultParallelism // SLOTS_OF_A_PROCESSOR))


def source_records(records: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Selects the columns that the state operator gets.

    client_id: string, never null, empty for a key that is no client id. record: binary, operator/cells.py. Wake-up records have
    had their effect when they are read, and are dropped. An event of a newer version ends the query (intake/newer_events.py).

    Of a record that is too large only its size goes on: it would need its size once more in each format on the way.

    A message for several clients becomes one row for each recipient (state/records/routing.py).
    """
    limits = settings.limits
    records = _for_each_recipient(records, settings)
    addressed = _is_client_id(F.col("key"), limits.max_client_id_bytes)
    is_event, value = F.col("topic") == settings.topics.events, F.col("value")
    if settings.stop_at_newer_events:
        value = F.when(is_event, refused_if_newer(value)).otherwise(value)
    size, largest = _size_bytes(), F.when(is_event, limits.max_event_record_bytes).otherwise(limits.max_message_record_bytes)
    fits = size <= largest
    record = F.struct(
        F.when(is_event, EVENTS).otherwise(MESSAGES).alias("s"),
        _numbered_partition(is_event, settings).alias("p"),
        F.col("offset").alias("o"),
        F.unix_millis("timestamp").alias("t"),
        F.when(fits, F.col("headers")).alias("h"),
        F.when(fits, value).alias("v"),
        F.when(~addressed, F.when(fits, F.col("key")).otherwise(F.substring("key", 1, limits.max_client_id_bytes))).alias("k"),
        F.col("recipient").alias("r"),
        F.when(~fits, size).alias("b"),
    )
    is_wake_up = is_event & F.col("key").eqNullSafe(F.lit(WAKE_UP_KEY))
    return records.where(~is_wake_up).select(
        F.when(addressed, F.col("key").cast("string")).otherwise(UNADDRESSED).alias("client_id"),
        F.to_json(record).cast("binary").alias("record"),
    )


def sessions(records: DataFrame, settings: PipelineSettings, function: Function | None = None) -> DataFrame:
    """Transforms records of Kafka into the columns of Kafka's sink: topic, key, value, headers, partition.

    Args:
        function: Another state operator instead of the session's (the benchmark's trivial one).
    """
    return (
        source_records(records, settings)
        .groupBy("client_id")
        .applyInPandasWithState(
            function or SessionOperator(settings),
            outputStructType=SINK_SCHEMA,
            stateStructType=STATE_SCHEMA,
            outputMode="append",
            # Due sessions come as records (pacing/session_timers.py): Spark would look through all of them in each micro-batch.
            timeoutConf=GroupStateTimeout.NoTimeout,
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
    """Returns the writer of `sessions` to Kafka; call its `start()`. A micro-batch commits when Kafka has confirmed all."""
    options = {
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        # Large, so that Spark's client refuses no record: the broker's limit counts, and max_record_bytes keeps records below it.
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


def _for_each_recipient(records: DataFrame, settings: PipelineSettings) -> DataFrame:
    """Explodes the recipients of messages without a key: into `key`, and into `recipient` what the record says of them.

    Other records stay one row, with null as `recipient`. So does a record with more recipients than are allowed, which then
    addresses nobody.

    A row has the headers in front of its recipients if these are the last ones, as the matcher writes them. Otherwise it has all,
    and `message_event` leaves the recipients out (operator/to_events.py).
    """
    headers, one = F.col("headers"), F.col("one")
    names_nobody = F.col("key").isNull() & (F.col("topic") == settings.topics.messages)
    records = records.withColumn("recipients", F.when(names_nobody, _recipients_in(headers)))
    names_several = F.col("recipients").between(1, MAX_RECIPIENTS)
    front = F.slice(headers, F.lit(1), F.size(headers) - F.col("recipients"))
    others = F.when(names_several, F.when(_recipients_in(front) == 0, front).otherwise(headers))
    records = records.withColumn("others", others).withColumn("one", F.explode_outer(F.when(names_several, headers)))
    name = F.substr("one.key", F.lit(len(RECIPIENT_PREFIX) + 1))
    columns = {
        "key": F.when(one.isNotNull(), name.cast("binary")).otherwise(F.col("key")),
        "headers": F.coalesce("others", headers),
        "recipient": F.when(one.isNotNull(), F.coalesce("one.value", F.lit(b""))),
    }
    is_recipient = one.isNull() | F.col("one.key").startswith(RECIPIENT_PREFIX)
    return records.where(is_recipient).withColumns(columns).drop("one", "others", "recipients")


def _recipients_in(headers: Column) -> Column:
    """Yields the number of headers that name a recipient.

    They are counted in the JSON text of all names, `["name","name"]`. A quote between a comma and a word begins a name: within a
    name a backslash precedes it, and behind a name comes no word. A function over the elements, such as `filter`, costs more than
    everything else for a record: Spark interprets it, and makes no common code of the steps around it.
    """
    begin = f',"{RECIPIENT_PREFIX}'
    names = F.concat(F.lit(","), F.substr(F.to_json(headers["key"]), F.lit(2)))
    found = F.octet_length(names) - F.octet_length(F.replace(names, F.lit(begin)))
    return (found / len(begin)).cast("int")


def in_few_tasks(events: DataFrame, messages: DataFrame, tasks: int) -> DataFrame:
    """Returns the records of both, read in so many tasks. Each task makes the code of its expressions anew.

    A task reads neighbouring partitions, so those of the events are brought together first. Otherwise half of the tasks would
    read no messages, and a burst would wait for the others (docs/decisions/0054-bursts.md).
    """
    return events.coalesce(max(1, tasks // 2)).union(messages).coalesce(tasks)


def _selection(topic: str, partitions: int | None) -> dict[str, str]:
    if partitions is None:
        return {"subscribe": topic}
    return {"assign": json.dumps({topic: list(range(partitions))})}


def _numbered_partition(is_event: Column, settings: PipelineSettings) -> Column:
    """Yields the partition of a record with the generation of its topic."""
    number = F.col("partition")
    if not settings.messages_generation and not settings.events_generation:
        return number
    events, messages = (
        numbered_partition(0, generation) for generation in (settings.events_generation, settings.messages_generation)
    )
    return number.cast("long") + F.when(is_event, F.lit(events)).otherwise(F.lit(messages))


def _size_bytes() -> Column:
    """Yields the size of a record as it was written; never null. Headers are measured joined, without a function over each."""
    headers = F.col("headers")
    names, values = F.array_join(headers["key"], ""), F.array_join(headers["value"].cast("array<string>"), "")
    parts = F.length("key"), F.length("value"), _HEADER_BYTES * F.size(headers), F.length(names), F.octet_length(values)
    return sum((F.coalesce(part, F.lit(0)) for part in parts), start=F.lit(0).cast("long"))


def _is_client_id(key: Column, max_bytes: int) -> Column:
    """Yields False, never null, for keys that Arrow or MQTT cannot carry: none, an empty, a too long, or a non-UTF-8 one."""
    valid = F.length(key).between(1, max_bytes) & F.is_valid_utf8(key.cast("string"))
    return F.coalesce(valid, F.lit(False))
