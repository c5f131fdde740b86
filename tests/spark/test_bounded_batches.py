"""The bounds and the time of a micro-batch, in a real Spark."""

import json
import os
import time
from contextlib import closing
from datetime import datetime
from itertools import pairwise

import pytest
from kafka import KafkaProducer

from streaming.engine.intake.batch_size import BatchBounds
from streaming.engine.intake.bounded_intake import BoundedIntake
from streaming.engine.intake.waiting_records import WaitingRecords
from streaming.engine.pacing.engine_clock import STEP_MS, EngineClock, wall_ms
from streaming.engine.pacing.paced_query import PacedQuery
from streaming.engine.progress import BatchProgress, ProgressReader
from tests.spark.conftest import Pipeline
from tests.support.kafka_topics import read_topic
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000
BOUNDS = BatchBounds(max_records=5_000, max_bytes=1 << 20, largest_bytes=64 << 10)
SMALL, LARGE, LARGE_BYTES = 1_500, 60, 40 << 10
PARTITIONS = 2
OVERHEAD_BYTES = 100
"""Kafka's overhead for a record, at most, beside key, headers and value."""


def fill(pipeline: Pipeline) -> None:
    """Small messages, large ones behind them, some of them compressed well, and small ones again."""
    send = pipeline.producer.send
    squeezed = KafkaProducer(
        bootstrap_servers=pipeline.bootstrap_servers, compression_type="gzip", linger_ms=50, batch_size=1 << 19
    )
    topic, headers = pipeline.settings.topics.messages, [("mqtt-topic", b"t")]
    for number in range(SMALL):
        send(topic, b"x" * 100, key=b"c-%d" % (number % 100), headers=headers)
    pipeline.producer.flush()
    for number in range(LARGE):
        send(topic, os.urandom(LARGE_BYTES), key=b"c-%d" % (number % 100), headers=headers)
    pipeline.producer.flush()
    for number in range(LARGE):
        squeezed.send(topic, b"0" * LARGE_BYTES, key=b"c-%d" % (number % 100), headers=headers)
    squeezed.close()
    for number in range(SMALL):
        send(topic, b"y" * 100, key=b"c-%d" % (number % 100), headers=headers)
    pipeline.producer.flush()


@pytest.mark.faults
@pytest.mark.promise("backlog-bytes")
def test_micro_batches_of_a_backlog_are_bounded_in_bytes_and_not_small(pipeline: Pipeline) -> None:
    topic = pipeline.settings.topics.messages
    fill(pipeline)
    sizes = {
        (record.partition, record.offset): len(record.key or b"") + len(record.value or b"") + OVERHEAD_BYTES
        for record in read_topic(pipeline.bootstrap_servers, topic)
    }
    pipeline.max_offsets_per_trigger = BOUNDS.safe_limit
    found: list[BatchProgress] = []
    query = pipeline.start()
    reader = ProgressReader(query)
    options = {"bootstrap_servers": pipeline.bootstrap_servers}
    records = WaitingRecords(options, max_bytes=BOUNDS.max_bytes)
    with (
        closing(BoundedIntake(BOUNDS, records)) as intake,
        PacedQuery(query, options, trigger_interval_ms=100, idle_trigger_interval_ms=1_000, intake=intake) as pace,
    ):
        pipeline.await_batches(1)
        pace.start()

        def done() -> bool:
            found.extend(reader.new())
            return sum(batch.rows for batch in found) == len(sizes)

        wait_until(done, lambda: [(batch.rows, batch.duration_ms) for batch in found], check=pipeline.check)
    pipeline.stop()

    ends = [dict.fromkeys(range(PARTITIONS), 0), *(batch.end_offsets[topic] for batch in found if batch.rows)]
    taken = [
        sum(sizes[number, offset] for number in range(PARTITIONS) for offset in range(before[number], after[number]))
        for before, after in pairwise(ends)
    ]
    assert sum(taken) == sum(sizes.values())
    assert max(taken) <= BOUNDS.max_bytes
    # With the safe limit alone it would be hundreds; with exact knowledge eleven and those of the start.
    assert len(taken) <= 2 * sum(taken) / BOUNDS.max_bytes + 8


def times(pipeline: Pipeline) -> list[int]:
    """Returns the times of the micro-batches in the offset log, which a re-execution uses."""
    files = sorted((pipeline.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[1])["batchTimestampMs"] for path in files]


@pytest.mark.promise("engine-clock")
def test_a_wall_clock_that_jumps_by_hours_ends_nothing_and_stops_nothing(pipeline: Pipeline) -> None:
    offset_ms = 0
    began = time.monotonic()
    clock = EngineClock(wall_ms=lambda: wall_ms() + offset_ms)
    pipeline.send_message("absent", b"for an hour", ("expiration", b"%d" % HOUR_MS))
    query = pipeline.start()
    options = {"bootstrap_servers": pipeline.bootstrap_servers}
    with PacedQuery(query, options, trigger_interval_ms=100, idle_trigger_interval_ms=200, clock=clock) as pace:
        pipeline.await_batches(1)
        pace.start()
        pipeline.await_batches(1)
        offset_ms = 3 * HOUR_MS
        pipeline.await_batches(3)
        passed_ms = 1_000 * (time.monotonic() - began)
        ahead_ms = times(pipeline)[-1] - wall_ms()
        assert STEP_MS / 2 < ahead_ms <= STEP_MS + passed_ms
        # Spark's reports have the machine's time, for those who compare them with other clocks.
        started = datetime.fromisoformat(ProgressReader(query).new()[-1].started)
        since_ms = 1_000 * (time.monotonic() - began)
        assert -since_ms <= 1_000 * started.timestamp() - wall_ms() <= 0
        offset_ms = -3 * HOUR_MS
        pipeline.await_batches(3)
        last_ms = times(pipeline)[-1]
        pipeline.await_batches(5)
        assert times(pipeline)[-1] > last_ms
    pipeline.stop()
    all_times = times(pipeline)
    assert all_times == sorted(all_times)
    assert not read_topic(pipeline.bootstrap_servers, pipeline.settings.topics.receipts)
