"""Measures tables of subscriptions: ours beside paho's MQTTMatcher, for memory, start, SUBSCRIBE and match.

    python -m bench.subscription_tables                         # 2 minutes; 100,000 clients with 10 filters each
    python -m bench.subscription_tables --clients 10000 --turns 1

`fleet`: each client has five filters of its own, three that it shares with a part of the fleet, and two that all have.
`distinct`: each client has ten filters of its own, of which five have wildcards.
A further table has one client with wildcards in each combination, for a topic of five levels.

paho's matcher only maps a filter to an object. So it gets what a matcher needs besides: the subscribers of each filter, and the
list of each client, by which a SUBSCRIBE removes what is no longer in it. The table runs in turn with it, each in a process of
its own. Memory is that of the whole process. Times are CPU times of the process;
those of lists include decoding a record of `inflight.subscriptions`.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from statistics import median
from typing import Any, Final, Protocol, TypeAlias

import psutil
from paho.mqtt.matcher import MQTTMatcher
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sinks.routing.subscription_table import SubscriptionTable
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList, decode_subscriptions, encode_subscriptions, order_of

_MIB: Final = 1 << 20
_MATCHES: Final = 20_000
_SUBSCRIBERS: Final = 1_000
"""Clients whose SUBSCRIBE is timed."""
_LONGEST_S: Final = 300
_CONNECTION_ID: Final = 1_800_000_000_000_000 << 10
_ROWS: Final = (
    ("memory of the process, MiB", "resident_mib"),
    ("… of which imports", "imports_mib"),
    ("building it, s", "build_s"),
    ("subscriptions", "subscriptions"),
    ("match, nobody, µs", "nobody_us"),
    ("match, one client, µs", "one_us"),
    ("match, 1 of 1,000 of the clients, µs", "some_us"),
    ("match, all clients, µs each", "all_us"),
    ("match, nobody, among wildcards in each combination, µs", "combinations_us"),
    ("a list with one filter more, which nearly all others have, µs", "subscribe_us"),
    ("the same list again, µs", "again_us"),
)


Options: TypeAlias = tuple[QoS, bool, int | None]


class Contestant(Protocol):
    def replace(self, client_id: str, new: SubscriptionList, /) -> bool:
        """Puts a list instead of the client's former one."""

    def count(self, topic: str) -> int:
        """Returns how many clients the topic has, after looking at the options of each."""


class OurTable(SubscriptionTable):
    """The table of the matcher."""

    def count(self, topic: str) -> int:
        return sum(1 for _, options in self.match(topic).clients if max(option.qos for option in options) >= 0)


class PahoTable:
    """MQTTMatcher with the subscribers of each filter, and the list of each client."""

    def __init__(self) -> None:
        self._matcher = MQTTMatcher()
        self._clients: dict[str, tuple[tuple[int, int, bool], Mapping[str, Options]]] = {}

    def replace(self, client_id: str, new: SubscriptionList, /) -> bool:
        place, former = self._clients.get(client_id, ((-1, -1, False), {}))
        if order_of(new) < place:
            return False
        subscriptions = {held.topic_filter: _options(held.qos, held.no_local, held.identifier) for held in new.subscriptions}
        for topic_filter in former:
            if topic_filter not in subscriptions:
                subscribers = self._matcher[topic_filter]
                del subscribers[client_id]
                if not subscribers:
                    del self._matcher[topic_filter]
        for topic_filter, options in subscriptions.items():
            try:
                self._matcher[topic_filter][client_id] = options
            except KeyError:
                self._matcher[topic_filter] = {client_id: options}
        self._clients[client_id] = order_of(new), subscriptions
        return True

    def count(self, topic: str) -> int:
        matching: dict[str, list[Options]] = {}
        for subscribers in self._matcher.iter_match(topic):
            for client_id, options in subscribers.items():
                matching.setdefault(client_id, []).append(options)
        return sum(1 for options in matching.values() if max(qos for qos, _, _ in options) >= 0)


@lru_cache
def _options(*options: Any) -> Options:
    return options  # type: ignore[return-value]


CONTESTANTS: Final[dict[str, Callable[[], Contestant]]] = {"paho": PahoTable, "ours": OurTable}


def fleet(number: int) -> tuple[str, ...]:
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


def distinct(number: int) -> tuple[str, ...]:
    name = f"device-{number:07}"
    return tuple(f"{kind}/{name}/state" for kind in "abcde") + tuple(f"{kind}/+/{name}/#" for kind in "abcde")


