"""Measures the archive: the engine makes one million ledger rows, the archive writes them in the same run, and queries read them.

    make bench-archive                                  # some minutes; prints a table, writes bench/results/archive.json
    python -m bench.archive --messages 20000            # a short run
    python -m bench.archive --messages 20000 --fill 1000000    # the same behind a million rows that are in the topic beforehand

The backend is always `BACKLOG` messages ahead, so the engine always has work. It has finished when the last receipt is in Kafka.
Three numbers matter. The first is the archive's delay at that time: it keeps up if this is a trigger interval and a micro-batch.
The second is its cost for the sessions: `--without` measures the rate of the same run with the archive off. The third is the time
of `inflight trace`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.engine import spark_cpu_s
from bench.simulated_devices import SimulatedDevices, stamped
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from inflight.local.spark_jars import spark_jars
from state.events import ClientConnected
from state.records.events import encode_event
from state.records.ledger import LedgerRow
from streaming.archive.query import start_archive
from streaming.archive.tables import LEDGER, RECEIPTS, table_location
from streaming.config.settings import Settings, load_settings
from streaming.engine.lifecycle.sessions_query import start_sessions
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.operator.by_batch import BatchSettings
from streaming.engine.spark_session import start_spark
from streaming.topics import ensure_topics

ROWS_PER_MESSAGE = 3
"""The minimum for one message: accepted, sent, finished. Most messages are queued in between."""
BACKLOG = 20_000
"""Messages that the backend is ahead of the devices: the size of a micro-batch of the engine."""
TRACES = 5
RESULTS = Path(__file__).parent / "results" / "archive.json"


class Lag(threading.Thread):
    """Measures the archive: its longest micro-batch, and the largest number of records left in Kafka after one."""

    def __init__(self, query: Any) -> None:
        super().__init__(daemon=True)
        self.query, self.done = query, threading.Event()
        self.batches: dict[int, dict[str, Any]] = {}

    def run(self) -> None:
        while not self.done.wait(0.5):
            for progress in self.query.recentProgress:
                self.batches[progress["batchId"]] = progress

    def result(self) -> dict[str, float]:
        busy = [batch for batch in self.batches.values() if batch["numInputRows"]]
        return {
            "archive_batches": len(busy),
            "archive_longest_batch_s": max(batch["durationMs"]["triggerExecution"] for batch in busy) / 1_000,
            "archive_busy_s": sum(batch["durationMs"]["triggerExecution"] for batch in busy) / 1_000,
            "archive_most_behind_records": max(consumer_lag(batch) for batch in busy),
        }


def consumer_lag(progress: Mapping[str, Any]) -> int:
    """Returns how many records in Kafka the micro-batch of this StreamingQueryProgress has left for later ones."""
    behind = 0
    for source in progress.get("sources", ()):
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if isinstance(end, Mapping) and isinstance(latest, Mapping):
            for topic, partitions in latest.items():
                behind += sum(max(0, offset - end.get(topic, {}).get(number, 0)) for number, offset in partitions.items())
    return behind


def run(settings: Settings, arguments: argparse.Namespace, kafka_pid: int) -> dict[str, float]:
    """Runs the engine once and returns the measurements. kafka_pid: the broker, whose CPU time is not Spark's."""
    report = ensure_topics(settings)
    partitions = next(topic.partitions for topic in report.topics if topic.name == settings.topics.commands)
    pipeline = pipeline_settings(settings, commands_partitions=partitions)
    spark = start_spark(settings, spark_jars())
    far = SimulatedDevices(settings.kafka.bootstrap_servers, pipeline.topics, trivial=False)
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, acks="all", linger_ms=5)
    fill(settings, producer, arguments.fill)
    result: dict[str, float] = {}
    query = start_sessions(spark, settings, BatchSettings(current=pipeline), {})
    try:
        for number in range(arguments.clients):
            event = ClientConnected(connection_id=1, commands_partition=number % partitions, clean_start=False)
            producer.send(settings.topics.events, encode_event(event), key=b"client-%d" % number)
        producer.flush()
        far.await_count("accepted", arguments.clients)
        archive = None if arguments.without else start_archive(spark, settings)
        lag = Lag(archive)
        if archive is not None:
            lag.start()
        started, cpu_s = time.monotonic(), spark_cpu_s(kafka_pid)
        for number in track(range(arguments.messages), "messages", console=Console(stderr=True)):
            headers = [("mqtt-topic", b"bench/t"), ("mqtt-qos", b"1"), ("message-id", b"message-%d" % number)]
            producer.send(settings.topics.messages, stamped(), key=b"client-%d" % (number % arguments.clients), headers=headers)
            if number % (BACKLOG // 10) == 0:
                far.await_count("received", number - BACKLOG)
        producer.flush()
        await_receipts_in_kafka(settings, arguments.messages)
        engine_s = time.monotonic() - started
        result |= {"messages": arguments.messages, "engine_s": engine_s, "messages_per_s": arguments.messages / engine_s}
        if archive is not None:
            result["behind_at_the_end_s"] = await_receipts(spark, settings, arguments.messages, archive)
            archive.processAllAvailable()
        result["spark_cpu_ms_per_message"] = 1_000 * (spark_cpu_s(kafka_pid) - cpu_s) / arguments.messages
        if archive is not None:
            lag.done.set()
            lag.join()
            result |= lag.result()
            rows = spark.read.format("delta").load(table_location(settings.tables_location, LEDGER))
            result["ledger_rows"] = rows.count()
            result["ledger_rows_twice"] = result["ledger_rows"] - rows.dropDuplicates(list(LEDGER.key)).count()
            archive.stop()
    finally:
        query.stop()
        far.close()
        spark.stop()
    return result


def fill(settings: Settings, producer: KafkaProducer, rows: int) -> None:
    """Makes ledger records of the hours before, as an engine writes them: messages of four rows in two micro-batches."""
    batch_ms = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(rows // 4):
        client_id = f"past-{number % 1_000}"
        for step, names in enumerate((("accepted", "queued"), ("sent", "finished"))):
            now_ms = batch_ms + number // 1_000 * 500 + step * 500
            record = [
                LedgerRow(
                    client_id=client_id, batch_ms=now_ms, transition=name, time_ms=now_ms, message_id=f"past-message-{number}"
                )
                for name in names
            ]
            producer.send(settings.topics.ledger, msgspec.json.encode(record), key=client_id.encode())
    producer.flush()


def await_receipts_in_kafka(settings: Settings, messages: int) -> None:
    """Returns when every message has its final outcome."""
    topic = settings.topics.receipts
    consumer = KafkaConsumer(bootstrap_servers=settings.kafka.bootstrap_servers)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        deadline = time.monotonic() + 600
        while sum(consumer.end_offsets(partitions).values()) < messages:
            if time.monotonic() > deadline:
                raise TimeoutError("the engine does not finish")
            time.sleep(0.1)
    finally:
        consumer.close(autocommit=False)


def await_receipts(spark: SparkSession, settings: Settings, messages: int, archive: Any) -> float:
    """Returns the seconds until the table has the receipt of every message. Raises TimeoutError."""
    started = time.monotonic()
    location = table_location(settings.tables_location, RECEIPTS)
    while spark.read.format("delta").load(location).count() < messages:
        if archive.exception() is not None:
            raise RuntimeError(str(archive.exception()))
        if time.monotonic() > started + 1_800:
            raise TimeoutError("the archive does not catch up")
        time.sleep(0.5)
    return time.monotonic() - started


def time_of_traces(data_dir: Path, messages: int) -> dict[str, float]:
    """Returns the time of `inflight trace` for a user, the start of Python included."""
    times = []
    for number in range(TRACES):
        command = [sys.executable, "-m", "inflight", "trace", f"message-{number * (messages // TRACES)}", "--json"]
        started = time.monotonic()
        done = subprocess.run([*command, "--data-dir", str(data_dir)], check=False, capture_output=True, text=True)
        times.append(time.monotonic() - started)
        assert '"delivered"' in done.stdout, done
    return {"trace_fastest_s": min(times), "trace_slowest_s": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000 // ROWS_PER_MESSAGE + 1)
    parser.add_argument("--fill", type=int, default=0, help="ledger rows that are in the topic beforehand")
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--without", action="store_true", help="the archive is off: for comparison")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="configuration")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name:
        directory = Path(name)
        with EmbeddedKafka(directory / "kafka", jars=ensure_jars()) as kafka:
            overrides = [f"kafka.bootstrap_servers={kafka.bootstrap_servers}", f"engine.data_dir={directory}", "max_inflight=100"]
            overrides += [f"archive.enabled={str(not arguments.without).lower()}", *arguments.set]
            result = run(load_settings(overrides=overrides), arguments, kafka.pid)
        if not arguments.without:
            result |= time_of_traces(directory, arguments.messages)
    table = Table("measured", "value")
    for key, value in result.items():
        table.add_row(key.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")
    console.print(table)
    if not arguments.without:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
