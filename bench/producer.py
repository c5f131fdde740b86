"""Measures the Producer of one or several checkouts against one embedded Kafka, in turn.

    python -m bench.producer                              # this checkout, 1 minute
    python -m bench.producer --code old=../old --turns 3  # this checkout beside another one

A backend sends 100 bytes to one of 50 clients: first one message after the other (`send`), then many at once (`send_async`).
Each contestant runs in a process of its own. The first turn of each is not counted, because the broker's Java compiles its code.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

_TOPICS: Final = ("inflight.messages", "inflight.throttle")
_PARTITIONS: Final = 4
_CLIENTS: Final = 50
_PAYLOAD: Final = b"x" * 100
_ROWS: Final = (
    ("first_ms", "the first send of a new Producer, ms"),
    ("p50_ms", "send, p50, ms"),
    ("p99_ms", "send, p99, ms"),
    ("send_cpu_ms", "send, processor time of the backend, ms a message"),
    ("async_per_s", "send_async, messages a second"),
    ("async_cpu_ms", "send_async, processor time of the backend, ms a message"),
)


def measure_here(servers: str, *, sends: int, burst: int) -> dict[str, float]:
    """Measures the Producer that this process imports."""
    from inflight import Producer

    began_s = time.perf_counter()
    with Producer(servers) as producer:
        producer.send("client-0", "a/b", _PAYLOAD)
        first_ms = 1_000 * (time.perf_counter() - began_s)
        for number in range(200):
            producer.send(f"client-{number % _CLIENTS}", "a/b", _PAYLOAD)
        took_ms = []
        cpu_s = time.process_time()
        for number in range(sends):
            began_s = time.perf_counter()
            producer.send(f"client-{number % _CLIENTS}", "a/b", _PAYLOAD)
            took_ms.append(1_000 * (time.perf_counter() - began_s))
        send_cpu_s = time.process_time() - cpu_s
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for future in [producer.send_async(f"client-{number % _CLIENTS}", "a/b", _PAYLOAD) for number in range(burst)]:
            future.result()
        async_s, async_cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    percents = quantiles(took_ms, n=100)
    return {
        "first_ms": first_ms,
        "p50_ms": percents[49],
        "p99_ms": percents[98],
        "send_cpu_ms": 1_000 * send_cpu_s / sends,
        "async_per_s": burst / async_s,
        "async_cpu_ms": 1_000 * async_cpu_s / burst,
    }


def measure(code: Path, servers: str, *, sends: int, burst: int) -> dict[str, float]:
    """Measures the Producer of a checkout, in a process of its own."""
    command = [sys.executable, "-P", str(Path(__file__).absolute()), "--measure", servers]
    command += ["--sends", str(sends), "--burst", str(burst)]
    environment = {**os.environ, "PYTHONPATH": str(code.absolute())}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, cwd=code, timeout=300)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def compare(contestants: dict[str, Path], *, sends: int, burst: int, turns: int) -> None:
    from kafka import KafkaAdminClient
    from rich.console import Console
    from rich.table import Table

    from inflight.local.embedded_kafka import EmbeddedKafka
    from inflight.local.jars import ensure_jars

    console = Console()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka(Path(directory), jars=ensure_jars()) as broker:
        admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.create_topics({topic: {"num_partitions": _PARTITIONS, "replication_factor": 1} for topic in _TOPICS})
        admin.close()
        for turn in range(turns + 1):
            for name, code in contestants.items():
                with console.status(f"{name}, turn {turn} of {turns}"):
                    figures = measure(code, broker.bootstrap_servers, sends=sends, burst=burst)
                if turn:
                    runs[name].append(figures)
    table = Table("", *contestants, title=f"{sends:,} sends, then {burst:,} at once; median of {turns} (all turns)")
    for key, text in _ROWS:
        cells = ([run[key] for run in runs[name]] for name in contestants)
        table.add_row(text, *(f"{median(values):,.2f} ({', '.join(f'{value:,.2f}' for value in values)})" for values in cells))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="The Producer's latency, throughput and processor time.")
    parser.add_argument("--code", action="append", default=[], metavar="NAME=DIRECTORY", help="another checkout; may be repeated")
    parser.add_argument("--sends", type=int, default=2_000)
    parser.add_argument("--burst", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--measure", metavar="SERVERS", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure is not None:
        sys.stdout.write(json.dumps(measure_here(asked.measure, sends=asked.sends, burst=asked.burst)))
        return
    contestants = {name: Path(path) for name, _, path in (each.partition("=") for each in asked.code)}
    contestants["this checkout"] = Path(__file__).parent.parent
    compare(contestants, sends=asked.sends, burst=asked.burst, turns=asked.turns)


if __name__ == "__main__":
    main()
