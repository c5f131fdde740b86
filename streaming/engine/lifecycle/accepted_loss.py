"""Goes on behind records that Kafka has deleted before the engine read them, with all sessions: `inflight engine --accept-loss`.

Steps, of an engine that has the checkpoint:
1. Find the partitions whose oldest record is newer than the end of the last committed micro-batch.
2. Report what is missing: in the log, in DATA_DIR/losses.json (for the metric and `inflight status`), and in the ledger.
3. Move the end of the last committed micro-batch to the oldest record. A micro-batch that is planned and not committed keeps
   its other partitions. It is executed with fewer records than at first, so it gets a lineage of its own
   (streaming/engine/ownership/checkpoint_lineage.py).
A kill between the steps repeats them: a loss may be reported twice, and never not at all.

A topic that was made anew is refused all the same. Sessions know messages by their offsets, and it has the same offsets again:
a new message would be taken for a copy of an old one.
"""

import datetime
import time
from typing import Final

import structlog
from pyspark.sql import SparkSession

from state.records.ledger import LedgerRow, encode_ledger_rows
from state.records.record import SinkRecord
from streaming.checkpoint_topics import GoneRecords, gone_records
from streaming.config.settings import Settings
from streaming.engine.kafka_access import write_records
from streaming.engine.lifecycle.losses import Losses
from streaming.engine.ownership.checkpoint_lineage import renew_lineage
from streaming.spark_internals.checkpoint import CheckpointFiles, LoggedOffsets, Offsets

TRANSITION: Final = "lost"
"""In the ledger, of a row without client and message: nobody knows whose records were deleted."""
_log: Final = structlog.get_logger(__name__)


def go_on_without_lost_records(spark: SparkSession, files: CheckpointFiles, settings: Settings) -> bool:
    """Does the steps. Call it before the query starts. Returns True if a micro-batch is planned anew.

    Raises KafkaUnreachable, OSError.
    """
    gone = gone_records(files, settings)  # step 1
    if not gone:
        return False
    report_loss(gone, settings)  # step 2
    offsets = LoggedOffsets(spark, settings.sessions_checkpoint)
    if offsets.is_planned():
        renew_lineage(files)
    move_behind(offsets, gone)  # step 3
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
            records=one.count,
            action="they are gone, and the sessions go on. Restart the gateways if events are among them",
        )
    now_ms = time.time_ns() // 1_000_000
    at = datetime.datetime.fromtimestamp(now_ms / 1_000, datetime.UTC).isoformat(timespec="seconds")
    Losses.read(settings.engine.data_dir).with_more(gone, at).write(settings.engine.data_dir)
    if settings.engine.ledger:
        write_records(settings, [SinkRecord(settings.topics.ledger, b"", encode_ledger_rows(ledger_rows(gone, now_ms)))])


def ledger_rows(gone: list[GoneRecords], now_ms: int) -> list[LedgerRow]:
    return [LedgerRow(client_id="", batch_ms=now_ms, transition=TRANSITION, time_ms=now_ms, detail=str(one)) for one in gone]


def move_behind(offsets: LoggedOffsets, gone: list[GoneRecords]) -> None:
    """Lets the next micro-batch begin at the oldest records. One that is planned ends there at least."""
    begins: dict[str, dict[int, int]] = {}
    for one in gone:
        begins.setdefault(one.topic, {})[one.partition] = one.end
    planned: Offsets = offsets.planned()
    if offsets.is_planned():
        ends = {
            topic: {number: max(begin, planned.get(topic, {}).get(number, begin)) for number, begin in by_number.items()}
            for topic, by_number in begins.items()
        }
        offsets.move(ends)  # before its begin: a kill between the two leaves no range that ends before it begins
    offsets.move_committed(begins)
