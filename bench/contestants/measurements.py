"""The measurements of each contestant: the same devices, payloads and orders for all.

They are in stages. Each stage has a start of its own, so that a first burst is really cold, and a kill disturbs no other figure.
A figure ends when its last message is at its destination. The processor time beside it is counted until the contestant is at
rest, so that its later work for these messages (writes, commits, deletions) counts too. The devices stay connected until then.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec

from bench.contestants.child import Child, Order, Sent
from bench.contestants.coming_back import DEVICES, come_back
from bench.contestants.contestant import PREFIX, Contestant
from bench.contestants.processor_time import ProcessorTime

_MOST_STOLEN = 0.005
"""A p99 is decided by 1 % of the messages."""
_IDLE_TIMES = 2
"""How much longer the part without work is than one of the rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The size of a run.

    burst: messages in a burst at QoS 1; half as many at QoS 2. seconds: for each rate. patience_s: for each step.
    """

    devices: int
    burst: int
    seconds: int
    rates: Sequence[int]
    patience_s: float

    @property
    def few(self) -> int:
        return max(1, self.devices // 5)

    @property
    def each(self) -> int:
        """Publications of one device."""
        return max(1, self.burst // self.devices)


class Figure(msgspec.Struct, kw_only=True):
    """A measured part.

    values: messages_per_s; p50_ms, p99_ms of the part; duplicates; late_ms, the delay of the message that was sent latest.
    messages: the number of messages or connections for the processor time. cpu_s: of the contestant, by process, until it is at
    rest. generator_cpu_s: of the load generator. wall_s: the time until the last message or connection. busy: the share of the
    usable cores in use meanwhile. stolen: the share of their time that the host of a virtual machine gave to others.
    attempts: how often it was measured; this is the measurement with the least time stolen. note: the reason if there are no
    values.
    """

    values: dict[str, float] = {}
    messages: int = 0
    cpu_s: dict[str, float] = {}
    generator_cpu_s: dict[str, float] = {}
    wall_s: float = 0.0
    busy: float = 0.0
    stolen: float = 0.0
    attempts: int = 1
    note: str = ""

    @property
    def cpu_ms_per_message(self) -> float:
        return 1_000 * sum(self.cpu_s.values()) / self.messages if self.messages else 0.0

    @property
    def is_disturbed(self) -> bool:
        return self.stolen > _MOST_STOLEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Parts that are measured one after the other after the same start. with_standby: of the contestant."""

    parts: Sequence[str]
    with_standby: bool = False


def is_repeatable(part: str) -> bool:
    """Returns False for what a start has only once: first bursts, new sessions, and a kill."""
    return not part.startswith("kill_") and not part.endswith(("_cold", "_new"))


START = "start"
"""The part that every first start measures."""


def stages(extent: Extent) -> list[Stage]:
    """Returns the short stages first: what a run has no time for is at the end."""
    rates = [f"rate_{rate}" for rate in extent.rates]
    connections = ("connect_new", "burst_cold", "burst_warm", "connect_kept")
    return [
        Stage(parts=("burst_few_cold", "burst_few_warm", "kill_alone")),
        Stage(parts=("kill_standby",), with_standby=True),
        Stage(parts=(*connections, *rates, "idle", "burst_qos2", "uplink")),
    ]


