"""The measurements of `--routing`: devices publish to each other at QoS 1, through each contestant.

Publications have 200 bytes, and subscribers keep their sessions. Each part has its own devices and topics, so the sessions of an
earlier part get nothing. A first publication of each publisher, and a second at the same rate, do not count.

The parts `one_…` have one subscriber, to which ten devices publish, each with at most 100 unacknowledged publications:

- one_steady: 1,000 a second;
- one_burst: --burst publications, as fast as the publishers are answered;
- one_highest: the rate is raised by a quarter at a time, from 400 a second, while everything arrives and is steady (`is_steady`).
  Each rate lasts --seconds. A rate that is not steady is tried once more, because a disturbance of the machine looks the same.
  The figure is the highest rate that was steady; the file has the p99 of each rate as p99_ms_RATE.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import msgspec

from bench.contestants.child import Child
from bench.contestants.contestant import Contestant
from bench.contestants.measurements import Figure, Stage
from bench.contestants.processor_time import ProcessorTime
from bench.contestants.routed_devices import AT_ONCE, Routed, RoutedOrder

_FLEET_PUBLICATIONS = 10
_MARGIN_S = 10.0
_WINDOW = 100
_PUBLISHERS_TO_ONE = 10
_LOWEST_RATE, _HIGHEST_RATE, _STEP = 400, 40_000, 1.25
_TRIES = 2
_GROWTH, _GROWTH_MS = 1.5, 50.0
_LATEST_MS = 1_000.0


_NOT_SHOWN = ("cpu_s", "thirds_p99_ms")
HIGHEST = "one_highest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A measured part. %n in a topic or filter: the number of the device.

    copies: the number of subscribers that get a publication. title: for the table, with `values`. rate: per second, of
    all publishers; 0 = as fast as they are answered. window: unacknowledged publications of one publisher.
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
    window: int = AT_ONCE

    @property
    def is_shared(self) -> bool:
        return self.topic_filter.startswith("$share/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingExtent:
    """The size of a run.

    fleet: subscribers of one topic. seconds: of each rate. burst: publications to one subscriber. patience_s: for each step.
    """

    fleet: int
    seconds: int
    burst: int
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
            *self._to_one(),
        ]

    def _to_one(self) -> list[Part]:
        every = Part(
            name="one_steady",
            title="10 devices → 1, 1,000/s, p50, p99, ms, lost",
            publishers=_PUBLISHERS_TO_ONE,
            subscribers=1,
            topic="one_steady/%n",
            topic_filter="one_steady/#",
            rate=1_000,
            count=1_000 * self.seconds,
            values=("p50_ms", "p99_ms", "lost"),
            window=_WINDOW,
        )
        burst = replace(
            every,
            name="one_burst",
            title=f"10 devices → 1, {self.burst:,} at once, messages/s, lost",
            topic="one_burst/%n",
            topic_filter="one_burst/#",
            rate=0,
            count=self.burst,
            values=("messages_per_s", "lost"),
        )
        highest = replace(
            every,
            name=HIGHEST,
            title="10 devices → 1, highest steady rate, messages/s, its p50, p99, ms",
            topic="one_highest/%n",
            topic_filter="one_highest/#",
            values=("messages_per_s", "p50_ms", "p99_ms"),
        )
        return [every, burst, highest]


def routing_stages(extent: RoutingExtent) -> list[Stage]:
    return [Stage(parts=[part.name for part in extent.parts()])]


class RoutedFleet:
    """Runs bench/contestants/routed_devices.py. The devices stay connected within its `with`."""

    def __init__(self, contestant: Contestant, part: Part, patience_s: float) -> None:
        host, port = contestant.mqtt
        address = ("--host", host, "--port", str(port), "--timeout", str(patience_s), "--prefix", f"{part.name}-")
        numbers = ("--publishers", str(part.publishers), "--subscribers", str(part.subscribers), "--window", str(part.window))
        topics = ("--topic", part.topic, "--filter", part.topic_filter)
        self._child = Child("bench.contestants.routed_devices", *address, *numbers, *topics)
        self._part, self._patience_s = part, patience_s

    def publish(self, count: int, rate: int | None = None) -> Routed:
        """rate: None = that of the part."""
        part = self._part
        rate = part.rate if rate is None else rate
        within_s = self._patience_s + (count / rate if rate else 0)
        order = RoutedOrder(count=count, rate=rate, copies=part.copies, within_s=within_s)
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
            if part.name == HIGHEST:
                return self._highest(fleet)
            fleet.warm_up(part.rate or part.count)
            figure, _ = self._published(fleet, part.count, part.rate, part.copies)
            return figure

    def _highest(self, fleet: RoutedFleet) -> Figure:
        """Raises the rate to one subscriber while it is steady, and returns the figure of the highest one."""
        rate, held, p99_ms = float(_LOWEST_RATE), Figure(note=f"{_LOWEST_RATE} messages/s are not steady"), {}
        while rate <= _HIGHEST_RATE:
            for _ in range(_TRIES):
                figure, routed = self._published(fleet, round(rate * self._extent.seconds), round(rate))
                p99_ms[f"p99_ms_{round(rate)}"] = routed.p99_ms
                if is_steady(routed) or routed.lost:
                    break
            held.values["lost"] = float(routed.lost)
            if not is_steady(routed):
                break
            figure.values["messages_per_s"] = round(rate)
            held, rate = figure, rate * _STEP
        held.values |= p99_ms
        return held

    def _published(self, fleet: RoutedFleet, count: int, rate: int, copies: int = 1) -> tuple[Figure, Routed]:
        """Publishes, and measures until the contestant is at rest again."""
        spent = ProcessorTime(self._contestant.processes)
        routed = fleet.publish(count, rate)
        wall_s, busy, stolen = spent.wall_s(), spent.busy(), spent.stolen()
        self._contestant.await_rest(self._extent.patience_s)
        shown = {name: value for name, value in msgspec.structs.asdict(routed).items() if name not in _NOT_SHOWN}
        figure = Figure(
            values={name: float(value) for name, value in shown.items()},
            messages=count * copies,
            cpu_s=spent.spent(),
            generator_cpu_s={"devices": routed.cpu_s},
            wall_s=wall_s,
            busy=busy,
            stolen=stolen,
        )
        return figure, routed


def is_steady(routed: Routed) -> bool:
    """Returns True if everything arrived, the latency did not grow, and the last publications came within a second.

    It grew if the p99 of each third of the publications is higher than before, and that of the last one clearly so.
    """
    first, second, last = routed.thirds_p99_ms
    grew = first < second < last and last > _GROWTH * first + _GROWTH_MS
    return not routed.lost and not grew and last <= _LATEST_MS
