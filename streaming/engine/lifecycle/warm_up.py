"""Runs the query `sessions` for a moment on made-up records, so that a waiting engine has loaded and compiled what it will need.

The same plan as the engine's: both sources of Kafka, the operator in Python workers, RocksDB, and Kafka's sink. It has a scratch
checkpoint of its own, and nothing that it makes is written to Kafka. It reads the newest record of each partition, whose session
it does not know, and messages to a client that does not exist.
"""

import json
import shutil
import tempfile
import time
from typing import Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.checkpoint_topics import topic_bounds
from streaming.config.settings import Settings
from streaming.engine.kafka_access import Partitions
from streaming.engine.operator.by_batch import BatchSettings, OperatorByBatch
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.query import read_records, sessions, sessions_writer
from streaming.engine.temporary_files import temporary_directory
from streaming.spark_internals.query_progress import new_reports

_CLIENT: Final = b"inflight-warm-up"
_BATCHES: Final = 3
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_log: Final = structlog.get_logger(__name__)


def warm_up(spark: SparkSession, settings: Settings, pipeline: PipelineSettings, partitions: Partitions) -> None:
    """Returns when some micro-batches have run. A failure is logged: the engine then only takes over more slowly.

    Args:
        partitions: The partitions of the topics that the engine reads.
    """
    if not (spark.sparkContext.master or "").startswith("local"):
        return  # executors on other machines need a checkpoint that they share
    began_s = time.monotonic()
    directory = tempfile.mkdtemp(prefix="warm-up-", dir=temporary_directory(settings.checkpoint_location))
    try:
        _run(spark, settings, pipeline, partitions, directory)
    except Exception as error:  # noqa: BLE001 - it can take over all the same
        _log.warning("warm_up_failed", error=repr(error), action="nothing; a takeover takes some seconds longer")
    else:
        _log.info("warmed_up", seconds=round(time.monotonic() - began_s, 1))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(spark: SparkSession, settings: Settings, pipeline: PipelineSettings, partitions: Partitions, directory: str) -> None:
    kafka_options = settings.kafka.spark_options()
    records = read_records(
        spark,
        pipeline,
        kafka_options=kafka_options,
        max_offsets_per_trigger=_BATCHES,
        starting_offsets=_newest_records(settings, partitions),
    )
    operator = OperatorByBatch(BatchSettings(current=pipeline))
    rows = sessions(records.unionByName(_made_up(spark, records, pipeline)), pipeline, operator)
    query = sessions_writer(
        rows.where(F.col("topic") == ""),
        pipeline,
        kafka_options=kafka_options,
        checkpoint_location=directory,
        trigger_interval_ms=settings.engine.trigger_interval_ms,
    ).start()
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while len(new_reports(query, after_batch_id=-1)) < _BATCHES and query.isActive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if (error := query.exception()) is not None:
            raise error
    finally:
        query.stop()


def _made_up(spark: SparkSession, records: DataFrame, pipeline: PipelineSettings) -> DataFrame:
    """Returns a stream of messages with the columns of Kafka's source, one in each micro-batch."""
    columns = {
        "key": F.lit(_CLIENT),
        "value": F.lit(b""),
        "topic": F.lit(pipeline.topics.messages),
        "partition": F.lit(0),
        "offset": F.col("value"),
        "timestamp": F.current_timestamp(),
        "timestampType": F.lit(0),
        "headers": F.array(F.struct(F.lit("mqtt-topic").alias("key"), F.lit(_CLIENT).alias("value"))),
    }
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return stream.select(*(columns[field.name].cast(field.dataType).alias(field.name) for field in records.schema))


def _newest_records(settings: Settings, partitions: Partitions) -> dict[str, str]:
    """Returns Spark's `startingOffsets` by topic."""
    bounds = topic_bounds(settings, {topic: dict.fromkeys(numbers, 0) for topic, numbers in partitions.items()})
    return {
        topic: json.dumps({topic: {str(number): max(end - 1, bounds.beginnings[topic][number]) for number, end in ends.items()}})
        for topic, ends in bounds.ends.items()
    }
