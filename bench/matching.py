"""Measures the matcher: from a publication in `inflight.uplink` to its record in `inflight.messages`, and its processor time.

    python -m bench.matching                        # 3 minutes
    python -m bench.matching --rates 200 1000 5000 --turns 3

Two ways to route a publication once, in turn, each in a process of its own: as built, at least once with marks by which sessions
recognize a second copy; and a Kafka transaction for each poll, with records and offsets together, which readers of `messages`
have to wait for (`read_committed`). `others` is the built way while subscriptions exist and none matches, `nobody` while there is
none. A broker runs beside it. The latency is from the moment in which a reader of `uplink` has the publication to that in which a
reader of `messages` has its record.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaAdminClient
from rich.console import Console
from rich.table import Table

from bench.contestants.processor_time import ProcessorTime
from bench.devices import percentile
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from sinks.kafka.host_settings import HostSettings
from sinks.routing import kafka_matcher
from sinks.routing.kafka_matcher import KafkaMatcher
from sinks.routing.log_ends import Partition
from sinks.routing.matcher import RoutedRecord
from sinks.routing.routed_writer import ReadBatch
from sinks.routing.settings import RoutingSettings
from sinks.routing.source_consumer import SourceConsumer
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.records.uplink import uplink_headers

_UNMATCHED: Final = ("others", "nobody")
_PARTITIONS: Final = 4
_PUBLISHERS: Final = 100
_PAYLOAD_BYTES: Final = 200
_LONGEST_S: Final = 60.0
_CONTESTANTS: Final = ("marks", "transactions", "others", "nobody")


class _Member(SourceConsumer):
    """Tells the transaction which member of the group it is for."""

    newest: "_Member | None" = None

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        _Member.newest = self

    def metadata(self) -> Any:
        return self._client.consumer_group_metadata()


class TransactionalWriter:
    """Writes each poll's records in a transaction, with its offsets; stands for RoutedWriter."""

    has_unconfirmed = False
    too_large: Final = frozenset[object]()

    def __init__(self, host: HostSettings, *_others: object) -> None:
        self._client: Any = Producer(
            {"bootstrap.servers": host.bootstrap_servers, "transactional.id": "bench-matcher", "linger.ms": 0.3}
        )
        self._client.init_transactions(30)

    def begin(self, ends: Mapping[Partition, int]) -> ReadBatch:
        self._client.begin_transaction()
        return ReadBatch(ends, 0.0, 0.0)

    def write(self, record: RoutedRecord, _batch: ReadBatch, _position: object) -> None:
        self._client.produce(record.topic, record.value, record.key, record.partition, headers=record.headers)

    def end(self, batch: ReadBatch) -> None:
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in batch.ends.items()]
        assert _Member.newest is not None
        self._client.send_offsets_to_transaction(offsets, _Member.newest.metadata(), 30)
        self._client.commit_transaction(30)

    def poll(self, timeout_s: float = 0) -> None:
        self._client.poll(timeout_s)

    def finished(self) -> dict[Partition, int]:
        return {}

    def flush(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


def run_contestant(name: str, servers: str, prefix: str) -> None:
    """Runs a matcher until the process is killed; prints `ready`."""
    if name == "transactions":
        vars(kafka_matcher).update(RoutedWriter=TransactionalWriter, SourceConsumer=_Member)
    settings = RoutingSettings(
        enabled=True,
        group_id=prefix,
        uplink_topic=f"{prefix}.uplink",
        publications_topic=f"{prefix}.publications",
        subscriptions_topic=f"{prefix}.subscriptions",
        retained_topic=f"{prefix}.retained",
        messages_topic=f"{prefix}.messages",
    )
    matcher = KafkaMatcher(settings, HostSettings(bootstrap_servers=servers))
    matcher.start()
    while any(True for _ in matcher.missing()):
        time.sleep(0.1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Event().wait()


class _Arrivals(threading.Thread):
    """Reads a topic. times_s: by the number of the publication, when this thread had it."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.times_s: dict[int, float] = {}
        self._client: Any = Consumer(
            {"bootstrap.servers": servers, "group.id": f"{topic}.bench", "isolation.level": "read_committed"}
        )
        self._client.assign([TopicPartition(topic, number, 0) for number in range(_PARTITIONS)])

    def run(self) -> None:
        while True:
            first = self._client.poll(0.2)
            for message in [] if first is None else [first, *self._client.consume(100, 0)]:
                if not message.error():
                    self.times_s.setdefault(int(message.value()[:20]), time.monotonic())


class _Load:
    """Publishes to an uplink."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        self._client: Any = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})
        self._number = 0

    def publish(self, rate: int, count: int) -> range:
        """Returns the numbers of the publications, all of which Kafka has."""
        began_s, first = time.monotonic(), self._number
        for place in range(count):
            time.sleep(max(0.0, began_s + place / rate - time.monotonic()))
            number = self._number
            self._number += 1
            publisher = f"device-{number % _PUBLISHERS}"
            headers = uplink_headers(
                client_id=publisher,
                inflight_id=f"{publisher}:1:{number}",
                topic=f"fleet/{publisher}/state",
                qos=QoS.AT_LEAST_ONCE,
            )
            self._client.produce(self._topic, b"%020d" % number + bytes(_PAYLOAD_BYTES - 20), publisher, headers=headers)
            self._client.poll(0)
        self._client.flush()
        return range(first, self._number)

    def subscribe(self, topic: str, topic_filter: str) -> None:
        subscription = Subscription(topic_filter=topic_filter, qos=QoS.AT_LEAST_ONCE)
        listed = SubscriptionList(connection_id=1, version=1, subscriptions=(subscription,))
        self._client.produce(topic, encode_subscriptions(listed), "subscriber")
        self._client.flush()


def measure(name: str, broker: EmbeddedKafka, prefix: str, *, rate: int, seconds: float) -> dict[str, float]:
    servers = broker.bootstrap_servers
    _create(servers, prefix)
    load, appended = _Load(servers, f"{prefix}.uplink"), _Arrivals(servers, f"{prefix}.uplink")
    routed = _Arrivals(servers, f"{prefix}.messages")
    if name != "nobody":
        load.subscribe(f"{prefix}.subscriptions", "elsewhere/#" if name == "others" else "fleet/#")
    command = [sys.executable, "-m", "bench.matching", "--contestant", name, "--servers", servers, "--prefix", prefix]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert b"ready\n" in iter(process.stdout.readline, b""), f"{name} has ended"
        appended.start()
        routed.start()
        arriving = appended if name in _UNMATCHED else routed
        _until_all(arriving, load.publish(rate, 2 * rate))
        processes = (("matcher", psutil.Process(process.pid)), ("broker", psutil.Process(broker.pid)))
        time_of = ProcessorTime(lambda: processes)
        numbers = load.publish(rate, int(rate * seconds))
        _until_all(arriving, numbers)
        spent = time_of.spent()
    finally:
        process.kill()
        process.wait()
    latencies = [1_000 * (arriving.times_s[number] - appended.times_s[number]) for number in numbers]
    return {
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "matcher_us": 1e6 * spent["matcher"] / len(numbers),
        "broker_us": 1e6 * spent["broker"] / len(numbers),
    }


def _create(servers: str, prefix: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    topic = {"num_partitions": _PARTITIONS, "replication_factor": 1}
    admin.create_topics(
        {f"{prefix}.{name}": topic for name in ("uplink", "publications", "subscriptions", "retained", "messages")},
        wait_for_metadata=True,
    )
    admin.close()


def _until_all(arriving: _Arrivals, numbers: range) -> None:
    until_s = time.monotonic() + _LONGEST_S
    while any(number not in arriving.times_s for number in reversed(numbers)):
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {_LONGEST_S:g} s: all publications are routed")
        time.sleep(0.05)


def compare(rates: list[int], *, seconds: float, turns: int) -> None:
    console = Console()
    runs: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka(Path(directory), jars=ensure_jars()) as broker:
        for turn in range(turns + 1):
            for rate in rates if turn else rates[:1]:
                for name in _CONTESTANTS:
                    with console.status(
                        f"{name} at {rate}/s, turn {turn} of {turns}" if turn else f"{name}: Java compiles its code"
                    ):
                        figures = measure(name, broker, f"{name}{rate}-{turn}", rate=rate, seconds=seconds if turn else 2)
                    if turn:
                        runs.setdefault((name, rate), []).append(figures)
    table = Table("", "publications/s", "p50 ms", "p99 ms", "matcher µs", "broker µs", title=f"median of {turns}")
    for (name, rate), measured in runs.items():
        middle = {key: median(run[key] for run in measured) for key in measured[0]}
        latency = ("–", "–") if name in _UNMATCHED else (f"{middle['p50_ms']:.2f}", f"{middle['p99_ms']:.1f}")
        table.add_row(name, f"{rate:,}", *latency, f"{middle['matcher_us']:.0f}", f"{middle['broker_us']:.0f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="A publication's way through the matcher.")
    parser.add_argument("--rates", type=int, nargs="+", default=[200, 1_000], help="publications a second")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--turns", type=int, default=3)
    for name in ("--contestant", "--servers", "--prefix"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contestant is None:
        compare(asked.rates, seconds=asked.seconds, turns=asked.turns)
    else:
        run_contestant(asked.contestant, asked.servers, asked.prefix)


if __name__ == "__main__":
    main()
