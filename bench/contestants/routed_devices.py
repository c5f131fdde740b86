"""Runs devices that publish to each other as a process of its own: reads `RoutedOrder`s from its standard input.

    python -m bench.contestants.routed_devices --port 1883 --prefix pair- --publishers 1 --subscribers 1 --topic pair/%n

It is a load generator and not a client, like bench/devices.py. It prints `ready` when all are connected and subscribed. The time
of a publication is from the moment at which it was due until its last subscriber has read it. The rate is fixed: what
a contestant does not take in time waits here, and counts.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from bench.contestants.publisher import Publishing
from bench.devices import (
    CONNACK,
    PUBLISH,
    SUBACK,
    Connection,
    acknowledge,
    connect_packet,
    percentile,
    run_fast,
    subscribe_packet,
)

AT_ONCE = 20
"""Unacknowledged publications of one device, if the order says nothing else."""
_CONNECTING_AT_ONCE = 100
_SUBACK_FAILURE = 0x80


class RoutedOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order: `count` publications, of all publishers in turn.

    rate: per second; 0 = as fast as the publishers are answered. copies: the number of subscribers that have to get each.
    within_s: the deadline.
    """

    count: int
    rate: int
    copies: int
    within_s: float


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. p50_ms, p99_ms, max_ms: until the last subscriber of a publication has it.

    thirds_p99_ms: of the first, second and last third of the publications; a lost one counts as come at the deadline.
    messages_per_s: copies until the last one. lost: copies that have not come by the deadline. duplicates: copies beyond the
    first at a subscriber, or in a shared group. late_ms: the delay of the latest publication in the generator. cpu_s: processor
    time of the generator.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    thirds_p99_ms: tuple[float, float, float]
    messages_per_s: float
    lost: int
    duplicates: int
    late_ms: float
    cpu_s: float


