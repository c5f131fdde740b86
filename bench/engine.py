"""Measures the cost of the session beside that of Spark: the product's state operator and a trivial one, in one run.

    python -m bench.engine                     # everything, some minutes; prints a table and writes bench/results/engine.json
    python -m bench.engine --only lean --clients 100 --messages 2000

There are three variants: `trivial`, a minimal function for `applyInPandasWithState`, on PySpark's own path; `stock`, the
sessions on the same path; `lean`, the sessions on the lean path (streaming/spark_internals/lean_worker.py).
They take turns, each with its own topics and query. The table has the median of each variant's turns, the file all of them.

There are no sockets: bench/simulated_devices.py stands for gateways and devices and acknowledges everything.
bench/devices.py has the sockets.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from bench.end_to_end import all_idle
from bench.sender import Sender
from bench.simulated_devices import COUNTED_BURSTS, SimulatedDevices, stamped
from bench.trivial import TrivialOperator
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from inflight.local.spark_jars import spark_jars
from state.events import ClientConnected
from state.records.events import WAKE_UP_KEY, encode_event
from state.settings import Topics
from streaming.config.settings import load_settings
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.progress import BatchProgress, ProgressReader
from streaming.engine.query import read_records, sessions, sessions_writer
from streaming.engine.spark_options import NO_OPTIMIZING_COMPILER, SparkSettings, spark_master
from streaming.engine.spark_session import spark_session

ROWS = (
    ("p50 at 20 messages/s, ms", "p50_20"),
    ("p99 at 20 messages/s, ms", "p99_20"),
    ("p50 at 200 messages/s, ms", "p50_200"),
    ("p99 at 200 messages/s, ms", "p99_200"),
    ("messages/s, a burst over all clients", "burst_per_s"),
    ("idle micro-batch, ms", "idle_ms"),
    ("ms per active client, new", "client_ms_new"),
    ("ms per active client, known", "client_ms_known"),
    ("CPU ms per message and its acknowledgement, in bursts", "burst_cpu_ms"),
    ("CPU ms per active client, new", "client_cpu_ms_new"),
    ("CPU ms per active client, known", "client_cpu_ms_known"),
    ("Python workers: CPU ms per message and its acknowledgement, in bursts", "burst_worker_cpu_ms"),
    ("Python workers: CPU ms per active client, new", "client_worker_cpu_ms_new"),
    ("Python workers: CPU ms per active client, known", "client_worker_cpu_ms_known"),
)
VARIANTS = ("trivial", "stock", "lean")


class Run:
    """A measured variant: its topics, its query, its measurements."""

    def __init__(
        self, spark: SparkSession, broker: EmbeddedKafka, directory: Path, arguments: argparse.Namespace, variant: str, turn: int
    ) -> None:
        self.spark, self.arguments, self.trivial = spark, arguments, variant == "trivial"
        self.kafka, self.kafka_pid = broker.bootstrap_servers, broker.pid
        self.topics = Topics(**{name: f"{variant}-{turn}.{name}" for name in Topics.__slots__})
        self.settings = PipelineSettings(
            topics=self.topics, commands_partitions=8, ledger=not arguments.no_ledger, lean_worker=variant == "lean"
        )
        self.checkpoint = directory / f"{variant}-{turn}"
        admin = KafkaAdminClient(bootstrap_servers=self.kafka)
        partitions = {self.topics.commands: 8}
        admin.create_topics(
            [NewTopic(name, partitions.get(name, 4), 1) for name in (getattr(self.topics, key) for key in Topics.__slots__)]
        )
        admin.close()
        self.sender = Sender(self.kafka)

    @contextmanager
    def query(self) -> Iterator[StreamingQuery]:
        kafka_options = {"kafka.bootstrap.servers": self.kafka}
        records = read_records(self.spark, self.settings, kafka_options=kafka_options, max_offsets_per_trigger=1_000_000)
        function = TrivialOperator(self.settings) if self.trivial else None
        query = sessions_writer(
            sessions(records, self.settings, function),
            self.settings,
            kafka_options=kafka_options,
            checkpoint_location=str(self.checkpoint),
            trigger_interval_ms=self.arguments.trigger,
        ).start()
        try:
            yield query
        finally:
            query.stop()

    def measure(self) -> dict[str, float]:
        arguments, result = self.arguments, {}
        far = SimulatedDevices(self.kafka, self.topics, trivial=self.trivial)
        with self.query() as query:
            for number in range(arguments.clients):
                event = ClientConnected(connection_id=1, commands_partition=number % 8, clean_start=False)
                self.sender.send(self.topics.events, encode_event(event), key=b"client-%d" % number)
            self.sender.flush()
            if not self.trivial:
                far.await_count("accepted", arguments.clients)
            self.send(100, rate=50)
            far.await_count("received", 100)
            # The bursts come first, because they warm the JVM up too; the second variant in a run must not have an advantage.
            bursts, cpu_s, worker_cpu_s = [], spark_cpu_s(self.kafka_pid), workers_cpu_s(self.kafka_pid)
            for _ in range(arguments.bursts):
                far.reset()
                started = time.time()
                self.send(arguments.messages, rate=0)
                counts = far.await_count("received", arguments.messages)
                bursts.append(arguments.messages / (counts["last"] - started))
                self.await_idle(query)
            result["burst_per_s"] = median(bursts[-COUNTED_BURSTS:])
            cpu_s = spark_cpu_s(self.kafka_pid) - cpu_s
            worker_cpu_s = workers_cpu_s(self.kafka_pid) - worker_cpu_s
            result["burst_cpu_ms"] = 1_000 * cpu_s / (arguments.bursts * arguments.messages)
            result["burst_worker_cpu_ms"] = 1_000 * worker_cpu_s / (arguments.bursts * arguments.messages)
            for rate, seconds in ((20, arguments.seconds), (200, arguments.seconds)):
                far.reset()
                self.send(rate * seconds, rate=rate)
                counts = far.await_count("received", rate * seconds)
                result |= {f"p50_{rate}": counts["p50_ms"], f"p99_{rate}": counts["p99_ms"]}
            self.await_idle(query)
            result["idle_ms"] = median(batch.duration_ms for batch in self.idle_batches(query, 10))
        far.close()
        for kind in ("new", "known"):
            figures = self.measure_clients()
            result |= dict(zip((f"client_{name}_{kind}" for name in ("ms", "cpu_ms", "worker_cpu_ms")), figures, strict=True))
        return result

    def measure_clients(self) -> tuple[float, float, float]:
        """Measures one micro-batch in which very many clients have one message each.

        Returns milliseconds for each client: of time, of CPU, and of CPU of the Python workers.
        """
        count = self.arguments.active_clients
        for number in range(count):
            self.sender.send(self.topics.messages, stamped(), key=b"active-%d" % number, headers=[("mqtt-topic", b"t")])
        self.sender.flush()
        cpu_s, worker_cpu_s = spark_cpu_s(self.kafka_pid), workers_cpu_s(self.kafka_pid)
        with self.query() as query:
            batches = self.idle_batches(query, 3)
            # This includes the start of a query and some idle micro-batches.
            cpu_s, worker_cpu_s = spark_cpu_s(self.kafka_pid) - cpu_s, workers_cpu_s(self.kafka_pid) - worker_cpu_s
            busy = [batch for batch in self.reader.seen if batch.rows >= count]
            add_batch_ms = busy[0].add_batch_ms - median(batch.add_batch_ms for batch in batches)
            return add_batch_ms / count, 1_000 * cpu_s / count, 1_000 * worker_cpu_s / count

    def send(self, count: int, *, rate: int) -> None:
        """Sends messages over all clients in turn. rate: per second, 0 = as fast as possible."""
        started = time.monotonic()
        for number in range(count):
            if rate and (wait := started + number / rate - time.monotonic()) > 0:
                time.sleep(wait)
            key = b"client-%d" % (number % self.arguments.clients)
            self.sender.send(self.topics.messages, stamped(), key=key, headers=[("mqtt-topic", b"bench/t"), ("mqtt-qos", b"1")])
        self.sender.flush()

    def await_idle(self, query: StreamingQuery) -> None:
        self.idle_batches(query, 3)

    def idle_batches(self, query: StreamingQuery, count: int) -> list[BatchProgress]:
        """Waits for `count` consecutive micro-batches that call no session. Each is begun by a record for no session."""
        self.reader = Recorder(query)
        deadline, begun = time.monotonic() + 300, -1
        while not self.reader.ends_with_idle(count):
            if len(self.reader.seen) > begun:
                begun = len(self.reader.seen)
                self.sender.send(self.topics.events, b"", key=WAKE_UP_KEY)
                self.sender.flush()
            if (error := query.exception()) is not None:
                raise RuntimeError(str(error))
            if time.monotonic() > deadline:
                raise TimeoutError("the query does not come to rest")
            time.sleep(0.05)
        return self.reader.seen[-count:]


def spark_cpu_s(kafka_pid: int) -> float:
    """Returns the CPU seconds of Spark's JVM and its Python workers so far, which do not depend on other load of the machine."""
    return sum(_cpu_s(jvm) for jvm in _spark_jvms(kafka_pid)) + workers_cpu_s(kafka_pid)


