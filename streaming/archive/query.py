"""The query `archive`: it writes the records of the engine and the gateways to Delta tables, each row once.

Steps of a micro-batch, in this order:
1. keep the records in memory, because they are read several times;
2. append what is new to each table, one commit for each, named after (this checkpoint, the number of the micro-batch);
3. once an hour: compact, trim, clean up (streaming/archive/maintenance.py);
4. Spark commits the micro-batch. If it is killed before, it repeats all steps, and the tables skip what they have.

It runs beside the query `sessions` and must not slow it down: it has one task at a time, in a slot that the sessions do not need
(streaming/engine/run.py), and a slow trigger. Its failure does not end the engine (streaming/archive/keeper.py).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from sinks.delta.spec import TableSpec
from sinks.delta.tables import DeltaTransaction, append_new, create_table
from streaming.archive.maintenance import Maintenance
from streaming.archive.spark_rows import dead_letter_rows, ledger_rows, receipt_rows, uplink_rows
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, TABLES, UPLINK, table_location, topics_of
from streaming.checkpoint_topics import CheckpointUse, check_checkpoint_topics, record_checkpoint_topics
from streaming.config.errors import RecordsGone
from streaming.spark_internals.checkpoint import CheckpointFiles
from streaming.spark_internals.checkpoint_damage import check_damage
from streaming.topics import check_topics

if TYPE_CHECKING:
    from streaming.config.settings import Settings

QUERY_NAME: Final = "archive"
ARCHIVE_CHECKPOINT: Final = "archive"
_MAX_OFFSETS_PER_TRIGGER: Final = 100_000
"""Kafka records that one micro-batch reads: bounds its memory after a standstill."""
_QUERY_ID: Final = "sql.streaming.queryId"
_POOL: Final = "spark.scheduler.pool"
_log: Final = structlog.get_logger(__name__)

BeforeCommit = Callable[[str, int], None]
"""Is called with a table's name and the micro-batch's number before the table gets its rows. Tests kill the engine there."""


def start_archive(spark: SparkSession, settings: "Settings", *, before_commit: BeforeCommit | None = None) -> StreamingQuery:
    """Makes missing tables and starts the query, which runs until it is stopped or fails. Returns as soon as it runs.

    Raises DamagedCheckpoint, TopicsReplaced, RecordsGone, KafkaUnreachable, and what Spark raises when the tables cannot be made.
    """
    archive = settings.archive
    _check_checkpoint(spark, settings)
    spark = spark.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # one task at a time; the sessions have the number that they need
    locations = {spec.name: table_location(settings.tables_location, spec) for spec in TABLES}
    for spec in TABLES:
        create_table(spark, spec, locations[spec.name])
    writer = MicroBatchWriter(settings, locations, Maintenance(TABLES, locations, archive), before_commit)
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


def _check_checkpoint(spark: SparkSession, settings: "Settings") -> None:
    files, report = CheckpointFiles(spark, archive_checkpoint(settings)), check_topics(settings)
    cure = (
        f"Stop the engine, remove {files.path()}, and start it: the archive then reads all that Kafka has, and its tables "
        "leave out what they have (docs/operate/archive.md, A topic was made anew)"
    )
    check_damage(files, cure=cure, has_state=False)
    try:
        check_checkpoint_topics(files, settings, report, CheckpointUse(lost="the tables", cure=cure))
    except RecordsGone as error:
        if settings.archive.fail_on_data_loss:
            raise
        _log.warning("archive_has_a_gap", reason=str(error), action="archive.fail_on_data_loss = false: it continues")
    record_checkpoint_topics(files, report, (topic for topics in topics_of(settings).values() for topic in topics))


def archive_checkpoint(settings: "Settings") -> str:
    """Returns where the archive remembers how far it has read.

    If it is deleted, everything that Kafka has is read again, and the tables skip what they have.
    """
    return f"{settings.checkpoint_location.rstrip('/')}/{ARCHIVE_CHECKPOINT}"


def read_records(settings: "Settings", spark: SparkSession) -> DataFrame:
    """Returns the stream of all records that are archived, as Kafka's source gives it."""
    options = {
        "subscribe": ",".join(topic for topics in topics_of(settings).values() for topic in topics),
        "startingOffsets": "earliest",
        # Records that Kafka deleted before they were archived are missing in the tables, which must be visible.
        "failOnDataLoss": str(settings.archive.fail_on_data_loss).lower(),
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(_MAX_OFFSETS_PER_TRIGGER),
        "kafka.isolation.level": "read_committed",
        # The task reads one partition after another. With Kafka's default it would wait 500 ms at the end of some of them.
        "kafka.fetch.max.wait.ms": "10",
        **settings.kafka.spark_options(),
    }
    return spark.readStream.format("kafka").options(**options).load()


class MicroBatchWriter:
    """The function for `foreachBatch`.

    Args:
        locations: The locations of all tables, by name.
    """

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
        self._parts = tuple(_table_parts(settings))

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        spark = records.sparkSession
        query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise RuntimeError("Spark did not say which query this is; without it a micro-batch could be written twice")
        # One partition makes one task; the other cores are left to the sessions.
        kept = records.coalesce(1).persist()
        try:
            present = {row["topic"] for row in kept.select("topic").distinct().collect()}  # step 1
            for part in self._parts:  # step 2
                topics = [topic for topic in part.topics if topic in present]
                if not topics:
                    continue
                self._before_commit(part.spec.name, batch_id)
                rows = part.rows_of(kept.where(F.col("topic").isin(topics)))
                transaction = DeltaTransaction(app_id=f"inflight-{query_id}", version=batch_id)
                append_new(rows, part.spec, self._locations[part.spec.name], transaction)
        finally:
            kept.unpersist()
        self._maintenance.run_if_due(spark, now_s=time.time())  # step 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _TablePart:
    """The part of a micro-batch for one table: the records of these topics, made into rows."""

    spec: TableSpec
    topics: tuple[str, ...]
    rows_of: Callable[[DataFrame], DataFrame]


def _table_parts(settings: "Settings") -> Iterator[_TablePart]:
    topics = topics_of(settings)
    events = settings.topics.events
    yield _TablePart(spec=LEDGER, topics=topics[LEDGER.name], rows_of=ledger_rows)
    yield _TablePart(spec=DEAD_LETTERS, topics=topics[DEAD_LETTERS.name], rows_of=dead_letter_rows)
    yield _TablePart(spec=UPLINK, topics=topics[UPLINK.name], rows_of=lambda records: uplink_rows(records, events_topic=events))
    yield _TablePart(spec=RECEIPTS, topics=topics[RECEIPTS.name], rows_of=receipt_rows)
