"""Measures the whole path on this machine: backend → Kafka → engine → Kafka → gateway → 1,000 MQTT sockets, and the answers back.

    python -m bench.end_to_end                       # some minutes; prints a table and writes bench/results/end_to_end.json
    python -m bench.end_to_end --compare             # again without the fast path
    python -m bench.end_to_end --devices 100 --burst 2000 --seconds 5
    python -m bench.end_to_end --connections 10000   # only connections, clean starts and kept sessions, and their memory

Starts `inflight up` in its own directory. Backend, broker, engine, gateway and all devices share the cores; separate machines
would be faster. The latency is from the call of the backend's producer, which is librdkafka, to the device's socket.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.contestants.processor_time import ProcessorTime, parts_of_up
from bench.sender import Sender
from bench.simulated_devices import COUNTED_BURSTS, stamped, unstamped
from inflight.demo.up import UpProcess
from inflight.local.endpoints import Endpoints
from streaming.config.settings import Settings
from streaming.engine.kafka_access import end_offsets, write_wake_up
from streaming.engine.progress import PROGRESS_FILE, BatchProgress, last_progress
from streaming.spark_internals.checkpoint import Offsets

RATES = (20, 200, 500, 1_000)
QOS_2_RATE = 200
CONNECT_RATE = 20
IDLE_S = 60
_AT_REST_S = 4.0
"""An engine without a micro-batch for this long is at rest."""
ROWS = (
    ("CONNECT → CONNACK p50, ms", "connect_p50_ms"),
    ("CONNECT → CONNACK of clean starts p50, ms", "connect_clean_p50_ms"),
    *((f"… at {CONNECT_RATE} a second p{part}, ms", f"connect_steady_p{part}_ms") for part in (50, 99)),
    *((f"p{part} at {rate:,} messages/s, ms", f"p{part}_{rate}") for rate in RATES for part in (50, 99)),
    *((f"QoS 2 handshake p{part} at {QOS_2_RATE} messages/s, ms", f"qos_2_p{part}") for part in (50, 99)),
    ("QoS 1 messages/s, a burst over all devices, cold", "cold_burst_per_s"),
    ("QoS 1 messages/s, a burst over all devices, warm", "burst_per_s"),
    ("CPU ms of Inflight for each message of the last burst", "burst_cpu_ms"),
    ("idle micro-batch p50, ms", "idle_ms"),
    ("cores in use with nothing to do, engine", "idle_engine_cores"),
    ("cores in use with nothing to do, everything", "idle_cores"),
)
CONNECTION_ROUNDS = (
    # name, clean starts, text; a name that occurs twice is measured twice, and the last measurement counts
    ("clean", True, "clean starts, the first after the start"),
    ("warm", True, "clean starts, the third"),
    ("warm", True, "clean starts, the third"),
    ("kept", False, "kept sessions, new"),
)
CONNECTION_ROWS = (
    ("KiB of the gateway's memory for each, clean starts", "clean_kib"),
    *(
        (f"{title}, {text}", f"{name}_{key}")
        for name, text in {name: text for name, _, text in CONNECTION_ROUNDS}.items()
        for title, key in (
            ("connections/s", "connections_per_s"),
            ("CONNECT → CONNACK p50, ms", "connect_p50_ms"),
            ("CONNECT → CONNACK p99, ms", "connect_p99_ms"),
            *((f"CPU ms for each: {part}", f"cpu_ms_{part}") for part in ("gateway", "engine", "kafka", "devices")),
        )
    ),
)
WITHOUT = "without_fast_path_"
"""Prefix of the names of measurements with `fast_path.enabled = false`."""
RESULTS = Path(__file__).parent / "results" / "end_to_end.json"


class Devices:
    """Runs bench/devices.py as a process of its own, so that it does not share an interpreter with the sender."""

    def __init__(self, address: tuple[str, int], count: int, prefix: str, expect: int, *options: str) -> None:
        """options: further options of bench.devices."""
        options += ("--host", address[0], "--port", str(address[1]), "--devices", str(count), "--prefix", prefix)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.devices", *options, "--expect", str(expect)], stdout=subprocess.PIPE, text=True
        )

    def await_connected(self) -> None:
        line = self._line()
        if not line.startswith("connected"):
            raise RuntimeError(f"the devices did not connect: {line!r}")

    def result(self) -> dict[str, Any]:
        """Returns the result that bench.devices prints after the expected messages, or its time-out."""
        line = self._line()
        self._process.wait(30)
        result: dict[str, Any] = json.loads(line)
        return result

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Backend:
    """Sends stamped messages to the devices in turn."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._sender = Sender(bootstrap_servers)

    def send(
        self, prefix: str, devices: int, count: int, *, rate: int, qos: int = 1, payload: Callable[[], bytes] = stamped
    ) -> float:
        """Sends messages; returns, when Kafka has confirmed all, the greatest delay of a send in seconds.

        rate: per second, 0 = as fast as possible. payload: makes the payload of each message.
        """
        started, late_s = time.monotonic(), 0.0
        headers = [("mqtt-topic", b"bench/t"), ("mqtt-qos", b"%d" % qos)]
        for number in range(count):
            if rate:
                due = started + number / rate
                if (wait := due - time.monotonic()) > 0:
                    time.sleep(wait)
                late_s = max(late_s, time.monotonic() - due)
            key = f"{prefix}{number % devices}".encode()
            self._sender.send("inflight.messages", payload(), key=key, headers=headers)
        self._sender.flush()
        return late_s

    def greet(self, prefix: str, devices: int) -> None:
        """Sends a first message to each device, which is not counted: no client has the fast path before its first message."""
        for number in range(devices):
            self._sender.send("inflight.messages", b"first", key=f"{prefix}{number}".encode(), headers=[("mqtt-topic", b"t")])
        self._sender.flush()


