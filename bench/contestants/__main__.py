"""Compares Inflight with MQTT brokers: the same devices, payloads and QoS with each in turn, in one run.

    python -m bench.contestants --turns 2         # prints tables and writes bench/results/contestants.json
    python -m bench.contestants --only inflight,rabbitmq --devices 100 --burst 2000 --seconds 5 --rates 20,200

inflight               `inflight up` with its defaults; the backend uses librdkafka (bench/contestants/inflight.py)
rabbitmq               with its MQTT plugin: durable queues, persistent messages (bench/contestants/rabbitmq.py)
mosquitto-persistent   writes its database at intervals, not for each message (bench/contestants/mosquitto.py)
mosquitto-memory       without persistence
generator              our publisher and devices with only a trivial program between them (bench/contestants/sink.py)

Each contestant is started anew for each turn, with its own data, and stopped again. They promise different things: Inflight
acknowledges records in Kafka's log, RabbitMQ messages in its durable queues, Mosquitto messages in memory. Contestant, publisher
and devices share the cores of this machine. With payloads of 200 bytes the run measures:

- bursts of --burst messages at QoS 1 over --devices devices and over a fifth of them, and of half as many at QoS 2: acknowledged
  messages a second, from the first call of the publisher to the last message at a device;
- steady rates at QoS 1: the time from the call of the publisher to the device's socket;
- publications of all devices at QoS 1, --burst in total: acknowledged a second;
- CONNECT → CONNACK of all devices at once, with kept sessions;
- the processor time of each part, by process, until the contestant is at rest.

The devices are the same in all parts, so their sessions are new only for the first connections.

With --routing devices publish to each other instead, at QoS 1 (bench/contestants/routing.py; 200 bytes each):

    python -m bench.contestants --routing --turns 1     # writes bench/results/contestants_routing.json

- one device to one, at 200 a second; 100 to 100 and 100 to a shared subscription of 10, at 1,000 a second in all;
- one device to --devices subscribers of one topic, once a second: the time until the last one has it.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.contestants.contestant import Contestant
from bench.contestants.inflight import Inflight
from bench.contestants.measurements import Extent, Measurements
from bench.contestants.mosquitto import MosquittoInMemory, MosquittoPersistent
from bench.contestants.picture import draw
from bench.contestants.rabbitmq import RabbitMq
from bench.contestants.routing import RoutingExtent, RoutingMeasurements
from bench.contestants.sink import Sink
from bench.contestants.tables import Results, Run, show
from inflight.local.errors import MissingPrerequisite
from state.errors import InflightError

CONTESTANTS: dict[str, type[Contestant]] = {
    "inflight": Inflight,
    "rabbitmq": RabbitMq,
    "mosquitto-persistent": MosquittoPersistent,
    "mosquitto-memory": MosquittoInMemory,
    "generator": Sink,
}
RESULTS = Path(__file__).parents[1] / "results" / "contestants.json"
ROUTING_RESULTS = RESULTS.with_name("contestants_routing.json")
_READY_S = 60.0
_WIDTH = 150
"""Width in columns of the tables in a file."""
_FILES = 20_000


def measure(run: Run, extent: Extent | RoutingExtent, settings: list[str], bar: Progress) -> None:
    """Measures one contestant once. After an error the run has the measurements up to it, and the error."""
    task = bar.add_task(f"{run.title}, turn {run.turn}: starts", total=None)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="inflight-bench-") as directory,
            CONTESTANTS[run.name](Path(directory), settings) as contestant,
            contextlib.ExitStack() as stack,
        ):
            if isinstance(extent, RoutingExtent):
                parts = list(RoutingMeasurements(contestant, extent).parts())
            else:
                backend = stack.enter_context(contestant.backend())
                backend.line(_READY_S)
                parts = list(Measurements(contestant, backend, extent).parts())
            bar.update(task, total=len(parts))
            for part, figure in parts:
                bar.update(task, description=f"{run.title}, turn {run.turn}: {part}")
                run.figures[part] = figure()
                bar.advance(task)
    except (InflightError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        run.error = f"{type(error).__name__}: {error}"
    bar.update(task, description=f"{run.title}, turn {run.turn}: {'failed' if run.error else 'done'}")


def write(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def allow_files() -> None:
    """Raises the limit of open files.

    Every device is a socket on both sides, and some machines allow a process only 1,024 by default.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def names(text: str) -> list[str]:
    found = text.split(",")
    if unknown := sorted(set(found) - set(CONTESTANTS)):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(CONTESTANTS)}")
    return [name for name in CONTESTANTS if name in found]


def numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above zero")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=positive, default=2, help="each contestant once in each")
    parser.add_argument("--routing", action="store_true", help="devices publish to each other")
    parser.add_argument("--only", type=names, default=list(CONTESTANTS), metavar="NAMES", help="with commas between")
    parser.add_argument("--devices", type=positive, default=1_000, help="with --routing: subscribers of one topic")
    parser.add_argument("--burst", type=positive, default=20_000, help="messages")
    parser.add_argument("--seconds", type=positive, default=10, help="for each rate")
    parser.add_argument("--rates", type=numbers, default=[20, 200, 500, 1_000, 2_000], help="messages a second, by commas")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for each step")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="given to `inflight up`")
    parser.add_argument("--output", type=Path, help=f"default: {RESULTS.parent.name}/{RESULTS.name}, or {ROUTING_RESULTS.name}")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture of the results as well, .svg or .png")
    arguments = parser.parse_args()
    if arguments.routing:
        if arguments.plot is not None:
            parser.error("--plot does not know the figures of --routing; leave it out")
        arguments.only = [name for name in arguments.only if name != "generator"]  # forwards to one subscriber only
        arguments.set = ["routing.enabled=true", *arguments.set]
    output = arguments.output or (ROUTING_RESULTS if arguments.routing else RESULTS)
    try:
        versions = {name: CONTESTANTS[name].version() for name in arguments.only}
    except MissingPrerequisite as missing:
        sys.exit(str(missing))
    allow_files()
    extent = (
        RoutingExtent(fleet=arguments.devices, seconds=arguments.seconds, patience_s=arguments.patience)
        if arguments.routing
        else Extent(
            devices=arguments.devices,
            burst=arguments.burst,
            seconds=arguments.seconds,
            rates=arguments.rates,
            patience_s=arguments.patience,
        )
    )
    results = Results(
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        cores=os.cpu_count() or 1,
        devices=arguments.devices,
        burst=arguments.burst,
        seconds=arguments.seconds,
        rates=arguments.rates,
        settings=arguments.set,
        is_routing=arguments.routing,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as bar:
        for turn in range(1, arguments.turns + 1):
            for name in arguments.only:
                run = Run(turn=turn, name=name, title=CONTESTANTS[name].title, version=versions[name])
                results.runs.append(run)
                measure(run, extent, arguments.set, bar)
                write(results, output)
    results.finished = True
    write(results, output)
    show(results, Console(width=None if sys.stdout.isatty() else _WIDTH))
    if arguments.plot is not None:
        draw(results, arguments.plot)
    if any(run.error for run in results.runs):
        sys.exit("not everything could be measured: see above")


if __name__ == "__main__":
    main()
