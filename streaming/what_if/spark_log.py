"""Reads a large log of what-if in a batch job of Spark: Kafka's topics → (client_id, record), sorted by client → a Comparison per
partition."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.engine.batch_record import NO_CLIENT
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.query import source_records
from streaming.engine.spark_options import SparkJars
from streaming.history.sources.kafka_ranges import OffsetRange
from streaming.history.spark import history_spark
from streaming.what_if.comparison import Comparison
from streaming.what_if.partition_replay import LEDGER, PartitionReplay, WhatIfTask

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_RECORDS_OF_A_TASK: Final = 100_000
_LEAST_TASKS: Final = 4
_PROGRESS_S: Final = 10.0


class SparkLog:
    """The records of the ranges, as DataFrames."""

    def __init__(
        self,
        spark: SparkSession,
        settings: "Settings",
        ranges: Sequence[OffsetRange],
        pipeline: PipelineSettings,
        say: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._ranges = ranges
        self._pipeline = pipeline
        self._say = say
        self._ledger = read_ranges(spark, settings, [one for one in ranges if one.topic == settings.topics.ledger])

    def batch_records(self) -> list[bytes]:
        found = self._ledger.where(F.col("key") == F.lit(NO_CLIENT.encode())).select("value").collect()
        return [bytes(row["value"]) for row in found]

    def activation_times_ms(self) -> list[int]:
        times = self._ledger.select(
            F.explode(F.regexp_extract_all(F.col("value").cast("string"), F.lit(r'"batch_ms":(\d+)'))).alias("at")
        )
        return [int(row["at"]) for row in times.distinct().collect()]

    def compare(self, task: WhatIfTask) -> Comparison:
        sources = [one for one in self._ranges if one.topic != self._settings.topics.ledger]
        records = source_records(read_ranges(self._spark, self._settings, sources), self._pipeline)
        of_clients = self._ledger.where(F.col("key") != F.lit(NO_CLIENT.encode())).select(
            F.col("key").cast("string").alias("client_id"), _ledger_cell().cast("binary").alias("record")
        )
        tasks = max(_LEAST_TASKS, sum(one.count for one in self._ranges) // _RECORDS_OF_A_TASK)
        rows = records.union(of_clients).repartition(tasks, "client_id").sortWithinPartitions("client_id")
        found = Comparison()
        with _progress(self._spark, self._say):
            for row in rows.mapInArrow(PartitionReplay(task), "comparison binary").collect():  # a small row of each task
                found.add(msgspec.json.decode(bytes(row["comparison"]), type=Comparison))
        return found


@contextmanager
def spark_log(
    settings: "Settings",
    ranges: Sequence[OffsetRange],
    pipeline: PipelineSettings,
    jars: SparkJars,
    say: Callable[[str], None],
) -> Iterator[SparkLog]:
    """Starts Spark for the block.

    Args:
        say: Gets a line about the progress every ten seconds.
    """
    spark = history_spark(settings, jars)
    try:
        yield SparkLog(spark, settings, ranges, pipeline, say)
    finally:
        spark.stop()


def read_ranges(spark: SparkSession, settings: "Settings", ranges: Sequence[OffsetRange]) -> DataFrame:
    """Returns the records of some ranges, with the columns of Kafka's source."""
    partitions: dict[str, list[int]] = defaultdict(list)
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for one in ranges:
        partitions[one.topic].append(one.partition)
        starts[one.topic][str(one.partition)] = one.start
        ends[one.topic][str(one.partition)] = one.end
    options = {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # retention may delete what was about to be read
        "kafka.isolation.level": "read_committed",
        **settings.kafka.spark_options(),
    }
    return spark.read.format("kafka").options(**options).load()


def _ledger_cell() -> Column:
    """Makes a record of the ledger a cell like those of the engine."""
    return F.to_json(
        F.struct(
            F.lit(LEDGER).alias("s"),
            F.col("partition").alias("p"),
            F.col("offset").alias("o"),
            F.unix_millis("timestamp").alias("t"),
            F.col("value").alias("v"),
        )
    )


@contextmanager
def _progress(spark: SparkSession, say: Callable[[str], None]) -> Iterator[None]:
    """Says every ten seconds, from a thread, how many tasks of Spark's running stages have ended."""
    is_over = threading.Event()

    def tell() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not is_over.wait(_PROGRESS_S):
            for stage_id in tracker.getActiveStageIds():
                if (stage := tracker.getStageInfo(stage_id)) is not None:
                    say(f"stage {stage_id}: {stage.numCompletedTasks} of {stage.numTasks} tasks have ended")

    thread = threading.Thread(target=tell, name="what-if-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()  # before Spark is stopped