def measure(up: UpProcess, arguments: argparse.Namespace, bar: Progress) -> dict[str, float]:
    backend, result = Backend(up.kafka), {}
    task = bar.add_task("first burst", total=arguments.bursts + len(RATES) + 2)
    # The bursts come first, because they warm the JVM up: cold code is only the first minute of a job that runs for months.
    bursts: list[float] = []
    for number in range(arguments.bursts):
        prefix, greetings = f"burst-{number}-", 0 if arguments.first_messages else arguments.devices
        devices = Devices(up.mqtt, arguments.devices, prefix, greetings + arguments.burst)
        devices.await_connected()
        backend.greet(prefix, greetings)
        await_handled(up)
        spent = ProcessorTime(partial(parts_of_up, up.data_dir))
        started = time.time()
        backend.send(prefix, arguments.devices, arguments.burst, rate=0)
        measured = devices.result()
        if (missing := greetings + arguments.burst - measured["publishes"]) > 0:
            raise RuntimeError(f"{missing} of {arguments.burst} messages did not arrive")
        bursts.append(arguments.burst / (measured["last_time"] - started))
        await_handled(up)  # later work for these messages counts too
        result["burst_cpu_ms"] = 1_000 * sum(spent.spent().values()) / arguments.burst
        bar.update(task, advance=1, description=f"burst {number + 1}: {bursts[-1]:,.0f} messages/s")
    result["burst_per_s"] = median(bursts[-COUNTED_BURSTS:])
    result["cold_burst_per_s"] = bursts[0]
    for rate in RATES:
        prefix, count = f"at-{rate}-", rate * arguments.seconds
        warm_up = rate  # payloads of the first second have no time: new connections, cold code
        devices = Devices(up.mqtt, arguments.devices, prefix, arguments.devices + warm_up + count)
        devices.await_connected()
        backend.greet(prefix, arguments.devices)
        await_handled(up)
        backend.send(prefix, arguments.devices, warm_up, rate=rate, payload=unstamped)
        backend.send(prefix, arguments.devices, count, rate=rate)
        measured = devices.result()
        result |= {f"p50_{rate}": measured["latency_p50_ms"], f"p99_{rate}": measured["latency_p99_ms"]}
        result["connect_p50_ms"] = measured["connect_p50_ms"]
        bar.update(task, advance=1, description=f"{rate} messages/s: p50 {measured['latency_p50_ms']:,.0f} ms")
    result |= measure_qos_2(up, backend, arguments)
    clean = Devices(up.mqtt, arguments.devices, "clean-", 0, "--clean")
    clean.await_connected()
    result["connect_clean_p50_ms"] = clean.result()["connect_p50_ms"]
    steady = Devices(up.mqtt, CONNECT_RATE * arguments.seconds, "steady-", 0, "--clean", "--connect-rate", str(CONNECT_RATE))
    steady.await_connected()
    measured = steady.result()
    result |= {f"connect_steady_p{part}_ms": measured[f"connect_p{part}_ms"] for part in (50, 99)}
    bar.update(task, advance=1, description="nothing to do")
    result["idle_ms"] = median(batch.duration_ms for batch in idle_batches(up, 4))
    result |= measure_idle(up, backend, arguments.devices)
    bar.update(task, advance=1)
    return result


