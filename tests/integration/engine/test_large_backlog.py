"""Starts an engine on a very long backlog in `messages`: it reads the backlog in small micro-batches, within its memory.

By hand, with as much as the disk has room for:
INFLIGHT_BACKLOG_BYTES=5GiB pytest -s tests/integration/engine/test_large_backlog.py
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import msgspec
import psutil
import pytest
from kafka import KafkaProducer

from state.commands import SendPublish
from state.events import ClientConnected
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from streaming.config.settings import Settings
from streaming.config.units import format_size, parse_size_bytes
from streaming.engine.progress import PROGRESS_FILE, BatchProgress
from streaming.topics import ensure_topics
from tests.spark.child_engine import Engine, engine
from tests.support.kafka_topics import read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

BACKLOG_BYTES = parse_size_bytes(os.environ.get("INFLIGHT_BACKLOG_BYTES", "1GiB"))
pytestmark = [pytest.mark.faults, pytest.mark.timeout(0 if BACKLOG_BYTES > 1 << 30 else 540)]
MESSAGE_BYTES = 250 << 10
OF_EACH_CLIENT = 3
"""Messages of each client: few enough for its queue."""
BOUND_BYTES = 64 << 20
RECORD_BYTES = MESSAGE_BYTES + 200
"""The size of a record with key, headers, and Kafka's overhead."""
LONGEST_S = 60.0
MOST_RESIDENT_BYTES = 5 << 30
"""The limit for a heap of 2 GiB, RocksDB, Arrow and the workers. Shared memory counts for each process. 4.4 GiB were measured."""
SMALL = 2_000
AT_ONCE = 100
"""Large ones under way."""
PREFIX = "large"


@contextmanager
def highest_resident(process: Engine) -> Iterator[list[int]]:
    """The highest sum over the engine, its JVM and its workers, in bytes, as the one item of a list."""
    highest, stop = [0], Event()

    def look() -> None:
        while not stop.wait(0.25):
            total = 0
            for one in (root, *root.children(recursive=True)):
                try:
                    total += one.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            highest[0] = max(highest[0], total)

    root = psutil.Process(process.process.pid)
    thread = Thread(target=look)
    thread.start()
    try:
        yield highest
    finally:
        stop.set()
        thread.join()


def batches(data_dir: Path) -> list[BatchProgress]:
    files = (data_dir / f"{PROGRESS_FILE}.1", data_dir / PROGRESS_FILE)
    lines = [line for file in files if file.exists() for line in file.read_bytes().splitlines(keepends=True)]
    return [msgspec.json.decode(line, type=BatchProgress) for line in lines if line.endswith(b"\n")]


@pytest.mark.promise("backlog-bytes")
def test_a_gibibyte_waits_for_the_engine(kafka: SharedKafka, tmp_path: Path) -> None:
    settings = {
        "engine": {"data_dir": str(tmp_path), "max_bytes_per_trigger": BOUND_BYTES},
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "topics": {"prefix": PREFIX},
    }
    ensure_topics(Settings(**settings))
    # Compressed, so that it waits on a small disk, too, and because kafka-python is slow with large records that are not.
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, acks=1, max_request_size=1 << 20, batch_size=1 << 19, compression_type="gzip"
    )
    count = BACKLOG_BYTES // MESSAGE_BYTES
    clients = count // OF_EACH_CLIENT
    # Small ones in front: a limit that fits them would be far too high for those behind.
    for number in range(SMALL):
        producer.send(f"{PREFIX}.messages", b"small", key=b"small-%d" % (number % 100), headers=[("mqtt-topic", b"t")])
    payload = (os.urandom(1 << 14) * 16)[:MESSAGE_BYTES]
    for number in range(count):
        sent = producer.send(f"{PREFIX}.messages", payload, key=b"client-%d" % (number % clients), headers=[("mqtt-topic", b"t")])
        if number % AT_ONCE == 0:
            sent.get(60)  # one that waited too long for its turn would be given up
    event = ClientConnected(connection_id=1, commands_partition=0, clean_start=False)
    producer.send(f"{PREFIX}.events", encode_event(event), key=b"client-7")
    producer.close()

    began = time.monotonic()
    with engine(settings) as running, highest_resident(running) as resident:

        def taken() -> bool:
            assert running.process.poll() is None, "the engine died"
            return sum(batch.rows for batch in batches(tmp_path)) > SMALL + count

        wait_until(taken, "the backlog is taken", within_s=3_600 if BACKLOG_BYTES > 2 << 30 else 480)
        took_s = time.monotonic() - began

        def delivered(records: list[object]) -> bool:
            found = [c for record in records for c in decode_command_batch(record.value or b"").commands]  # type: ignore[attr-defined]
            return sum(isinstance(command, SendPublish) for command in found) >= OF_EACH_CLIENT

        read_topic(kafka.bootstrap_servers, f"{PREFIX}.commands", delivered)
        assert running.stop() == 0
    done = batches(tmp_path)
    longest = max(done, key=lambda batch: batch.duration_ms)
    print(
        f"{count} messages, {format_size(BACKLOG_BYTES)}, in {took_s:.0f} s and {len(done)} micro-batches; the longest "
        f"{longest.duration_ms / 1_000:.1f} s with {longest.rows} rows; {format_size(resident[0] >> 20 << 20)} resident"
    )
    print([(b.rows, b.duration_ms) for b in done if b.rows])
    # Of what was queued nothing was given up.
    assert not read_topic(kafka.bootstrap_servers, f"{PREFIX}.receipts")
    large = [batch for batch in done if batch.rows and batch.batch_id > 0][-10:-1]
    assert max(batch.rows for batch in large) * RECORD_BYTES <= BOUND_BYTES + 4 * RECORD_BYTES
    assert longest.duration_ms <= LONGEST_S * 1_000
    assert resident[0] <= MOST_RESIDENT_BYTES
