"""Measures very many sessions: the cost of a million idle ones, and the time of very many resends that fall due at a standstill.

    python -m bench.sessions                                  # prints a table, writes bench/results/sessions.json
    python -m bench.sessions --only sessions --sessions 10000
    python -m bench.sessions --only resends --resends 10000

`sessions`: MQTT 5 clients with sessions that never expire have connected once and left. Another client is connected, and gets a
QoS 0 message every second, whether the previous one has arrived or not. Then `inflight console` is queried for the sessions. The
engine is stopped (SIGTERM) and started again, and killed at rest (SIGKILL) and started again. At the end `inflight sql` counts
the sessions: all must be there.

`resends`: MQTT 3.1.1 clients are connected, and do not acknowledge their one QoS 1 message. The engine is killed, and
started again when all of these messages are due for a resend.

There are no sockets: no gateway runs, so there is no fast path. Connections have no lease, so the engine does not end them. Times
are from the start of the engine's process. After SIGKILL they include the end of the old JVM, which has the lock of the
checkpoint.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.console import measure_console
from bench.devices import percentile
from bench.running_engine import JVM, WORKERS, Run, disk_bytes
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from state.commands import AcceptConnection, SendPublish
from state.events import ClientConnected, ClientDisconnected
from state.model import NEVER_EXPIRES_S
from state.records.events import WAKE_UP_KEY, encode_event

MEMORY = (("the JVM, resident, MiB", JVM), ("Python workers, resident, MiB", WORKERS))
ROWS = {
    "sessions": (
        ("first start, without sessions, until ready, s", "empty_ready_s"),
        ("until all sessions are made, s", "made_s"),
        ("sessions made in a second", "made_per_s"),
        ("micro-batch with nothing but messages to one other client, p50, ms", "batch_p50_ms"),
        ("… the longest, ms", "batch_longest_ms"),
        ("… how many", "batches"),
        ("latency of these messages, p50, ms", "latency_p50_ms"),
        ("… p99, ms", "latency_p99_ms"),
        *MEMORY,
        ("checkpoint on disk, MiB", "checkpoint_bytes"),
        ("console: the first look at the sessions, s", "console_first_s"),
        ("… a search by the beginning of a client id, s", "console_search_s"),
        ("… one client, s", "console_client_s"),
        ("… the longest of its HTTP requests, s", "console_longest_s"),
        ("SIGTERM until the engine has ended, s", "stop_s"),
        ("start after SIGTERM until ready, s", "stopped_ready_s"),
        ("… until the first message has its command, s", "stopped_first_s"),
        ("start after SIGKILL until ready, s", "killed_ready_s"),
        ("… until the first message has its command, s", "killed_first_s"),
    ),
    "resends": (
        ("until all messages are sent, s", "sent_s"),
        ("start until ready, s", "ready_s"),
        ("… until the first resend, s", "first_s"),
        ("… until every client has its resend, s", "last_s"),
        ("micro-batches that it took", "batches"),
        ("… the longest, ms", "batch_longest_ms"),
        *MEMORY,
    ),
}
RESULTS = Path(__file__).parent / "results" / "sessions.json"
WATCHED = b"watched"
EVERY_S = 1.0


class Watched:
    """The connected client. sent, latencies_s: of its messages, by number; monotonic seconds."""

    def __init__(self, run: Run) -> None:
        self._run, self._kafka = run, run.kafka
        self.sent: list[float] = []
        self.latencies_s: dict[int, float] = {}
        self._next_s = 0.0
        event = ClientConnected(connection_id=1, commands_partition=0, clean_start=False)
        self._kafka.producer.send(run.topics.events, encode_event(event), key=WATCHED).get(60)
        self._kafka.follow(run.topics.commands, 0)
        run.wait("one client is connected", lambda: any(client == WATCHED for client, _ in self._kafka.commands()), 1)

    def send(self) -> None:
        number = len(self.sent)
        self.sent.append(time.monotonic())
        headers = [("mqtt-topic", b"bench/t"), ("mqtt-qos", b"0")]
        self._kafka.producer.send(self._run.topics.messages, b"%d" % number, key=WATCHED, headers=headers)

    def send_every_second(self) -> None:
        if (now_s := time.monotonic()) >= self._next_s:
            self._next_s = max(self._next_s, now_s - EVERY_S) + EVERY_S
            self.send()

    def arrived(self) -> int:
        """Returns how many have arrived."""
        for client, command in self._kafka.commands():
            if client == WATCHED and isinstance(command, SendPublish):
                number = int(command.payload)
                self.latencies_s.setdefault(number, time.monotonic() - self.sent[number])
        return len(self.latencies_s)


def measure_sessions(run: Run, arguments: argparse.Namespace) -> dict[str, float]:
    engine, events, count = run.engine, run.topics.events, arguments.sessions
    result: dict[str, float] = {"sessions": count, "empty_ready_s": run.start()}
    watched = Watched(run)
    others = sorted(run.kafka.ends(run.topics.commands))[1:]  # commands of the idle clients are not read
    connected = [
        encode_event(
            ClientConnected(
                connection_id=1,
                commands_partition=partition,
                protocol_version=5,
                clean_start=False,
                session_expiry_interval_s=NEVER_EXPIRES_S,
            )
        )
        for partition in others
    ]
    disconnected = encode_event(ClientDisconnected(connection_id=1))

    def make(number: int) -> None:
        key = b"idle-%d" % number
        run.kafka.producer.send(events, connected[number % len(others)], key=key)
        run.kafka.producer.send(events, disconnected, key=key)

    began_s = time.monotonic()
    run.send("sessions", count, make)
    run.await_taken("sessions", events)
    result["made_s"] = time.monotonic() - began_s
    result["made_per_s"] = count / result["made_s"]
    await_rest(run)
    result |= measure_idle(run, watched, arguments.batches)
    result["checkpoint_bytes"] = disk_bytes(run.checkpoint)
    result |= measure_console(engine, engine.data_dir.parent, f"idle-{count // 2}", run.within_s)
    result["stop_s"] = run.stop()
    result |= {f"stopped_{name}": value for name, value in measure_start(run, watched).items()}
    await_rest(run)
    engine.kill()
    result |= {f"killed_{name}": value for name, value in measure_start(run, watched).items()}
    run.stop()
    kept = count_sessions(engine.data_dir, run.within_s)
    if kept != count + 1:
        raise RuntimeError(f"{kept:,} sessions are in the checkpoint: there should be {count:,} idle ones and one more")
    return result


def await_rest(run: Run) -> None:
    """Returns after three micro-batches that have called no session. Each is begun by a record that is for no session."""
    before, begun = run.engine.last_batch_id(), -1

    def resting() -> int:
        nonlocal begun
        if (last := run.engine.last_batch_id()) > begun:
            begun = last
            run.kafka.producer.send(run.topics.events, b"", key=WAKE_UP_KEY)
            run.kafka.producer.flush()
        return sum(not batch.called_sessions for batch in run.engine.batches(before))

    run.wait("micro-batches without work", resting, 3)


def measure_idle(run: Run, watched: Watched, count: int) -> dict[str, float]:
    """Waits for at least this many micro-batches that only have messages to the watched client."""
    engine, before = run.engine, run.engine.last_batch_id()
    engine.measure_memory()

    def done() -> int:
        watched.send_every_second()
        watched.arrived()
        return sum(batch.called_sessions for batch in engine.batches(before))

    run.wait("micro-batches with a message", done, count)
    run.wait("messages to one client", watched.arrived, len(watched.sent))
    durations_ms = [batch.duration_ms for batch in engine.batches(before) if batch.called_sessions]
    latencies_ms = [1_000 * latency_s for latency_s in watched.latencies_s.values()]
    return {
        "batches": len(durations_ms),
        "batch_p50_ms": median(durations_ms),
        "batch_longest_ms": max(durations_ms),
        "latency_p50_ms": median(latencies_ms),
        "latency_p99_ms": percentile(latencies_ms, 0.99),
        **engine.memory,
    }


def measure_start(run: Run, watched: Watched) -> dict[str, float]:
    """Sends a message as soon as the engine's process has begun."""
    engine = run.engine
    engine.start()
    watched.send()
    number = len(watched.sent) - 1

    def done() -> int:
        watched.arrived()
        return engine.is_ready() + (number in watched.latencies_s)

    run.wait("started again: ready, and a message", done, 2)
    first_s = engine.since_start_s() - (time.monotonic() - watched.sent[number]) + watched.latencies_s[number]
    return {"ready_s": engine.ready_s() or 0.0, "first_s": first_s}