def measure_qos_2(up: UpProcess, backend: Backend, arguments: argparse.Namespace) -> dict[str, float]:
    """Measures from the call of the backend's producer to PUBREL at the device, which its PUBCOMP ends."""
    count = QOS_2_RATE * arguments.seconds
    devices = Devices(up.mqtt, arguments.devices, "qos-2-", QOS_2_RATE + count, "--qos", "2")
    devices.await_connected()
    backend.greet("qos-2-", arguments.devices)
    await_handled(up)
    backend.send("qos-2-", arguments.devices, QOS_2_RATE, rate=QOS_2_RATE, qos=2, payload=unstamped)
    backend.send("qos-2-", arguments.devices, count, rate=QOS_2_RATE, qos=2)
    measured = devices.result()
    return {f"qos_2_p{part}": measured[f"handshake_p{part}_ms"] for part in (50, 99)}


def measure_idle(up: UpProcess, backend: Backend, count: int) -> dict[str, float]:
    """Measures with all devices connected, after the engine has come to rest."""
    devices = Devices(up.mqtt, count, "idle-", 1)
    devices.await_connected()
    await_rest(up.data_dir)
    spent = ProcessorTime(partial(parts_of_up, up.data_dir))
    time.sleep(IDLE_S)
    cores = {name: cpu_s / IDLE_S for name, cpu_s in spent.spent().items()}
    backend.greet("idle-", 1)  # ends the devices
    devices.result()
    return {
        "idle_engine_cores": sum(of_one for name, of_one in cores.items() if name.startswith("engine")),
        "idle_cores": sum(cores.values()),
    }


def await_rest(data_dir: Path, timeout_s: float = 120.0) -> None:
    """Returns when there was no micro-batch for `_AT_REST_S`. Raises TimeoutError."""
    deadline, last = time.monotonic() + timeout_s, None
    since = time.monotonic()
    while time.monotonic() < since + _AT_REST_S:
        if time.monotonic() > deadline:
            raise TimeoutError("the engine does not come to rest")
        if (batch := last_progress(data_dir)) != last:
            last, since = batch, time.monotonic()
        time.sleep(0.1)


def measure_connections(up: UpProcess, count: int, bar: Progress) -> dict[str, float]:
    """Measures connections. A thousand devices connect and leave before, so that the gateway has allocated its own memory."""
    gateway, result = psutil.Process(Endpoints.read(up.data_dir).pids["gateway"]), {}
    task = bar.add_task("the first thousand", total=len(CONNECTION_ROUNDS) + 1)
    first = Devices(up.mqtt, 1_000, "first-", 0)
    first.await_connected()
    first.result()
    for number, (name, is_clean, text) in enumerate(CONNECTION_ROUNDS):
        bar.update(task, advance=1, description=f"{count:,} connections: {text}")
        before = gateway.memory_info().rss  # for the first round; later ones reuse the memory of earlier ones
        prefix = f"{name}-{number}-"
        await_handled(up)
        spent = ProcessorTime(partial(parts_of_up, up.data_dir))
        devices = Devices(up.mqtt, count, prefix, 1, *(["--clean"] if is_clean else []))  # this message ends them
        devices.await_connected()
        result[f"{name}_kib"] = (gateway.memory_info().rss - before) / count / 1_024
        cpu_s = Counter[str]()
        for part, part_s in spent.spent().items():
            cpu_s[part.partition("-")[0]] += part_s
        Backend(up.kafka).greet(prefix, 1)
        measured = devices.result()
        result |= {f"{name}_{key}": measured[key] for key in ("connections_per_s", "connect_p50_ms", "connect_p99_ms")}
        cpu_s["devices"] = measured["connect_cpu_s"]
        result |= {f"{name}_cpu_ms_{part}": 1_000 * part_s / count for part, part_s in cpu_s.items()}
    bar.update(task, advance=1)
    return result


