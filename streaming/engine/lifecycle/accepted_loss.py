"""Goes on without records that are gone before the engine read them, with all sessions: `inflight engine --accept-loss`.

Kafka has deleted them, or their topic was deleted and created again. Steps, of an engine that has the checkpoint:
1. Find the partitions whose oldest record is newer than the end of the last committed micro-batch, and the recreated topics.
2. Report what is missing: in the log, in DATA_DIR/losses.json (for the metric and `inflight status`), and in the ledger.
3. Move the end of the last committed micro-batch to the oldest record. A micro-batch that is planned and not committed keeps
   its other partitions. It is executed with fewer records than at first, so it gets a lineage of its own
   (streaming/engine/ownership/checkpoint_lineage.py). Of a recreated topic it reads nothing.
4. Begin the next generation of each recreated topic, so that no position of its records is one that a session knows. The new
   partitions are not added ones: there is nothing in the old ones that comes first.
Then record the ids of the topics (`record_checkpoint_topics`). A kill before that repeats the steps: a loss may be reported
twice, and never not at all; a generation may be left out.
"""

import datetime
import time
from typing import Final

import structlog
from pyspark.sql import SparkSession

from state.records.ledger import LedgerRow, encode_ledger_rows
from state.records.record import SinkRecord
from streaming.checkpoint_topics import GoneRecords, count_recreated, gone_records, recreated_topics
from streaming.config.settings import Settings
from streaming.engine.kafka_access import write_records
from streaming.engine.lifecycle.losses import Losses
from streaming.engine.ownership.checkpoint_lineage import renew_lineage
from streaming.engine.ownership.partitions import record_partitions, recorded_partitions
from streaming.spark_internals.checkpoint import CheckpointFiles, LoggedOffsets, Offsets
from streaming.topics import TopicReport

TRANSITION: Final = "lost"
"""In the ledger, of a row without client and message: nobody knows whose records were deleted."""
_log: Final = structlog.get_logger(__name__)


def go_on_without_lost_records(spark: SparkSession, files: CheckpointFiles, settings: Settings, report: TopicReport) -> bool:
    """Does the steps. Call it before the query starts. Returns True if a micro-batch is planned anew.

    Args:
        report: The report of the topics that exist.

    Raises:
        KafkaUnreachable: Kafka does not answer, or refuses.
        DamagedCheckpoint: A file of the checkpoint is damaged.
        OSError: A file cannot be written.
    """
    gone, recreated = gone_records(files, settings, report), recreated_topics(files, settings, report)  # step 1
    if not gone and not recreated:
        return False
    report_loss(gone, settings)  # step 2
    offsets = LoggedOffsets(spark, settings.sessions_checkpoint)
    if offsets.is_planned():
        renew_lineage(files)
    move_behind(offsets, gone, recreated)  # step 3
    if recreated:  # step 4
        count_recreated(files, recreated)
        before = recorded_partitions(files, (settings.topics.messages, settings.topics.events)) or {}
        record_partitions(files, before | {topic: len(beginnings) for topic, beginnings in recreated.items()})
    return offsets.is_planned()


def report_loss(gone: list[GoneRecords], settings: Settings) -> None:
    """Raises KafkaUnreachable, OSError."""
    for one in gone:
        _log.error(
            "records_lost",
            topic=one.topic,
            partition=one.partition,
            first=one.first,
            before=one.end,
            records=one.count_text,
            action="they are gone, and the sessions go on. Restart the gateways if events are among them",
        )
    now_ms = time.time_ns() // 1_000_000
    at = datetime.datetime.fromtimestamp(now_ms / 1_000, datetime.UTC).isoformat(timespec="seconds")
    Losses.read(settings.engine.data_dir).with_more(gone, at).write(settings.engine.data_dir)
    if settings.engine.ledger:
        write_records(settings, [SinkRecord(settings.topics.ledger, b"", encode_ledger_rows(ledger_rows(gone, now_ms)))])


def ledger_rows(gone: list[GoneRecords], now_ms: int) -> list[LedgerRow]:
    return [LedgerRow(client_id="", batch_ms=now_ms, transition=TRANSITION, time_ms=now_ms, detail=str(one)) for one in gone]


def move_behind(offsets: LoggedOffsets, gone: list[GoneRecords], recreated: Offsets) -> None:
    """Lets the next micro-batch begin at the oldest records. One that is planned ends there at least.

    Args:
        recreated: The beginnings of all partitions of recreated topics.
    """
    begins: dict[str, dict[int, int]] = {topic: dict(by_number) for topic, by_number in recreated.items()}
    for one in gone:
        if one.topic not in recreated:
            begins.setdefault(one.topic, {})[one.partition] = one.end
    planned: Offsets = offsets.planned()
    if offsets.is_planned():
        ends = {
            topic: by_number
            if topic in recreated
            else {number: max(begin, planned.get(topic, {}).get(number, begin)) for number, begin in by_number.items()}
            for topic, by_number in begins.items()
        }
        offsets.move(ends, recreated)  # before its begin: a kill between the two leaves no range that ends before it begins
    offsets.move_committed(begins, recreated)