def count_sessions(data_dir: Path, within_s: float) -> int:
    """Counts in the checkpoint of a stopped engine."""
    question = "SELECT count(*) AS sessions FROM sessions"
    command = [sys.executable, "-m", "inflight", "sql", question, "--json", "--data-dir", str(data_dir)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=within_s)
    if done.returncode:
        raise RuntimeError(f"the sessions cannot be counted: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["sessions"]


def measure_resends(run: Run, arguments: argparse.Namespace, interval_s: int) -> dict[str, float]:
    engine, topics, count = run.engine, run.topics, arguments.resends
    result: dict[str, float] = {"resends": count, "retry_interval_s": interval_s}
    run.start()
    partitions = sorted(run.kafka.ends(topics.commands))
    run.kafka.follow(topics.commands, *partitions)
    events = [encode_event(ClientConnected(connection_id=1, commands_partition=n, clean_start=False)) for n in partitions]
    headers = [("mqtt-topic", b"bench/t"), ("mqtt-qos", b"1")]
    accepted: set[bytes] = set()
    sent: set[bytes] = set()
    resent: dict[bytes, float] = {}

    def read() -> None:
        for client, command in run.kafka.commands():
            if isinstance(command, AcceptConnection):
                accepted.add(client)
            elif isinstance(command, SendPublish) and command.dup:
                resent.setdefault(client, engine.since_start_s())
            elif isinstance(command, SendPublish):
                sent.add(client)

    def counted(clients: set[bytes] | dict[bytes, float]) -> Callable[[], int]:
        def look() -> int:
            read()
            return len(clients)

        return look

    def connect(number: int) -> None:
        run.kafka.producer.send(topics.events, events[number % len(events)], key=b"client-%d" % number)

    def submit(number: int) -> None:
        run.kafka.producer.send(topics.messages, b"p", key=b"client-%d" % number, headers=headers)

    run.send("connections", count, connect)
    run.wait("connections: accepted", counted(accepted), count)
    began_s = time.monotonic()
    run.send("messages", count, submit)
    run.wait("messages: sent to their clients", counted(sent), count)
    last_s = time.monotonic()
    run.await_taken("messages", topics.messages)
    read()
    result["sent_s"] = last_s - began_s
    if resent or time.monotonic() - began_s >= interval_s:
        raise RuntimeError(f"{interval_s} s have passed before all was ready: give a longer --retry-interval")
    engine.kill()
    run.wait("seconds until all are due", lambda: time.monotonic() - last_s, interval_s, without_engine=True)
    before = engine.last_batch_id()
    result["ready_s"] = run.start()
    run.wait("resends", counted(resent), count)
    # At most the micro-batch with the last of them is missing in the engine's progress.
    last = engine.last_batch_id()
    run.wait("one more micro-batch", lambda: len(engine.batches(last)), 1)
    durations_ms = [batch.duration_ms for batch in engine.batches(before) if batch.clients_updated]
    run.stop()
    if set(resent) != sent or sent != accepted:
        raise RuntimeError("those who were sent a message again are not those who were sent one")
    times_s = {"first_s": min(resent.values()), "last_s": max(resent.values())}
    return result | times_s | {"batches": len(durations_ms), "batch_longest_ms": max(durations_ms)} | engine.memory


def run_part(part: str, arguments: argparse.Namespace, bar: Progress) -> dict[str, float]:
    count = arguments.sessions if part == "sessions" else arguments.resends
    within_s = arguments.patience or 300 + count / 100
    interval_s = arguments.retry_interval or 30 + count // 400
    own = "max_session_expiry_interval=never" if part == "sessions" else f"retry_interval={interval_s}s"
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name, EmbeddedKafka(Path(name), jars=ensure_jars()) as kafka:
        run = Run(Path(name), kafka.bootstrap_servers, bar, within_s, [own, *arguments.set])
        try:
            with run.engine:
                return measure_sessions(run, arguments) if part == "sessions" else measure_resends(run, arguments, interval_s)
        finally:
            run.kafka.close()


def shown(key: str, value: float) -> str:
    return f"{value / (1 << 20):,.0f}" if key.endswith("_bytes") else f"{value:,.1f}" if key.endswith("_s") else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(ROWS))
    parser.add_argument("--sessions", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--batches", type=int, default=30, help="micro-batches of the idle engine that are measured")
    parser.add_argument("--resends", type=int, default=100_000, metavar="N")
    parser.add_argument("--retry-interval", type=int, default=0, help="seconds; 0 = 30, and one for every 400 resends")
    parser.add_argument("--patience", type=float, default=0, help="seconds for each step; 0 = 300, and one for every 100 clients")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="given to the engine")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(arguments.output.read_bytes()) if arguments.output.exists() else {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    for part in (arguments.only,) if arguments.only else ROWS:
        with Progress(*columns, console=Console(stderr=True)) as bar:
            result = run_part(part, arguments, bar)
        # Writes each part's newest measurement, so that an error in one part does not lose the other.
        results[part] = result
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        table = Table("measured", "", title=f"{result[part]:,} {part}, {os.cpu_count()} cores for everything")
        for title, key in ROWS[part]:
            table.add_row(title, shown(key, result[key]))
        Console().print(table)


if __name__ == "__main__":
    main()