def await_handled(up: UpProcess, timeout_s: float = 60.0) -> None:
    """Returns when the engine has handled all that is in its log, and nothing more has come. Raises TimeoutError."""
    settings, deadline = Settings(kafka={"bootstrap_servers": up.kafka}), time.monotonic() + timeout_s
    ends: Offsets = {}
    while True:
        lines = (up.data_dir / PROGRESS_FILE).read_bytes().splitlines()[-1:]
        read = msgspec.json.decode(lines[0], type=BatchProgress).end_offsets
        if all(read[topic][number] >= offset for topic, offsets in ends.items() for number, offset in offsets.items()):
            before, ends = ends, end_offsets(settings, read)
            if ends == before:
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the engine does not come to rest")
        time.sleep(0.2)


def idle_batches(up: UpProcess, count: int, timeout_s: float = 60.0) -> list[BatchProgress]:
    """Returns the first `count` micro-batches that follow each other, call no session and have started after the call.

    Each is begun by a record that is for no session. Raises TimeoutError.
    """
    asked, deadline, begun = datetime.now(UTC), time.monotonic() + timeout_s, -1
    while True:
        lines = (up.data_dir / PROGRESS_FILE).read_bytes().splitlines()[-count:]
        batches = [msgspec.json.decode(line, type=BatchProgress) for line in lines]
        if all_idle(batches, count, asked):
            return batches
        if batches[-1].batch_id > begun:
            begun = batches[-1].batch_id
            write_wake_up(Settings(kafka={"bootstrap_servers": up.kafka}))
        if time.monotonic() > deadline:
            raise TimeoutError("the engine does not come to rest")
        time.sleep(0.2)


def all_idle(batches: Sequence[BatchProgress], count: int, since: datetime) -> bool:
    """Returns True for `count` micro-batches that call no session and have all started since then."""
    return len(batches) == count and all(
        not batch.called_sessions and datetime.fromisoformat(batch.started) >= since for batch in batches
    )


def run(arguments: argparse.Namespace, bar: Progress, *overrides: str) -> dict[str, float]:
    """Measures with its own `inflight up`."""
    options = [part for override in (*arguments.set, *overrides) for part in ("--set", override)]
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name, UpProcess(Path(name) / "data", *options) as up, bar:
        return measure_connections(up, arguments.connections, bar) if arguments.connections else measure(up, arguments, bar)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def main(options: Sequence[str] | None = None) -> None:
    """options: None = those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--burst", type=int, default=20_000, help="messages")
    parser.add_argument(
        "--bursts", type=int, default=8, help="the first ones warm the JVM up, the median of the last three counts"
    )
    parser.add_argument(
        "--first-messages",
        action="store_true",
        help="bursts to devices that have had no message before, so none has the fast path",
    )
    parser.add_argument("--seconds", type=int, default=30, help="for each rate")
    parser.add_argument("--connections", type=int, default=0, help="measure only so many connections")
    parser.add_argument("--compare", action="store_true", help="measure everything once more without the fast path")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="given to `inflight up`")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args(options)
    result = run(arguments, Progress(console=Console(stderr=True)))
    devices = arguments.connections or arguments.devices
    table = Table("measured", "", title=f"{devices} devices, {os.cpu_count()} cores for everything")
    if arguments.compare:
        off = run(arguments, Progress(console=Console(stderr=True)), "fast_path.enabled=false")
        result |= {f"{WITHOUT}{key}": value for key, value in off.items()}
        table.add_column("without the fast path")
    for title, key in CONNECTION_ROWS if arguments.connections else ROWS:
        table.add_row(title, *(_text(result[name]) for name in (key, f"{WITHOUT}{key}") if name in result))
    Console().print(table)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
