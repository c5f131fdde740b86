"""Measures where a message on the fast path is after how many milliseconds, from the backend's call to the device.

    python -m bench.fast_path_stages --rate 1000        # a minute

It runs its own `inflight up`. A reader in a process of its own sees each message, and the gateway's record of it, when any other
reader of Kafka could: it is a second client of the same topics with the same settings, so it also takes processor time.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from rich.console import Console
from rich.table import Table

from bench.devices import percentile
from bench.end_to_end import Backend, Devices, await_handled
from bench.simulated_devices import STAMP, unstamped
from inflight.demo.up import UpProcess
from state.events import FastSent
from state.records.events import decode_events

_POLL_S, _LONGEST_S = 0.1, 30.0
_MESSAGES, _EVENTS = "inflight.messages", "inflight.events"
_HALF_MS = 0.5
"""Kafka's and the gateway's times are whole milliseconds, cut off."""
READ, TAKEN, LOGGED, DELIVERED = "read", "taken", "logged", "delivered"
STAGES = {
    READ: "another process has read the message from Kafka",
    TAKEN: "the gateway has handed its own record to librdkafka",
    LOGGED: "another process has read that record from Kafka",
    DELIVERED: "the device has read PUBLISH",
}


class Reader:
    """Reads both topics in a process of its own, from their ends on."""

    def __init__(self, bootstrap_servers: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_read, args=(bootstrap_servers, other), daemon=True)
        self._process.start()
        assert self._pipe.recv() == "ready"

    def delays_ms(self) -> dict[str, list[float]]:
        """Ends it. Returns the delays since the backend's call, by stage."""
        self._pipe.send("stop")
        delays: dict[str, list[float]] = self._pipe.recv()
        self._process.join(_LONGEST_S)
        return delays


def _read(bootstrap_servers: str, pipe: Connection) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-{os.getpid()}",
            "enable.auto.commit": False,
            "enable.metrics.push": False,
        }
    )
    topics = consumer.list_topics(timeout=_LONGEST_S).topics
    partitions = [TopicPartition(name, number, OFFSET_END) for name in (_MESSAGES, _EVENTS) for number in topics[name].partitions]
    consumer.assign(partitions)
    delays: dict[str, list[float]] = {READ: [], TAKEN: [], LOGGED: []}
    consumer.poll(_POLL_S)  # the ends are looked up
    pipe.send("ready")
    while not pipe.poll():
        record = consumer.poll(_POLL_S)
        if record is None:
            continue
        if record.error():
            raise KafkaException(record.error())
        now_ns = time.time_ns()
        if record.topic() == _MESSAGES:
            if sent_ns := _stamp(record.value()):
                delays[READ].append((now_ns - sent_ns) / 1e6)
            continue
        for event in decode_events(record.value()):
            if isinstance(event, FastSent) and (sent_ns := _stamp(event.message.payload)):
                delays[TAKEN].append(record.timestamp()[1] + _HALF_MS - sent_ns / 1e6)
                delays[LOGGED].append((now_ns - sent_ns) / 1e6)
    pipe.send(delays)
    consumer.close()


def _stamp(payload: bytes) -> int:
    """Returns the nanoseconds of the backend's call; 0 = the payload has none."""
    return STAMP.unpack_from(payload)[0] if len(payload) >= STAMP.size else 0


def measure(rate: int, devices: int, seconds: int) -> dict[str, list[float]]:
    """Returns the delays in milliseconds by stage; DELIVERED has the p50 and the p99 only."""
    count = rate * seconds
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name, UpProcess(Path(name) / "data") as up:
        backend = Backend(up.kafka)
        connected = Devices(up.mqtt, devices, "stage-", devices + rate + count)
        connected.await_connected()
        backend.greet("stage-", devices)
        await_handled(up)
        backend.send("stage-", devices, rate, rate=rate, payload=unstamped)
        reader = Reader(up.kafka)
        backend.send("stage-", devices, count, rate=rate)
        result = connected.result()
        return reader.delays_ms() | {DELIVERED: [result["latency_p50_ms"], result["latency_p99_ms"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=10)
    arguments = parser.parse_args()
    delays = measure(arguments.rate, arguments.devices, arguments.seconds)
    title = f"{arguments.rate:,} messages a second, since the backend's call"
    table = Table("until", "p50, ms", "p99, ms", "messages", title=title)
    for stage, text in STAGES.items():
        values = delays[stage]
        p50, p99 = values if stage == DELIVERED else (percentile(values, 0.5), percentile(values, 0.99))
        table.add_row(text, f"{p50:.1f}", f"{p99:.1f}", "" if stage == DELIVERED else f"{len(values):,}")
    Console().print(table)


if __name__ == "__main__":
    main()
