"""Measures a client's cost of one record into Kafka and out of it: kafka-python beside librdkafka, which gateways use.

    python -m bench.kafka_clients                   # 2 minutes
    python -m bench.kafka_clients --rate 1000 --turns 3

A gateway appends a record for each message of the fast path and one for each acknowledgement, and reads each message. At a few
hundred messages a second a record is alone in its request, so the cost of a request decides. One process appends records of 200
bytes at a steady rate, with an idempotent producer and acks=all. A thread of it reads them as a member of a consumer group, as
the router of the fast path does. A broker runs beside it. The latency is from the producer's call to the consumer's return. Each
client runs in turn, in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from rich.console import Console
from rich.table import Table

from bench.contestants.processor_time import ProcessorTime
from bench.devices import percentile
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from sinks.kafka.kafka_python import subscribe

_TOPIC: Final = "messages"
_PARTITIONS: Final = 4
_LONGEST_S: Final = 30.0
_RECORD_BYTES: Final = 200


class PythonClient:
    """Uses kafka-python."""

    def __init__(self, servers: str) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=0, metrics_enabled=False
        )
        self._consumer = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=f"bench-{os.getpid()}",
            enable_auto_commit=False,
            isolation_level="read_committed",
            metrics_enabled=False,
        )
        subscribe(self._consumer, [_TOPIC])

    def send(self, value: bytes) -> None:
        self._producer.send(_TOPIC, value)

    def flush(self) -> None:
        self._producer.flush()

    def read(self) -> Iterator[bytes]:
        for records in self._consumer.poll(timeout_ms=200).values():
            for record in records:
                yield record.value


class RdClient:
    """Uses librdkafka, by confluent-kafka."""

    def __init__(self, servers: str) -> None:
        common = {"bootstrap.servers": servers}
        self._producer = Producer({**common, "enable.idempotence": True, "acks": "all", "linger.ms": 0})
        self._consumer = Consumer(
            {**common, "group.id": f"bench-{os.getpid()}", "enable.auto.commit": False, "isolation.level": "read_committed"}
        )
        self._consumer.subscribe([_TOPIC])

    def send(self, value: bytes) -> None:
        self._producer.produce(_TOPIC, value, on_delivery=_raise)
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush()

    def read(self) -> Iterator[bytes]:
        first = self._consumer.poll(0.2)
        for message in [] if first is None else [first, *self._consumer.consume(100, 0)]:
            if not message.error():
                yield message.value()


def _raise(error: object, message: object) -> None:
    if error is not None:
        raise RuntimeError(str(error))


CLIENTS: Final[dict[str, Callable[[str], Any]]] = {"kafka-python": PythonClient, "librdkafka": RdClient}


class _Reader(threading.Thread):
    """latencies_ms: of all records so far."""

    def __init__(self, client: Any) -> None:
        super().__init__(daemon=True)
        self.latencies_ms: list[float] = []
        self._client = client

    def run(self) -> None:
        while True:
            for value in self._client.read():
                self.latencies_ms.append((time.time_ns() - int(value[:20])) / 1e6)


def measure_here(name: str, servers: str, *, rate: int, seconds: float, broker: int) -> dict[str, float]:
    """Measures in this process. broker: the broker's process."""
    client = CLIENTS[name](servers)
    reader = _Reader(client)
    reader.start()
    _until(lambda: _sent_is_read(client, reader), "the consumer has its partitions")
    _send_at(client, rate, count=rate)
    read = len(reader.latencies_ms)
    count, processes = int(rate * seconds), (("client", psutil.Process()), ("broker", psutil.Process(broker)))
    time_of = ProcessorTime(lambda: processes)
    _send_at(client, rate, count=count)
    client.flush()
    _until(lambda: len(reader.latencies_ms) >= read + count, "all records are read")
    spent = time_of.spent()
    latencies = reader.latencies_ms[read:]
    return {
        "client_ms": 1_000 * spent["client"] / count,
        "broker_ms": 1_000 * spent["broker"] / count,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
    }


def _sent_is_read(client: Any, reader: _Reader) -> bool:
    client.send(_value())
    client.flush()
    return bool(reader.latencies_ms)


def _send_at(client: Any, rate: int, *, count: int) -> None:
    began_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
        client.send(_value())


def _value() -> bytes:
    return b"%020d" % time.time_ns() + bytes(_RECORD_BYTES - 20)


def _until(is_so: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + _LONGEST_S
    while not is_so():
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {_LONGEST_S:g} s: {what}")
        time.sleep(0.1)


def measure(name: str, broker: EmbeddedKafka, *, rate: int, seconds: float) -> dict[str, float]:
    """Measures in a process of its own."""
    command = [sys.executable, "-m", "bench.kafka_clients", "--client", name, "--servers", broker.bootstrap_servers]
    command += ["--broker", str(broker.pid), "--rate", str(rate), "--seconds", str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=2 * _LONGEST_S + 3 * seconds)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def compare(*, rate: int, seconds: float, turns: int) -> None:
    console = Console()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CLIENTS}
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka(Path(directory), jars=ensure_jars()) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.create_topics({_TOPIC: {"num_partitions": _PARTITIONS, "replication_factor": 1}})
        admin.close()
        for turn in range(turns + 1):
            for name in CLIENTS:
                with console.status(f"{name}, turn {turn} of {turns}" if turn else f"{name}: Java compiles its code"):
                    figures = measure(name, broker, rate=rate, seconds=seconds)
                if turn:
                    runs[name].append(figures)
    table = Table("milliseconds", *CLIENTS, title=f"one record in and out, {rate:,} a second, median of {turns}")
    for key, text in (
        ("client_ms", "processor time of the client, each record"),
        ("broker_ms", "processor time of the broker, each record"),
        ("p50_ms", "latency p50"),
        ("p99_ms", "latency p99"),
    ):
        table.add_row(text, *(f"{median(run[key] for run in runs[name]):.2f}" for name in CLIENTS))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="One record into Kafka and out of it, with each client.")
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--turns", type=int, default=3)
    for name in ("--client", "--servers", "--broker"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client is None:
        compare(rate=asked.rate, seconds=asked.seconds, turns=asked.turns)
        return
    figures = measure_here(asked.client, asked.servers, rate=asked.rate, seconds=asked.seconds, broker=int(asked.broker))
    sys.stdout.write(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)  # its threads wait for Kafka


if __name__ == "__main__":
    main()
