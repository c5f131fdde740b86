"""Many timers are due at once, in a real Spark: nobody waits for all of them (docs/decisions/0018)."""

import json
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from state.commands import SendPublish
from streaming.engine.operator.due_timers import CALLED_OF, FIRST_MS, STEP_MS
from streaming.engine.progress import BatchProgress, ProgressReader
from tests.spark.conftest import Pipeline
from tests.spark.test_recovery import crashed_in
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

CLIENTS, LIMIT, PARTITIONS = 60, 10, 2
SHARE = 2 * LIMIT * PARTITIONS + CLIENTS // CALLED_OF
"""The most calls of one micro-batch: all timers are late by about the same time, which may lie on both sides of a power of two. A
tenth of those beyond the limit is called, too.
"""
PUT_OFF = (CLIENTS // PARTITIONS - 2 * LIMIT) * (CALLED_OF - 1) // CALLED_OF
"""The least number of postponed timers, in the partition that has more of them."""
TENTH = 3
"""The least number of calls beyond the limit, a tenth of the rest, however the clients are spread over the partitions."""
STANDSTILL_S = 10.0


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
    """Starts the query; the micro-batches until all those sessions are gone."""
    reader, found = ProgressReader(pipeline.start()), list[BatchProgress]()

    def done() -> bool:
        found.extend(reader.new())
        return sum(batch.clients_removed for batch in found) == CLIENTS

    wait_until(done, lambda: [(batch.clients_removed, batch.clients_updated) for batch in found], check=pipeline.check)
    return found


def receipts(pipeline: Pipeline) -> dict[int, dict[bytes, ReadRecord]]:
    """Returns receipts by the time of their micro-batch and by client."""
    found: dict[int, dict[bytes, ReadRecord]] = defaultdict(dict)
    for record in read_topic(pipeline.bootstrap_servers, pipeline.settings.topics.receipts):
        found[json.loads(record.value or b"")["outcome_ms"]][record.key or b""] = record
    return dict(found)


@pytest.mark.parametrize("lean_worker", [True, False])
def test_a_message_does_not_wait_for_all_due_timers(pipeline: Pipeline, lean_worker: bool) -> None:
    pipeline.settings = replace(pipeline.settings, max_timers_per_partition=LIMIT, lean_worker=lean_worker)
    stand_still(pipeline)
    batches = work_off(pipeline)
    assert max(batch.clients_removed for batch in batches) <= SHARE
    (sent,) = [command for command in pipeline.commands(lambda found: len(found) >= 2) if isinstance(command, SendPublish)]
    assert sent.payload == b"now"
    by_time = receipts(pipeline)
    assert sorted(key for found in by_time.values() for key in found) == sorted(b"away-%d" % n for n in range(CLIENTS))
    assert sum(len(found) for found in by_time.values()) == CLIENTS, "each has one receipt"
    first_ms, last_ms = min(by_time), max(by_time)
    assert len(by_time[first_ms]) >= LIMIT * PARTITIONS + TENTH
    assert last_ms - first_ms >= FIRST_MS + STEP_MS * (PUT_OFF - 1) // LIMIT, "each that is put off has a place of its own"


def test_a_micro_batch_that_is_executed_again_puts_off_the_same_sessions(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.settings = replace(pipeline.settings, max_timers_per_partition=LIMIT)
    stand_still(pipeline)
    batches = work_off(pipeline)
    pipeline.stop()
    written = receipts(pipeline)
    number = next(batch.batch_id for batch in batches if batch.clients_removed)
    copy = crashed_in(number, pipeline.checkpoint, tmp_path / "copy")
    metadata = json.loads((copy / "offsets" / str(number)).read_text().splitlines()[1])
    first_ms = metadata["batchTimestampMs"]
    assert 0 < len(written[first_ms]) <= SHARE

    again = replace(pipeline, checkpoint=copy, query=None)
    work_off(again)
    again.close()
    records = read_topic(pipeline.bootstrap_servers, pipeline.settings.topics.receipts)
    times = [(json.loads(record.value or b"")["outcome_ms"], record) for record in records]
    repeated = [record for outcome_ms, record in times if outcome_ms == first_ms]
    assert len(repeated) == 2 * len(written[first_ms])
    assert {(record.key, record.value) for record in repeated} == {
        (record.key, record.value) for record in written[first_ms].values()
    }
