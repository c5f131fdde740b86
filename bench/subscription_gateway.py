"""Measures a gateway process beside very many subscriptions: its start, its memory, and the answer to a SUBSCRIBE.

    python -m bench.subscription_gateway                         # 2 minutes; 100,000 clients with 10 filters each
    python -m bench.subscription_gateway --clients 10000 --turns 1

A Kafka of its own, with the lists of all clients in `inflight.subscriptions`, and `inflight gateway` as an operator starts it.
Each turn starts it twice, once on topics without subscriptions. No engine runs, because a SUBSCRIBE is answered when its records
are in the log; this program accepts the one device in its place. Times are from the start of the process; the table is complete
when the gateway's log says so. Each client has five filters of its own, three that it shares with a part of the fleet, and two
that all have.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.devices import CONNACK, SUBACK, connect_packet, percentile, subscribe_packet
from inflight.local.child_process import free_port, start_child, tail
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from state.commands import AcceptConnection, CommandBatch
from state.events import ClientConnected
from state.model import QoS, Subscription
from state.records.commands import encode_command_batch
from state.records.events import decode_events
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from streaming.config.settings import Settings, load_settings
from streaming.topics import ensure_topics

_MIB: Final = 1 << 20
_LONGEST_S: Final = 120.0
_POLL_S: Final = 0.02
_SETTLE_S: Final = 3.0
"""After the table is complete, until the memory is measured: buffers of the first reading are given back by then."""
_SUBSCRIBES: Final = 500
_CONNECTION_ID: Final = 1_800_000_000_000_000 << 10
_PAUSE_S: Final = 0.005
_SIZES: Final = {CONNACK: 4, SUBACK: 5}
_WITHOUT, _WITH = "none", "all"
_ROWS: Final = (
    ("until ready for devices, s", "ready_s"),
    ("until the table is complete, s", "complete_s"),
    ("resident, MiB", "resident_mib"),
    ("… the most until then, MiB", "peak_mib"),
    ("processor time until then, s", "cpu_s"),
    ("SUBSCRIBE → SUBACK p50, ms", "suback_p50_ms"),
    ("… p99, ms", "suback_p99_ms"),
)


def fleet(number: int) -> tuple[str, ...]:
    """Returns the filters of a client."""
    name = f"device-{number:07}"
    return (
        f"cmd/{name}/#",
        f"cfg/{name}",
        f"{name}/+/set",
        f"jobs/{name}/+",
        f"state/{name}/desired",
        f"group/{number % 1_000}/#",
        f"site/{number % 1_000}/+/alarm",
        f"ota/{number % 10}/stable",
        "fleet/+/x",
        "broadcast",
    )


def record(number: int) -> bytes:
    """Returns the list of a client's subscriptions as a value of `inflight.subscriptions`."""
    subscriptions = tuple(Subscription(topic_filter=topic_filter, qos=QoS.AT_LEAST_ONCE) for topic_filter in fleet(number))
    connection_id = _CONNECTION_ID + number
    return encode_subscriptions(SubscriptionList(connection_id=connection_id, version=0, subscriptions=subscriptions))


