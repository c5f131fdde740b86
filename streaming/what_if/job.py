"""Runs the replay as a batch job of Spark: Kafka's topics → (client_id, record), sorted by client → a Comparison per partition.

Steps:
1. find which offsets of messages, events and ledger are read: the compared period, and before it the time that rebuilds sessions;
2. read the rows of micro-batches from the ledger (streaming/engine/batch_record.py); where they do not reach back to the first
   record, read the times of all activations too;
3. replay each client (client_replay.py), and add up what the partitions have found.
"""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.records.ledger import LedgerRow
from streaming.engine.batch_record import MICRO_BATCH, NO_CLIENT
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.query import source_records
from streaming.engine.spark_options import SparkJars
from streaming.history.errors import NothingFound
from streaming.history.sources.kafka_ranges import CutReason, OffsetRange
from streaming.history.sources.kafka_reader import reading
from streaming.history.sources.source import SourceLimits
from streaming.history.spark import history_spark
from streaming.what_if.answer import WhatIfAnswer
from streaming.what_if.comparison import Comparison
from streaming.what_if.micro_batches import NEVER_MS, MicroBatches
from streaming.what_if.partition_replay import LEDGER, PartitionReplay, WhatIfTask

if TYPE_CHECKING:
    from streaming.config.settings import Settings

PARTS: Final = 60
"""Parts of the period in the plot."""
_RECORDS_OF_A_TASK: Final = 100_000
_LEAST_TASKS: Final = 4
_PROGRESS_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The period that is compared, in ms since 1970.

    Attributes:
        since_ms: None = from the first record that Kafka has.
        warm_up_ms: How much of the log before `since_ms` rebuilds sessions that began earlier.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    warm_up_ms: int = 3_600_000


def what_if(
    present: "Settings", other: "Settings", period: Period, groups: Sequence[str], jars: SparkJars, say: Callable[[str], None]
) -> WhatIfAnswer:
    """Compares a period under two settings.

    Args:
        say: Gets a line for each step.

    Raises:
        NothingFound: There is no log of that time, or no ledger.
        KafkaUnreachable: Kafka does not answer.
    """
    started_s = time.monotonic()
    ranges, partitions = _ranges(present, period)
    say(f"reading {sum(one.count for one in ranges):,} records of Kafka")
    spark = history_spark(present, jars)
    try:
        ledger = read_ranges(spark, present, [one for one in ranges if one.topic == present.topics.ledger])
        batches, is_recorded = _micro_batches(ledger, ranges, period)
        first_ms = period.since_ms if period.since_ms is not None else min(batches.times_ms)
        width_ms = max(1, -(-(batches.end_ms - first_ms + 1) // PARTS))
        task = WhatIfTask(
            present=pipeline_settings(present, commands_partitions=partitions),
            other=pipeline_settings(other, commands_partitions=partitions),
            batches=batches,
            since_ms=first_ms,
            is_whole=all(one.cut is CutReason.NOTHING for one in ranges if one.topic != present.topics.ledger),
            groups=groups,
            width_ms=width_ms,
        )
        say(f"replaying {len(batches.times_ms):,} micro-batches twice")
        with _progress(spark, say):
            found = _comparison(spark, present, task, ledger, ranges)
    finally:
        spark.stop()
    return WhatIfAnswer(
        comparison=found,
        since_ms=first_ms,
        until_ms=batches.end_ms,
        width_ms=width_ms,
        batches=sum(time_ms >= first_ms for time_ms in batches.times_ms),
        records=sum(one.count for one in ranges),
        is_recorded=is_recorded,
        took_s=time.monotonic() - started_s,
    )


def _ranges(settings: "Settings", period: Period) -> tuple[list[OffsetRange], int]:
    """Returns what is read (step 1), and how many partitions the commands have."""
    topics = settings.topics
    since_ms = None if period.since_ms is None else period.since_ms - period.warm_up_ms
    with reading(settings) as reader:
        commands = reader.ranges([topics.commands], SourceLimits(max_records=0))
        limits = SourceLimits(since_ms=since_ms, max_records=0)
        return reader.ranges([topics.messages, topics.events, topics.ledger], limits), len(commands)


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


def _micro_batches(ledger: DataFrame, ranges: Sequence[OffsetRange], period: Period) -> tuple[MicroBatches, bool]:
    """Returns the micro-batches (step 2), and whether the engine had recorded all of them."""
    until_ms = NEVER_MS if period.until_ms is None else period.until_ms
    of_batches = ledger.where(F.col("key") == F.lit(NO_CLIENT.encode())).select("value").collect()
    rows = [
        row
        for found in of_batches
        for row in msgspec.json.decode(bytes(found["value"]), type=list[LedgerRow])
        if row.transition == MICRO_BATCH
    ]
    batches = MicroBatches.of(rows, until_ms=until_ms)
    topic_of_ledger = ranges[-1].topic
    uncovered = [
        one
        for one in ranges
        if one.topic != topic_of_ledger and one.count and not batches.covers((one.topic, one.partition), one.start)
    ]
    if uncovered:
        times = ledger.select(
            F.explode(F.regexp_extract_all(F.col("value").cast("string"), F.lit(r'"batch_ms":(\d+)'))).alias("at")
        )
        batches = MicroBatches.of(rows, (int(row["at"]) for row in times.distinct().collect()), until_ms=until_ms)
    if not batches.times_ms:
        raise NothingFound(
            f"{topic_of_ledger} says nothing about this time: what-if needs the ledger (engine.ledger = true), and a period that "
            "Kafka still has (topics.retention)"
        )
    return batches, not uncovered


def _comparison(
    spark: SparkSession, settings: "Settings", task: WhatIfTask, ledger: DataFrame, ranges: Sequence[OffsetRange]
) -> Comparison:
    """Replays all clients (step 3)."""
    sources = [one for one in ranges if one.topic != settings.topics.ledger]
    records = source_records(read_ranges(spark, settings, sources), task.present)
    of_clients = ledger.where(F.col("key") != F.lit(NO_CLIENT.encode())).select(
        F.col("key").cast("string").alias("client_id"), _ledger_cell().cast("binary").alias("record")
    )
    tasks = max(_LEAST_TASKS, sum(one.count for one in ranges) // _RECORDS_OF_A_TASK)
    rows = records.union(of_clients).repartition(tasks, "client_id").sortWithinPartitions("client_id")
    found = Comparison()
    for row in rows.mapInArrow(PartitionReplay(task), "comparison binary").collect():  # a small row of each task
        found.add(msgspec.json.decode(bytes(row["comparison"]), type=Comparison))
    return found


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
