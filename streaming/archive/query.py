"""The query `archive`: the records that the engine and the gateways write → Delta tables, each row once.

Steps of a micro-batch, in this order:
1. keep the records in memory (they are read several times);
2. append what is new to each table, one commit for each, named after (this checkpoint, the number of the micro-batch);
3. once an hour: compact, trim, clean up (streaming/archive/maintenance.py);
4. Spark commits the micro-batch. Killed before, it does all of this again, and finds in each table what is there already.

It runs beside the query `sessions` and must not get into its way: one task at a time, in a slot that the sessions do not need
(streaming/engine/run.py), a slow trigger, and its death is not the engine's (streaming/archive/keeper.py).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from sinks.delta.tables import TableSpec, Transaction, append_new, create_table
from streaming.archive.maintenance import Maintenance
from streaming.archive.rows import bound_table, dead_letter_rows, ledger_rows, receipt_rows, uplink_rows
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, TABLES, UPLINK, bound_tables, table_location

if TYPE_CHECKING:
    from streaming.config.settings import Settings

QUERY_NAME: Final = "archive"
ARCHIVE_CHECKPOINT: Final = "archive"
_MAX_OFFSETS_PER_TRIGGER: Final = 100_000
"""Kafka records that one micro-batch reads: bounds its memory after a standstill."""
_QUERY_ID: Final = "sql.streaming.queryId"
_POOL: Final = "spark.scheduler.pool"

BeforeCommit = Callable[[str, int], None]
"""Called with a table's name and the number of the micro-batch, before the table gets its rows: where tests kill the engine."""


def start_archive(spark: SparkSession, settings: "Settings", *, before_commit: BeforeCommit | None = None) -> StreamingQuery:
    """Makes missing tables and starts the query; it runs until it is stopped or dies. Returns as soon as it runs.

    Raises what Spark raises when the tables cannot be made.
    """
    archive = settings.archive
    spark = spark.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # one task at a time; the sessions have the number that they need
    tables = (*TABLES, *bound_tables(settings))
    locations = {spec.name: table_location(settings.tables_location, spec) for spec in tables}
    for spec in tables:
        create_table(spark, spec, locations[spec.name])
    writer = MicroBatchWriter(settings, locations, Maintenance(tables, locations, archive), before_commit)
    records = read_records(settings, spark)
    previous = spark.sparkContext.getLocalProperty(_POOL)
    spark.sparkContext.setLocalProperty(_POOL, QUERY_NAME)  # the thread of the query inherits it
    try:
        return (
            records.writeStream.queryName(QUERY_NAME)
            .foreachBatch(writer)
            .option("checkpointLocation", archive_checkpoint(settings))
            .trigger(processingTime=f"{archive.trigger_interval_ms} milliseconds")
            .start()
        )
    finally:
        spark.sparkContext.setLocalProperty(_POOL, previous)  # type: ignore[arg-type]


def archive_checkpoint(settings: "Settings") -> str:
    """Where the archive remembers how far it has read. Delete it, and everything that Kafka has is read again: the tables have it
    already, and nothing changes."""
    return f"{settings.checkpoint_location.rstrip('/')}/{ARCHIVE_CHECKPOINT}"


def topics_of(settings: "Settings") -> dict[str, tuple[str, ...]]:
    """The topics that each table is made of."""
    topics = settings.topics
    return {
        LEDGER.name: (topics.ledger,),
        DEAD_LETTERS.name: (topics.dead_letters, *settings.dead_letter_topics),
        UPLINK.name: (topics.uplink,),
        RECEIPTS.name: (topics.receipts,),
    }


def read_records(settings: "Settings", spark: SparkSession) -> DataFrame:
    """The stream of all records that are archived, as Kafka's source has it."""
    options = {
        "subscribe": ",".join(topic for topics in topics_of(settings).values() for topic in topics),
        "startingOffsets": "earliest",
        # What Kafka forgot before it was archived is a hole in the record: somebody has to know.
        "failOnDataLoss": str(settings.archive.fail_on_data_loss).lower(),
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(_MAX_OFFSETS_PER_TRIGGER),
        "kafka.isolation.level": "read_committed",
        # The one task reads one partition after the other, and would else wait 500 ms at the end of some of them.
        "kafka.fetch.max.wait.ms": "10",
        **settings.kafka.spark_options(),
    }
    return spark.readStream.format("kafka").options(**options).load()


class MicroBatchWriter:
    """The function for `foreachBatch`. locations: of all tables, by name."""

    def __init__(
        self,
        settings: "Settings",
        locations: Mapping[str, str],
        maintenance: Maintenance,
        before_commit: BeforeCommit | None = None,
    ) -> None:
        self._locations = locations
        self._maintenance = maintenance
        self._before_commit = before_commit or (lambda table, batch_id: None)
        self._parts = tuple(_parts(settings))

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        spark = records.sparkSession
        query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise RuntimeError("Spark did not say which query this is; without it a micro-batch could be written twice")
        # One partition, so one task: what is left of the cores belongs to the sessions.
        kept = records.coalesce(1).persist()
        try:
            present = {row["topic"] for row in kept.select("topic").distinct().collect()}  # 1
            for part in self._parts:  # 2
                topics = [topic for topic in part.topics if topic in present]
                if not topics:
                    continue
                self._before_commit(part.spec.name, batch_id)
                rows = part.rows_of(kept.where(F.col("topic").isin(topics)))
                transaction = Transaction(app_id=f"inflight-{query_id}", version=batch_id)
                append_new(rows, part.spec, self._locations[part.spec.name], transaction)
        finally:
            kept.unpersist()
        self._maintenance.run_if_due(spark, now_s=time.time())  # 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one table gets: records of these topics, made into rows."""

    spec: TableSpec
    topics: tuple[str, ...]
    rows_of: Callable[[DataFrame], DataFrame]


def _parts(settings: "Settings") -> Iterator[_Part]:
    topics = topics_of(settings)
    events = settings.topics.events
    bound = bound_tables(settings)
    named = bound_table([spec.name for spec in bound])

    def to(table: Column) -> Callable[[DataFrame], DataFrame]:
        return lambda records: dead_letter_rows(records.where(table))

    yield _Part(spec=LEDGER, topics=topics[LEDGER.name], rows_of=ledger_rows)
    yield _Part(spec=DEAD_LETTERS, topics=topics[DEAD_LETTERS.name], rows_of=to(named.isNull()))
    for spec in bound:
        yield _Part(spec=spec, topics=(settings.topics.dead_letters,), rows_of=to(named == spec.name))
    yield _Part(spec=UPLINK, topics=topics[UPLINK.name], rows_of=lambda records: uplink_rows(records, events_topic=events))
    yield _Part(spec=RECEIPTS, topics=topics[RECEIPTS.name], rows_of=receipt_rows)


def consumer_lag(progress: Mapping[str, Any]) -> int:
    """Records in Kafka that the micro-batch of this StreamingQueryProgress left for the next ones."""
    behind = 0
    for source in progress.get("sources", ()):
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if isinstance(end, Mapping) and isinstance(latest, Mapping):
            for topic, partitions in latest.items():
                behind += sum(max(0, offset - end.get(topic, {}).get(number, 0)) for number, offset in partitions.items())
    return behind