class GatewayProcess:
    """`inflight gateway` in the `with` block; it is killed at its end."""

    def __init__(self, directory: Path, options: list[str]) -> None:
        self.port = free_port()
        self._log = directory / f"gateway-{self.port}.log"
        flags = [word for option in (*options, f"gateway.port={self.port}") for word in ("--set", option)]
        self._command = [sys.executable, "-m", "inflight", "gateway", *flags]
        self._began_s = 0.0
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> "GatewayProcess":
        with self._log.open("wb") as log:
            self._began_s = time.monotonic()
            self._process = start_child(self._command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def await_line(self, *wanted: str) -> dict[str, float]:
        """Returns the seconds until the log had a line with each of these words. Raises RuntimeError if one does not come."""
        found: dict[str, float] = {}
        while len(found) < len(wanted):
            since_s = time.monotonic() - self._began_s
            text = self._log.read_text(encoding="utf-8")
            found |= {words: since_s for words in wanted if words not in found and words in text}
            if since_s > _LONGEST_S or self._process.poll() is not None:
                raise RuntimeError(f"the gateway does not say {wanted}:\n{tail(self._log)}")
            time.sleep(_POLL_S)
        return found

    def memory_mib(self) -> tuple[float, float]:
        """Returns what is resident now, and the most that was."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        lines = dict(line.split(":", 1) for line in status.splitlines())
        now, most = (int(lines[name].split()[0]) / 1_024 for name in ("VmRSS", "VmHWM"))
        return now, most

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)


def fill(servers: str, topic: str, clients: int, progress: Progress) -> None:
    """Writes the lists of all clients."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    task = progress.add_task("lists", total=clients)
    for number in range(clients):
        producer.produce(topic, record(number), f"device-{number:07}".encode())
        if number % 1_000 == 0:
            producer.poll(0)
            progress.update(task, completed=number)
    if left := producer.flush(_LONGEST_S):
        raise RuntimeError(f"Kafka has not taken {left} lists in {_LONGEST_S:g} s")
    progress.update(task, completed=clients)


def accept(settings: Settings, client_id: bytes) -> None:
    """Does what the engine does for a new device: waits for its ClientConnected, and writes AcceptConnection."""
    servers, topics = settings.kafka.bootstrap_servers, settings.topics
    events = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    deadline_s = time.monotonic() + _LONGEST_S
    try:
        numbers = events.list_topics(topics.events, timeout=_LONGEST_S).topics[topics.events].partitions
        events.assign([TopicPartition(topics.events, number, OFFSET_BEGINNING) for number in numbers])
        connected = None
        while connected is None and time.monotonic() < deadline_s:
            found = events.poll(_POLL_S)
            if found is not None and found.error() is None and found.key() == client_id:
                connected = next(
                    (each for each in decode_events(found.value() or b"") if isinstance(each, ClientConnected)), None
                )
    finally:
        events.close()
    if connected is None:
        raise RuntimeError(f"the CONNECT of the device was not in {topics.events} within {_LONGEST_S:g} s")
    number = connected.commands_partition
    command = AcceptConnection(
        connection_id=connected.connection_id,
        partition=number,
        sequence=1,
        max_awaiting_rel=100,
        send_quota=32,
        subscriptions=(),
        list_connection_id=connected.connection_id,
        list_version=0,
    )
    batch = CommandBatch(client_id=client_id.decode(), commands=(command,))
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    producer.produce(topics.commands, encode_command_batch(batch), client_id, partition=number)
    producer.flush(_LONGEST_S)


def subscribe_ms(settings: Settings, port: int, count: int) -> list[float]:
    """Returns the times of SUBSCRIBEs of one device, each of which changes the QoS of its filter."""
    times = []
    with socket.create_connection(("127.0.0.1", port), timeout=_LONGEST_S) as device:
        device.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client_id = b"bench-subscriber-%d" % port
        device.sendall(connect_packet(client_id, clean=True))
        expect(device, CONNACK, 0)
        accept(settings, client_id)
        for number in range(count):
            began_s = time.perf_counter()
            device.sendall(subscribe_packet(b"bench/subscriber/#", number % 2))
            expect(device, SUBACK, number % 2)
            times.append(1_000 * (time.perf_counter() - began_s))
            time.sleep(_PAUSE_S)
        device.sendall(b"\xe0\x00")
    return times


def expect(device: socket.socket, kind: int, code: int) -> None:
    """Reads CONNACK or SUBACK with this code."""
    answer = device.recv(_SIZES[kind], socket.MSG_WAITALL)
    if len(answer) != _SIZES[kind] or (answer[0], answer[-1]) != (kind, code):
        raise RuntimeError(f"the gateway has answered {answer.hex()} instead of a packet of type {kind:#x} with code {code}")


def measure(directory: Path, options: list[str]) -> dict[str, float]:
    settings = load_settings(None, options)
    with GatewayProcess(directory, options) as gateway:
        found = gateway.await_line("ready mqtt=", "routing_tables_complete")
        figures = {"ready_s": found["ready mqtt="], "complete_s": found["routing_tables_complete"], "cpu_s": gateway.cpu_s()}
        time.sleep(_SETTLE_S)
        figures["resident_mib"], figures["peak_mib"] = gateway.memory_mib()
        times = subscribe_ms(settings, gateway.port, _SUBSCRIBES)
        figures["suback_p50_ms"], figures["suback_p99_ms"] = percentile(times, 0.5), percentile(times, 0.99)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    figures: dict[str, list[dict[str, float]]] = {_WITHOUT: [], _WITH: []}
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedKafka(Path(name), jars=ensure_jars()) as kafka,
        Progress(*bar, console=Console(stderr=True)) as progress,
    ):
        common = [f"kafka.bootstrap_servers={kafka.bootstrap_servers}", f"engine.data_dir={name}/data"]
        options = {prefix: [*common, f"topics.prefix={prefix}", f"gateway.group_id={prefix}"] for prefix in figures}
        for prefix in figures:
            settings = load_settings(None, options[prefix])
            ensure_topics(settings)
            if prefix == _WITH:
                fill(kafka.bootstrap_servers, settings.topics.subscriptions, arguments.clients, progress)
        task = progress.add_task("starts", total=len(figures) * arguments.turns)
        for _ in range(arguments.turns):
            for prefix, turns in figures.items():
                turns.append(measure(Path(name), options[prefix]))
                progress.advance(task)
    subscriptions = arguments.clients * len(fleet(0))
    table = Table(f"median of {arguments.turns} turns", title=f"a gateway process beside {arguments.clients:,} offline clients")
    table.add_column("no subscriptions", justify="right")
    table.add_column(f"{subscriptions:,}", justify="right")
    for title, key in _ROWS:
        table.add_row(title, *(f"{median(turn[key] for turn in turns):,.1f}" for turns in figures.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
