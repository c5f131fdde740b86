"""The measurements of `--routing`: devices publish to each other at QoS 1, through each contestant.

Publications have 200 bytes, and subscribers keep their sessions. Each part has its own devices and topics, so the sessions of an
earlier part get nothing. A first publication of each publisher, and a second at the same rate, do not count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec

from bench.contestants.child import Child
from bench.contestants.contestant import Contestant
from bench.contestants.measurements import Figure, Stage
from bench.contestants.processor_time import ProcessorTime
from bench.contestants.routed_devices import Routed, RoutedOrder

_FLEET_PUBLICATIONS = 10
_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A measured part. %n in a topic or filter: the number of the device.

    copies: the number of subscribers that get a publication. title: for the table, with `values`. rate: per second, of
    all publishers.
    """

    name: str
    title: str
    publishers: int
    subscribers: int
    topic: str
    topic_filter: str
    rate: int
    count: int
    copies: int = 1
    values: Sequence[str] = ("p50_ms", "p99_ms")

    @property
    def is_shared(self) -> bool:
        return self.topic_filter.startswith("$share/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingExtent:
    """The size of a run. fleet: subscribers of one topic. seconds: of each rate. patience_s: for each step."""

    fleet: int
    seconds: int
    patience_s: float = 60.0

    def parts(self) -> list[Part]:
        seconds, fleet = self.seconds, self.fleet
        return [
            Part(
                name="pair",
                title="device → device, 200/s, p50, p99, ms",
                publishers=1,
                subscribers=1,
                topic="pair/%n",
                topic_filter="pair/%n",
                rate=200,
                count=200 * seconds,
            ),
            Part(
                name="fleet",
                title=f"1 → {fleet:,} devices, 1/s, until the last one has it, p50, slowest, ms",
                publishers=1,
                subscribers=fleet,
                topic="fleet/all",
                topic_filter="fleet/#",
                rate=1,
                count=_FLEET_PUBLICATIONS,
                copies=fleet,
                values=("p50_ms", "max_ms"),
            ),
            Part(
                name="pairs",
                title="100 devices → 100 devices, 1,000/s in all, p50, p99, ms",
                publishers=100,
                subscribers=100,
                topic="pairs/%n",
                topic_filter="pairs/%n",
                rate=1_000,
                count=1_000 * seconds,
            ),
            Part(
                name="shared",
                title="100 devices → shared subscription of 10, 1,000/s, p50, p99, ms",
                publishers=100,
                subscribers=10,
                topic="shared/%n",
                topic_filter="$share/group/shared/#",
                rate=1_000,
                count=1_000 * seconds,
            ),
        ]


def routing_stages(extent: RoutingExtent) -> list[Stage]:
    return [Stage(parts=[part.name for part in extent.parts()])]


class RoutedFleet:
    """Runs bench/contestants/routed_devices.py. The devices stay connected within its `with`."""

    def __init__(self, contestant: Contestant, part: Part, patience_s: float) -> None:
        host, port = contestant.mqtt
        address = ("--host", host, "--port", str(port), "--timeout", str(patience_s), "--prefix", f"{part.name}-")
        numbers = ("--publishers", str(part.publishers), "--subscribers", str(part.subscribers))
        topics = ("--topic", part.topic, "--filter", part.topic_filter)
        self._child = Child("bench.contestants.routed_devices", *address, *numbers, *topics)
        self._part, self._patience_s = part, patience_s

    def publish(self, count: int) -> Routed:
        part = self._part
        within_s = self._patience_s + count / part.rate
        order = RoutedOrder(count=count, rate=part.rate, copies=part.copies, within_s=within_s)
        self._child.tell(msgspec.json.encode(order))
        return msgspec.json.decode(self._child.line(within_s + _MARGIN_S), type=Routed)

    def warm_up(self, count: int) -> None:
        """Raises RuntimeError if not all copies arrive in time; then the figures would say nothing."""
        if lost := self.publish(count).lost:
            raise RuntimeError(f"{self._part.name}: {lost:,} of the first {count * self._part.copies:,} copies did not arrive")

    def __enter__(self) -> Self:
        self._child.first_line(self._patience_s + _MARGIN_S)
        return self

    def __exit__(self, *error: Any) -> None:
        self._child.__exit__(*error)


class RoutingMeasurements:
    """Measures one running contestant."""

    def __init__(self, contestant: Contestant, extent: RoutingExtent) -> None:
        self._contestant, self._extent = contestant, extent

    def parts(self) -> dict[str, Callable[[], Figure]]:
        return {part.name: partial(self._measure, part) for part in self._extent.parts()}

    def _measure(self, part: Part) -> Figure:
        if part.is_shared and not self._contestant.has_shared_subscriptions:
            return Figure(note="has no shared subscriptions")
        patience_s = self._extent.patience_s
        with RoutedFleet(self._contestant, part, patience_s) as fleet:
            fleet.warm_up(part.publishers)
            self._contestant.await_rest(patience_s)
            fleet.warm_up(part.rate)
            spent = ProcessorTime(self._contestant.processes)
            routed = fleet.publish(part.count)
            wall_s, busy, stolen = spent.wall_s(), spent.busy(), spent.stolen()
            self._contestant.await_rest(patience_s)
            values = {name: float(value) for name, value in msgspec.structs.asdict(routed).items() if name != "cpu_s"}
            return Figure(
                values=values,
                messages=part.count * part.copies,
                cpu_s=spent.spent(),
                generator_cpu_s={"devices": routed.cpu_s},
                wall_s=wall_s,
                busy=busy,
                stolen=stolen,
            )