class Fleet:
    """Runs bench/devices.py. The devices stay connected within its `with`, even after their work.

    Raises RuntimeError if one of them is not connected.
    """

    def __init__(self, contestant: Contestant, devices: int, patience_s: float, *options: str) -> None:
        host, port = contestant.mqtt
        address = ("--host", host, "--port", str(port), "--timeout", str(patience_s))
        self._child = Child("bench.devices", *address, "--devices", str(devices), "--prefix", PREFIX, "--hold", *options)
        self._patience_s = patience_s
        self.granted_qos: int | None = None

    def publish(self) -> None:
        self._child.tell()

    def result(self, expected: int, key: str) -> dict[str, Any]:
        """Returns its result at its end. Raises RuntimeError if its `key` differs from the expected number."""
        result: dict[str, Any] = json.loads(self._child.line(2 * self._patience_s))
        if result[key] < expected:
            raise RuntimeError(f"only {result[key]:,} of {expected:,} {key} within {self._patience_s:,.0f} s")
        if result["connections_lost"]:
            raise RuntimeError(f"{result['connections_lost']:,} connections of devices were lost")
        return result

    def __enter__(self) -> Self:
        words = self._child.first_line(2 * self._patience_s).split()
        self.granted_qos = int(words[3]) if len(words) > 3 else None
        return self

    def __exit__(self, *error: Any) -> None:
        self._child.__exit__(*error)


