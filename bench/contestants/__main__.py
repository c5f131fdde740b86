"""Compares Inflight with MQTT brokers: the same devices, payloads and QoS with each in turn, in one run.

    python -m bench.contestants --turns 2         # prints tables and writes bench/results/contestants.json
    python -m bench.contestants --only inflight,rabbitmq --devices 100 --burst 2000 --seconds 5 --rates 20,200
    python -m bench.contestants --only inflight,rabbitmq --slow-hour      # on one core: contestants_one-core.json
    python -m bench.contestants --only inflight --variant eager:engine.lazy_ms=0 --parts idle,rate_200 --turns 4
    python -m bench.contestants --only inflight --checkout before:../before --turns 4

inflight               `inflight up` with its defaults; the backend uses librdkafka (bench/contestants/inflight.py)
rabbitmq               with its MQTT plugin: durable queues, persistent messages (bench/contestants/rabbitmq.py)
mosquitto-persistent   writes its database at intervals, not for each message (bench/contestants/mosquitto.py)
mosquitto-memory       without persistence
generator              our publisher and devices with only a trivial program between them (bench/contestants/sink.py)
--variant              Inflight with other settings beside those that --set gives to all
--checkout             another version of Inflight, from a checkout with an environment of its own

Each contestant is started anew for each stage of each turn, with its own data, and stopped again. Every second turn has the
reverse order, so that a machine that gets slower or faster favours nobody. They promise different things: Inflight
acknowledges records in Kafka's log, RabbitMQ messages in its durable queues, Mosquitto messages in memory. Contestant, publisher
and devices share the cores of this machine. With payloads of 200 bytes the run measures these parts:

- burst_few_cold, burst_few_warm: bursts of --burst messages at QoS 1 over a fifth of --devices devices: acknowledged messages a
  second, from the first call of the publisher to the last message at a device;
- kill_alone, kill_standby: from SIGKILL of what holds the sessions until a message sent meanwhile is at its device, which
  connects again (bench/contestants/coming_back.py); kill_standby with a second engine that waits;
- connect_new, connect_kept: CONNECT → CONNACK of all devices at once, with new and with kept sessions;
- burst_cold, burst_warm: bursts over all devices; burst_qos2: half as many messages at QoS 2;
- rate_200 …: steady rates at QoS 1: the time from the call of the publisher to the device's socket;
- idle: the cores in use while all devices are connected and nothing happens;
- uplink: publications of all devices at QoS 1, --burst in total: acknowledged a second.

The processor time of each part is counted by process, until the contestant is at rest. After the table of all contestants come
ratios to RabbitMQ in the same turn, and the difference of each variant from Inflight in per cent.

With --routing devices publish to each other instead, at QoS 1 (bench/contestants/routing.py; 200 bytes each):

    python -m bench.contestants --routing --turns 1     # writes bench/results/contestants_routing.json

- pair: one device to one, at 200 a second; pairs: 100 to 100, and shared: 100 to a shared subscription of 10, at 1,000 a second;
- fleet: one device to --devices subscribers of one topic, once a second: the time until the last one has it;
- one_steady, one_burst, one_highest: ten devices to one subscriber: at 1,000 a second, --burst messages at once, and the highest
  steady rate: `--routing --parts one`.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.contestants.entrants import CONTESTANTS, INFLIGHT, contestants, other_version, variant
from bench.contestants.hour import Hour, spend
from bench.contestants.measurements import Extent, Stage, stages
from bench.contestants.picture import picture
from bench.contestants.processor_time import ProcessorTime
from bench.contestants.routing import RoutingExtent, routing_stages
from bench.contestants.tables import Results, Run, show
from bench.contestants.turns import Plan, measure
from inflight.local.errors import MissingPrerequisite

RESULTS = Path(__file__).parents[1] / "results" / "contestants.json"
ROUTING_RESULTS = RESULTS.with_name("contestants_routing.json")
T = TypeVar("T")
_LOOK_S = 1.0
_WIDTH = 150
"""Width in columns of the tables in a file."""
_FILES = 20_000


def chosen(every: Sequence[Stage], words: Sequence[str]) -> list[Stage]:
    """Returns the stages with only these parts; a word stands for all parts that begin with it and an underscore.

    Raises ValueError for a word that names none.
    """
    names = [part for stage in every for part in stage.parts]

    def is_chosen(part: str) -> bool:
        return not words or any(part == word or part.startswith(f"{word}_") for word in words)

    if unknown := [word for word in words if not any(part == word or part.startswith(f"{word}_") for part in names)]:
        raise ValueError(f"--parts: there is no {', '.join(unknown)}; there are {', '.join(names)}")
    return [
        Stage(parts=parts, with_standby=stage.with_standby)
        for stage in every
        if (parts := [part for part in stage.parts if is_chosen(part)])
    ]


def busy_now() -> float:
    """Returns the share of the usable cores that somebody uses, 0 … 1."""
    machine = ProcessorTime(list)
    time.sleep(_LOOK_S)
    return round(machine.busy(), 3)


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


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Returns `read` with its ValueError as what argparse shows."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above zero")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=positive, default=1, help="each contestant once in each")
    parser.add_argument("--routing", action="store_true", help="devices publish to each other")
    parser.add_argument(
        "--only", type=argument(contestants), metavar="NAMES", help="by commas; default: all, beside a variant inflight"
    )
    parser.add_argument("--variant", type=argument(variant), action="append", default=[], metavar="NAME:KEY=VALUE[,KEY=VALUE]")
    parser.add_argument("--checkout", type=argument(other_version), action="append", default=[], metavar="NAME:DIRECTORY")
    parser.add_argument("--parts", type=words, default=[], metavar="PARTS", help="with commas between; burst = all that begin so")
    parser.add_argument(
        "--slow-hour",
        type=Hour,
        choices=(Hour.ONE_CORE, Hour.BUSY),
        nargs="?",
        const=Hour.ONE_CORE,
        default=Hour.PLAIN,
        help="everything on one core (default), or two busy loops beside it",
    )
    parser.add_argument("--devices", type=positive, default=1_000, help="with --routing: subscribers of one topic")
    parser.add_argument("--burst", type=positive, default=20_000, help="messages")
    parser.add_argument("--seconds", type=positive, default=10, help="for each rate")
    parser.add_argument("--rates", type=numbers, default=[200, 1_000], help="messages a second, by commas")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for each step")
    parser.add_argument("--minutes", type=float, default=5.5, help="the most that a contestant may take in a turn")
    parser.add_argument(
        "--attempts",
        type=positive,
        default=1,
        help="the most for a part that the host of a virtual machine disturbs; not for cold bursts, new sessions and kills",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="given to `inflight up`")
    parser.add_argument("--output", type=Path, help=f"default: in {RESULTS.parent.name}/, named after --routing and --slow-hour")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture of the results as well, as SVG")
    arguments = parser.parse_args()
    entrants = arguments.only or contestants(INFLIGHT if arguments.variant or arguments.checkout else ",".join(CONTESTANTS))
    entrants = [*entrants, *arguments.variant, *arguments.checkout]
    if arguments.routing:
        if arguments.plot is not None:
            parser.error("--plot does not know the figures of --routing; leave it out")
        entrants = [each for each in entrants if each.name != "generator"]  # forwards to one subscriber only
        arguments.set = ["routing.enabled=true", *arguments.set]
    if len({each.name for each in entrants}) < len(entrants):
        parser.error("two variants have the same name")
    extent = (
        RoutingExtent(fleet=arguments.devices, seconds=arguments.seconds, burst=arguments.burst, patience_s=arguments.patience)
        if arguments.routing
        else Extent(
            devices=arguments.devices,
            burst=arguments.burst,
            seconds=arguments.seconds,
            rates=arguments.rates,
            patience_s=arguments.patience,
        )
    )
    every = routing_stages(extent) if isinstance(extent, RoutingExtent) else stages(extent)
    try:
        plan = Plan(
            extent=extent,
            stages=chosen(every, arguments.parts),
            settings=arguments.set,
            minutes=arguments.minutes,
            attempts=arguments.attempts,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        versions = {each.name: each.kind.version() for each in entrants}
    except MissingPrerequisite as missing:
        sys.exit(str(missing))
    hour: Hour = arguments.slow_hour
    default = ROUTING_RESULTS if arguments.routing else RESULTS
    output = arguments.output or (default if hour is Hour.PLAIN else default.with_stem(f"{default.stem}_{hour}"))
    try:
        for entrant in entrants:
            entrant.prepare()
    except subprocess.CalledProcessError:
        sys.exit(f"`inflight jars` has failed, see above; run `make setup jars` in the checkout of {entrant.title}")
    allow_files()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with spend(hour), Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as bar:
        results = Results(
            began=datetime.now(UTC).isoformat(timespec="seconds"),
            cores=len(os.sched_getaffinity(0)),
            devices=arguments.devices,
            burst=arguments.burst,
            seconds=arguments.seconds,
            rates=arguments.rates,
            settings=arguments.set,
            is_routing=arguments.routing,
            hour=hour,
        )
        for turn in range(1, arguments.turns + 1):
            for entrant in entrants if turn % 2 else reversed(entrants):
                run = Run(
                    turn=turn,
                    name=entrant.name,
                    title=entrant.title,
                    version=versions[entrant.name],
                    settings=list(entrant.settings),
                    is_variant=entrant.is_variant,
                    busy_before=busy_now(),
                )
                results.runs.append(run)
                measure(entrant, run, plan, bar)
                write(results, output)
    results.finished = True
    write(results, output)
    show(results, Console(width=None if sys.stdout.isatty() else _WIDTH))
    if arguments.plot is not None:
        arguments.plot.write_text(picture(results), encoding="utf-8")
    if any(run.error for run in results.runs):
        sys.exit("not everything could be measured: see above")


if __name__ == "__main__":
    main()