@dataclass
class Arrivals:
    """Counts what has come to all subscribers.

    copies, last_ms: by the stamp of a publication in ns, the number of its copies and the time until the newest. last_ns: when
    the last copy came.
    """

    subscribed: int = 0
    refused: int = 0
    lost: int = 0
    duplicates: int = 0
    arrived: int = 0
    last_ns: int = 0
    copies: dict[int, int] = field(default_factory=dict)
    last_ms: dict[int, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Forgets an order."""
        self.arrived = self.duplicates = 0
        self.copies.clear()
        self.last_ms.clear()


class Subscriber(Connection):
    """A device with a kept session that subscribes at QoS 1. seen: stamps of what it, or its shared group, has."""

    __slots__ = ("_arrivals", "_client_id", "_seen", "_topic_filter")

    def __init__(self, client_id: bytes, topic_filter: bytes, arrivals: Arrivals, seen: set[bytes]) -> None:
        super().__init__()
        self._client_id, self._topic_filter = client_id, topic_filter
        self._arrivals = arrivals
        self._seen = seen

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).write(connect_packet(self._client_id, clean=False))

    def connection_lost(self, error: Exception | None) -> None:
        self._arrivals.lost += 1
        self._arrivals.changed.set()

    def _packet(self, buffer: bytes, start: int, body: int, end: int, answers: bytearray) -> None:
        kind, arrivals = buffer[start] & 0xF0, self._arrivals
        if kind == PUBLISH:
            payload = acknowledge(buffer, start, body, answers)
            stamp = buffer[payload : payload + 8]
            if stamp in self._seen:
                arrivals.duplicates += 1
                return
            self._seen.add(stamp)
            sent_ns = int.from_bytes(stamp)
            if sent_ns in arrivals.copies:
                arrivals.arrived += 1
                arrivals.copies[sent_ns] += 1
                arrivals.last_ns = time.time_ns()
                arrivals.last_ms[sent_ns] = (arrivals.last_ns - sent_ns) / 1e6
                arrivals.changed.set()
        elif kind == CONNACK:
            if buffer[body + 1]:
                arrivals.refused += 1
            answers += subscribe_packet(self._topic_filter, 1)
        elif kind == SUBACK:
            if buffer[body + 2] & _SUBACK_FAILURE:
                arrivals.refused += 1
            else:
                arrivals.subscribed += 1
            arrivals.changed.set()


class Devices:
    """All devices of the process. topics: of the publishers, one each."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._arrivals = Arrivals(changed=self._changed)
        self._publishers: list[Publishing] = []
        self._topics: list[bytes] = []

    async def connect(self, arguments: argparse.Namespace) -> None:
        """Connects and subscribes. Raises TimeoutError, RuntimeError."""
        loop, gate = asyncio.get_running_loop(), asyncio.Semaphore(_CONNECTING_AT_ONCE)
        of_group: set[bytes] = set()
        prefix, host, port = arguments.prefix, arguments.host, arguments.port
        filters = arguments.filter or arguments.topic

        async def subscriber(number: int) -> None:
            seen = of_group if filters.startswith("$share/") else set()
            client_id, topic_filter = f"{prefix}subscriber-{number}".encode(), _named(filters, number)
            async with gate:
                await loop.create_connection(lambda: Subscriber(client_id, topic_filter, self._arrivals, seen), host, port)

        async with asyncio.timeout(arguments.timeout):
            await asyncio.gather(*map(subscriber, range(arguments.subscribers)))
            await self._until(lambda: self._arrivals.subscribed >= arguments.subscribers)
            for number in range(arguments.publishers):
                publisher = Publishing(f"{prefix}publisher-{number}", arguments.window, self._changed)
                self._publishers.append(publisher)
                self._topics.append(_named(arguments.topic, number))
                await loop.create_connection(lambda: publisher, host, port)  # noqa: B023 - called at once
            await self._until(lambda: all(publisher.accepted for publisher in self._publishers))

    async def carry_out(self, order: RoutedOrder) -> Routed:
        """Publishes, and returns when every copy has arrived, or at the deadline. Raises RuntimeError."""
        arrivals, began_ns, cpu_s = self._arrivals, time.time_ns(), time.process_time()
        arrivals.begin()
        expected = order.count * order.copies
        late_s = 0.0
        try:
            async with asyncio.timeout(order.within_s):
                late_s = await self._publish(order)
                await self._until(lambda: arrivals.arrived >= expected)
                await self._until(lambda: all(publisher.idle for publisher in self._publishers))
        except TimeoutError:
            print(f"{expected - arrivals.arrived:,} of {expected:,} copies have not come in time", file=sys.stderr)
        complete = [ms for stamp, ms in arrivals.last_ms.items() if arrivals.copies[stamp] >= order.copies]
        by_stamp = [arrivals.last_ms.get(stamp, 1_000 * order.within_s) for stamp in sorted(arrivals.copies)]
        third = -(-len(by_stamp) // 3)
        first, second, last = (percentile(by_stamp[start : start + third], 0.99) for start in (0, third, 2 * third))
        return Routed(
            p50_ms=round(percentile(complete, 0.5), 2),
            p99_ms=round(percentile(complete, 0.99), 2),
            max_ms=round(max(complete, default=0.0), 2),
            thirds_p99_ms=(round(first, 2), round(second, 2), round(last, 2)),
            messages_per_s=round(arrivals.arrived / max(1e-9, (arrivals.last_ns - began_ns) / 1e9), 1),
            lost=expected - arrivals.arrived,
            duplicates=arrivals.duplicates,
            late_ms=round(late_s * 1_000, 1),
            cpu_s=round(time.process_time() - cpu_s, 3),
        )

    async def _publish(self, order: RoutedOrder) -> float:
        """Returns the delay of the latest publication in seconds."""
        began_s, began_ns, late_s = time.monotonic(), time.time_ns(), 0.0
        if not order.rate:
            for number in range(order.count):
                self._put(number, began_ns + number)
            for publisher in self._publishers:
                publisher.write()
            return 0.0
        for number in range(order.count):
            due_s = number / order.rate
            await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            late_s = max(late_s, time.monotonic() - began_s - due_s)
            self._put(number, began_ns + round(due_s * 1e9)).write()
        return late_s

    def _put(self, number: int, stamp_ns: int) -> Publishing:
        """Gives a publication to the publisher whose turn it is. stamp_ns: another one for each publication."""
        self._arrivals.copies[stamp_ns] = 0
        device = number % len(self._publishers)
        self._publishers[device].put(self._topics[device], stamp_ns)
        return self._publishers[device]

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Raises RuntimeError if a connection is refused or lost."""
        while not condition():
            if self._arrivals.refused:
                raise RuntimeError(f"{self._arrivals.refused:,} connections or subscriptions were refused")
            if self._arrivals.lost or any(publisher.lost for publisher in self._publishers):
                raise RuntimeError("a connection of a device was lost")
            self._changed.clear()
            await self._changed.wait()


def _named(pattern: str, number: int) -> bytes:
    return pattern.replace("%n", str(number)).encode()


async def run(arguments: argparse.Namespace) -> None:
    devices = Devices()
    await devices.connect(arguments)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        routed = await devices.carry_out(msgspec.json.decode(line, type=RoutedOrder))
        print(msgspec.json.encode(routed).decode(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--prefix", default="routed-", help="of the client ids")
    parser.add_argument("--publishers", type=int, default=1)
    parser.add_argument("--subscribers", type=int, default=1)
    parser.add_argument("--window", type=int, default=AT_ONCE, help="unacknowledged publications of one publisher")
    parser.add_argument("--topic", default="routed/%n", help="of a publisher; %%n in it is its number")
    parser.add_argument("--filter", default="", help="of a subscriber; %%n in it is its number; default: --topic")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds, for connecting and subscribing")
    run_fast(run(parser.parse_args()))


if __name__ == "__main__":
    main()