FLEETS: Final[dict[str, Callable[[int], tuple[str, ...]]]] = {"fleet": fleet, "distinct": distinct}
_TOPICS: Final = {
    "fleet": {"one": "cmd/device-0000007/reboot/now", "some": "group/7/x", "all": "broadcast"},
    "distinct": {"one": "a/x/device-0000007/state"},
}


def record(number: int, filters: Iterable[str], version: int = 0) -> bytes:
    subscriptions = tuple(Subscription(topic_filter=topic_filter, qos=QoS.AT_LEAST_ONCE) for topic_filter in filters)
    new = SubscriptionList(connection_id=_CONNECTION_ID + number, version=version, subscriptions=subscriptions)
    return encode_subscriptions(new)


def measure_here(name: str, kind: str, clients: int) -> dict[str, float]:
    """Measures in this process."""
    filters, topics = FLEETS[kind], _TOPICS[kind]
    process = psutil.Process()
    figures = {"imports_mib": process.memory_info().rss / _MIB, "subscriptions": clients * len(filters(0))}
    table = CONTESTANTS[name]()

    def read(records: Iterable[tuple[int, bytes]]) -> None:
        for number, value in records:
            table.replace(f"device-{number:07}", decode_subscriptions(value))

    writing_s = cpu_s(lambda: [None for number in range(clients) if not record(number, filters(number))])
    figures["build_s"] = cpu_s(lambda: read((number, record(number, filters(number))) for number in range(clients))) - writing_s
    gc.collect()
    figures["resident_mib"] = process.memory_info().rss / _MIB
    figures["nobody_us"] = match_us(table, "nobody/knows/it", 0, _MATCHES)
    figures["one_us"] = match_us(table, topics["one"], 1, _MATCHES)
    if len(topics) > 1:
        some = len(range(7, clients, 1_000))
        figures["some_us"] = match_us(table, topics["some"], some, max(1, _MATCHES // some))
        figures["all_us"] = match_us(table, topics["all"], clients, 5) / clients
    numbers = range(0, clients, max(1, clients // _SUBSCRIBERS))
    same = [(number, record(number, filters(number), 1)) for number in numbers]
    figures["again_us"] = cpu_s(lambda: read(same)) / len(same) * 1e6
    read((number, record(number, (*filters(number), "late"), 2)) for number in range(clients) if number % numbers.step)
    more = [(number, record(number, (*filters(number), "late"), 2)) for number in numbers]
    figures["subscribe_us"] = cpu_s(lambda: read(more)) / len(more) * 1e6
    others = CONTESTANTS[name]()
    others.replace("c", decode_subscriptions(record(0, combinations(5))))
    figures["combinations_us"] = match_us(others, "a/b/c/d/e", 0, _MATCHES)
    return figures


def combinations(levels: int) -> Iterator[str]:
    """Yields filters of all shapes that can match a topic of so many levels, except `+` or `#` alone on every level."""
    for length in range(1, levels + 1):
        for chosen in product(("+", "x"), repeat=length):
            if "x" in chosen:
                yield "/".join((*chosen, "#"))
                if length == levels:
                    yield "/".join(chosen)


def cpu_s(action: Callable[[], Any]) -> float:
    before_s = time.process_time()
    action()
    return time.process_time() - before_s


def match_us(table: Contestant, topic: str, expected: int, matches: int) -> float:
    """Returns the time of one match. expected: the number of clients that the topic has."""
    assert table.count(topic) == expected, topic
    return cpu_s(lambda: [None for _ in range(matches) if table.count(topic) != expected]) / matches * 1e6


def measure(name: str, kind: str, clients: int) -> dict[str, float]:
    """Measures in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--child", name, kind, "--clients", str(clients)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_LONGEST_S)
    return json.loads(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure_here(*arguments.child, arguments.clients)))
        return
    columns = [(kind, name) for kind in FLEETS for name in CONTESTANTS]
    figures: dict[tuple[str, str], list[dict[str, float]]] = {column: [] for column in columns}
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(columns) * arguments.turns)
        for _ in range(arguments.turns):
            for kind, name in columns:
                progress.update(task, description=f"{kind}, {name}")
                figures[kind, name].append(measure(name, kind, arguments.clients))
                progress.advance(task)
    table = Table("median of the turns", title=f"{arguments.clients:,} clients, {arguments.turns} turns")
    for kind, name in columns:
        table.add_column(f"{kind}, {name}", justify="right")
    for title, key in _ROWS:
        table.add_row(title, *(shown([turn[key] for turn in figures[column] if key in turn]) for column in columns))
    Console().print(table)


def shown(values: list[float]) -> str:
    return f"{median(values):,.3g}" if values and median(values) < 1_000 else f"{median(values):,.0f}" if values else "-"


if __name__ == "__main__":
    main()
