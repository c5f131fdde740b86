"""Many timers are due at once, in a real Spark: nobody waits for all of them (docs/decisions/0018)."""

import json
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from state.commands import SendPublish
from streaming.engine.operator.by_batch import BatchSettings, OperatorByBatch
from streaming.engine.operator.reported_deadlines import ReportedDeadlines
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.paced_query import PacedQuery
from streaming.engine.progress import BatchProgress, ProgressReader
from tests.spark.conftest import Pipeline, session_timers
from tests.spark.test_recovery import crashed_in
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

CLIENTS, LIMIT = 60, 10
STANDSTILL_S = 10.0
HOUR_MS = 3_600_000


def await_rows(pipeline: Pipeline, count: int) -> None:
    """Starts the query, and stops it when all that waits has been committed."""
    reader, rows = ProgressReader(pipeline.start()), 0

    def done() -> bool:
        nonlocal rows
        rows += sum(batch.rows for batch in reader.new())
        return rows == count

    wait_until(done, "what waits", check=pipeline.check)
    pipeline.stop()


def stand_still(pipeline: Pipeline) -> None:
    """Sends a message to each of many absent clients and one to a connected client. Returns when the former are expired."""
    pipeline.connect("here")
    await_rows(pipeline, 1)  # which takes Spark its first, long time
    due = time.time() + STANDSTILL_S
    headers = [("mqtt-topic", b"t"), ("expiration", b"%d" % (1_000 * STANDSTILL_S))]
    for number in range(CLIENTS):
        pipeline.producer.send(pipeline.settings.topics.messages, b"p", key=b"away-%d" % number, headers=headers)
    pipeline.producer.flush()
    await_rows(pipeline, CLIENTS)
    assert time.time() < due, "too slow: some have expired before the standstill"
    wait_until(lambda: time.time() > due + 1, "the time to live of all messages")
    pipeline.send_message("here", b"now")


def work_off(pipeline: Pipeline) -> list[BatchProgress]:
    """Starts the query with timers; the micro-batches until all those sessions are gone."""
    deadlines, clock = ReportedDeadlines(pipeline.spark.sparkContext), EngineClock()
    query = pipeline.start(OperatorByBatch(BatchSettings(current=pipeline.settings), deadlines.accumulator))
    reader, found = ProgressReader(query), list[BatchProgress]()
    pipeline.await_batches(1)
    timers = session_timers(pipeline, clock, longest_pause_ms=HOUR_MS, limit=LIMIT)
    kafka = {"bootstrap_servers": pipeline.bootstrap_servers}
    intervals = {"trigger_interval_ms": 100, "idle_trigger_interval_ms": HOUR_MS}

    def done() -> bool:
        found.extend(reader.new())
        return sum(batch.clients_removed for batch in found) == CLIENTS

    with timers, PacedQuery(query, kafka, **intervals, clock=clock, timers=timers, pop_reports=deadlines.pop) as pace:
        pace.start()
        timers.start()
        wait_until(done, lambda: [(batch.clients_removed, batch.clients_updated) for batch in found], check=pipeline.check)
    return found


def receipts(pipeline: Pipeline) -> dict[int, dict[bytes, ReadRecord]]:
    """Returns receipts by the time of their micro-batch and by client."""
    found: dict[int, dict[bytes, ReadRecord]] = defaultdict(dict)
    for record in read_topic(pipeline.bootstrap_servers, pipeline.settings.topics.receipts):
        found[json.loads(record.value or b"")["recorded_ms"]][record.key or b""] = record
    return dict(found)


@pytest.mark.parametrize("lean_worker", [True, False])
@pytest.mark.promise("many-timers")
def test_a_message_does_not_wait_for_all_due_timers(pipeline: Pipeline, lean_worker: bool) -> None:
    pipeline.settings = replace(pipeline.settings, lean_worker=lean_worker)
    stand_still(pipeline)
    batches = work_off(pipeline)
    assert max(batch.clients_removed for batch in batches) <= LIMIT
    (sent,) = [command for command in pipeline.commands(lambda found: len(found) >= 2) if isinstance(command, SendPublish)]
    assert sent.payload == b"now"
    by_time = receipts(pipeline)
    assert sorted(key for found in by_time.values() for key in found) == sorted(b"away-%d" % n for n in range(CLIENTS))
    assert sum(len(found) for found in by_time.values()) == CLIENTS, "each has one receipt"


def test_a_micro_batch_that_is_executed_again_calls_the_same_sessions(pipeline: Pipeline, tmp_path: Path) -> None:
    stand_still(pipeline)
    batches = work_off(pipeline)
    pipeline.stop()
    written = receipts(pipeline)
    number = next(batch.batch_id for batch in batches if batch.clients_removed)
    copy = crashed_in(number, pipeline.checkpoint, tmp_path / "copy")
    metadata = json.loads((copy / "offsets" / str(number)).read_text().splitlines()[1])
    first_ms = metadata["batchTimestampMs"]
    assert 0 < len(written[first_ms]) <= LIMIT

    again = replace(pipeline, checkpoint=copy, query=None)
    again.start()
    wait_until(lambda: again.committed() >= number, "the micro-batch is executed again", check=again.check)
    again.close()
    records = read_topic(pipeline.bootstrap_servers, pipeline.settings.topics.receipts)
    times = [(json.loads(record.value or b"")["recorded_ms"], record) for record in records]
    repeated = [record for recorded_ms, record in times if recorded_ms == first_ms]
    assert len(repeated) == 2 * len(written[first_ms])
    assert {(record.key, record.value) for record in repeated} == {
        (record.key, record.value) for record in written[first_ms].values()
    }