class Measurements:
    """Measures one running contestant. backend: its own backend, ready."""

    def __init__(self, contestant: Contestant, backend: Child, extent: Extent) -> None:
        self._contestant, self._backend, self._extent = contestant, backend, extent

    def parts(self) -> dict[str, Callable[[], Figure]]:
        """Returns what measures each part of all stages."""
        extent, few, many = self._extent, self._extent.few, self._extent.devices
        found: dict[str, Callable[[], Figure]] = {
            "connect_new": self.connections,
            "connect_kept": self.connections,
            "burst_qos2": partial(self.burst, many, max(1, extent.burst // 2), qos=2),
            "idle": self.idle,
            "uplink": self.uplink,
            "kill_alone": self.kill,
            "kill_standby": self.kill,
        }
        for name in ("cold", "warm"):
            found[f"burst_{name}"] = partial(self.burst, many, extent.burst, qos=1)
            found[f"burst_few_{name}"] = partial(self.burst, few, extent.burst, qos=1)
        return found | {f"rate_{rate}": partial(self.rate, rate) for rate in extent.rates}

    def connections(self) -> Figure:
        """Measures CONNECT → CONNACK of all devices at once. Their sessions are new the first time, and exist later."""
        self._rest()
        spent = ProcessorTime(self._contestant.processes)
        with self._fleet(self._extent.devices, "--expect", "0") as fleet:
            result = fleet.result(self._extent.devices, "connected")
            figure = self._figure(spent, self._extent.devices)
        figure.values = {"p50_ms": result["connect_p50_ms"], "p99_ms": result["connect_p99_ms"]}
        figure.generator_cpu_s = {"devices": result["connect_cpu_s"]}
        return figure

    def burst(self, devices: int, count: int, *, qos: int) -> Figure:
        """Measures from the first call of the publisher until each device has written its answer to its last message.

        The answer is PUBACK at QoS 1, and PUBCOMP at QoS 2.
        """
        key = "messages" if qos == 1 else "completed"
        with self._subscribed(devices, count, qos) as fleet:
            if fleet.granted_qos is not None and fleet.granted_qos < qos:
                return Figure(note=f"grants QoS {fleet.granted_qos} to who subscribes with QoS {qos}")
            self._rest()
            spent = ProcessorTime(self._contestant.processes)
            sent = self._send(devices, count, qos=qos)
            result = fleet.result(count, key)
            figure = self._figure(spent, count)
        last = result["last_time" if qos == 1 else "last_completed_time"]
        figure.values = {"messages_per_s": count / (last - sent.started), "duplicates": result["duplicates"]}
        figure.generator_cpu_s = {"publisher": sent.cpu_s, "devices": result["cpu_s"]}
        return figure

    def idle(self) -> Figure:
        """Measures while all devices are connected, without messages."""
        devices = self._extent.devices
        with self._subscribed(devices, devices, 1) as fleet:
            self._rest()
            spent = ProcessorTime(self._contestant.processes)
            time.sleep(_IDLE_TIMES * self._extent.seconds)
            seconds, cpu_s = spent.wall_s(), spent.spent()
            cores = sum(cpu_s.values()) / seconds
            figure = Figure(cpu_s=cpu_s, wall_s=seconds, busy=spent.busy(), stolen=spent.stolen())
            figure.values = {"seconds": seconds, "cores": cores}
            self._send(devices, devices, counted=False)  # ends the devices
            fleet.result(devices, "messages")
        return figure

    def rate(self, rate: int) -> Figure:
        """Measures at this rate a second. A first message for each device and the first second do not count."""
        devices, count = self._extent.devices, rate * self._extent.seconds
        expected = devices + rate + count
        with self._subscribed(devices, expected, 1) as fleet:
            self._send(devices, devices, counted=False)
            self._rest()
            self._send(devices, rate, rate=rate, counted=False)
            spent = ProcessorTime(self._contestant.processes)
            sent = self._send(devices, count, rate=rate)
            result = fleet.result(expected, "messages")
            figure = self._figure(spent, count)
        figure.values = {
            "p50_ms": result["latency_p50_ms"],
            "p99_ms": result["latency_p99_ms"],
            "duplicates": result["duplicates"],
            "late_ms": sent.late_ms,
        }
        figure.generator_cpu_s = {"publisher": sent.cpu_s, "devices": result["cpu_s"]}
        return figure

    def uplink(self) -> Figure:
        """Measures QoS 1 publications of all devices at once, until the last PUBACK. All of them must reach the backend."""
        extent = self._extent
        count = extent.each * extent.devices
        with self._contestant.uplink(count) as uplink, self._fleet(extent.devices, "--publish", str(extent.each)) as fleet:
            self._rest()
            spent = ProcessorTime(self._contestant.processes)
            fleet.publish()
            result = fleet.result(count, "acknowledged")
            backend_cpu_s = uplink.await_all(extent.patience_s)
            figure = self._figure(spent, count)
        figure.values = {"messages_per_s": count / (result["last_acknowledged_time"] - result["started"])}
        figure.generator_cpu_s = {"devices": result["cpu_s"]} | backend_cpu_s
        return figure

    def kill(self) -> Figure:
        """Measures from SIGKILL until a message sent meanwhile is at its device, which connects again."""
        if not self._contestant.keeps_sessions:
            return Figure(note="keeps no sessions")
        self._rest()
        spent = ProcessorTime(self._contestant.processes)
        values = asyncio.run(
            come_back(self._contestant, self._backend, min(DEVICES, self._extent.devices), self._extent.patience_s)
        )
        note = "" if "p50_s" in values else "no message arrived"
        return Figure(values=values, wall_s=spent.wall_s(), busy=spent.busy(), stolen=spent.stolen(), note=note)

    def _subscribed(self, devices: int, expected: int, qos: int) -> Fleet:
        """Starts devices that subscribe, if the contestant needs it."""
        subscription = ("--subscribe", self._contestant.subscribe) if self._contestant.subscribe else ()
        return self._fleet(devices, *subscription, "--qos", str(qos), "--expect", str(expected))

    def _fleet(self, devices: int, *options: str) -> Fleet:
        return Fleet(self._contestant, devices, self._extent.patience_s + 2 * self._extent.seconds, *options)

    def _send(self, devices: int, count: int, *, qos: int = 1, rate: int = 0, counted: bool = True) -> Sent:
        within_s = self._extent.patience_s + (count / rate if rate else 0)
        order = Order(prefix=PREFIX, devices=devices, count=count, qos=qos, rate=rate, counted=counted, within_s=within_s)
        return self._backend.send(order)

    def _rest(self) -> None:
        self._contestant.await_rest(self._extent.patience_s)

    def _figure(self, spent: ProcessorTime, messages: int) -> Figure:
        wall_s, busy, stolen = spent.wall_s(), spent.busy(), spent.stolen()
        self._rest()
        return Figure(messages=messages, cpu_s=spent.spent(), wall_s=wall_s, busy=busy, stolen=stolen)