def workers_cpu_s(kafka_pid: int) -> float:
    """Returns the Python workers' part of `spark_cpu_s`."""
    return sum(_cpu_s(process) for jvm in _spark_jvms(kafka_pid) for process in jvm.children(recursive=True))


def _spark_jvms(kafka_pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "java" and child.pid != kafka_pid]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


class Recorder:
    """Keeps the progress of a query. Only micro-batches that start from now on count as idle."""

    def __init__(self, query: StreamingQuery) -> None:
        self._reader = ProgressReader(query)
        self._began = datetime.now(UTC)
        self.seen: list[BatchProgress] = []

    def ends_with_idle(self, count: int) -> bool:
        self.seen += self._reader.new()
        return all_idle(self.seen[-count:], count, self._began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=VARIANTS)
    parser.add_argument("--turns", type=int, default=2, help="of each variant")
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=20_000, help="of a burst")
    parser.add_argument("--bursts", type=int, default=8, help="the last three count, those before warm the JVM up")
    parser.add_argument("--seconds", type=int, default=20, help="for each rate")
    parser.add_argument("--active-clients", type=int, default=20_000)
    parser.add_argument("--trigger", type=int, default=100, help="milliseconds")
    parser.add_argument("--state-partitions", type=int, default=2)
    parser.add_argument("--no-ledger", action="store_true")
    parser.add_argument("--spark", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "engine.json")
    arguments = parser.parse_args()
    variants = (arguments.only,) if arguments.only else VARIANTS
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name, EmbeddedKafka(Path(name), jars=ensure_jars()) as kafka:
        directory = Path(name)
        spark = spark_session(
            SparkSettings(
                checkpoint_location=name,
                log_file=directory / "spark.log",
                master=spark_master(load_settings(None, [])),
                java_options=NO_OPTIMIZING_COMPILER,
                state_partitions=arguments.state_partitions,
                driver_memory="2g",
                extra=dict(option.split("=", 1) for option in arguments.spark),
            ),
            spark_jars(),
        )
        for turn in range(arguments.turns):
            for variant in variants:
                results[variant].append(Run(spark, kafka, directory, arguments, variant, turn).measure())
                Console(stderr=True).print(variant, results[variant][-1])
        spark.stop()
    table = Table("measured", *variants, title=f"{arguments.clients} clients, {os.cpu_count()} cores, {arguments.turns} turns")
    for title, key in ROWS:
        table.add_row(title, *(f"{median(turn[key] for turn in results[variant]):,.3f}" for variant in variants))
    Console().print(table)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
