"""Runs a backend of a broker as a process of its own: reads `Order`s from its standard input, publishes over a few connections.

    python -m bench.contestants.publisher --port 1883

It is a load generator and not a client library, like bench/devices.py. 1,000 publications may be unacknowledged at the same time;
the others wait here. All messages to one device use one connection, so they keep their order. At a given rate a payload has the
time of the call, and not of the write to the socket, so that the wait here counts.
"""

import argparse
import asyncio
import sys
import time
from collections import deque
from typing import cast

import msgspec

from bench.contestants.child import Order, Sent
from bench.contestants.contestant import TOPIC
from bench.devices import CONNACK, PAYLOAD_BYTES, PUBACK, Connection, connect_packet, publish_packet, run_fast

CONNECTIONS = 50
AT_ONCE = 1_000
"""Over all connections: 20 on each, because Mosquitto closes a connection with more at QoS 2."""
_CONNECT_S = 60.0
_PAUSE_S = 0.05
_PUBREC, _PUBCOMP = 0x50, 0x70
_REST = b"." * (PAYLOAD_BYTES - 8)


class Publishing(Connection):
    """A connection. changed: set when it is accepted, when all its publications are acknowledged, and when it is lost."""

    __slots__ = ("_changed", "_client_id", "_free", "_waiting", "_window", "accepted", "lost", "qos")

    def __init__(self, client_id: str, window: int, changed: asyncio.Event) -> None:
        super().__init__()
        self._client_id = client_id.encode()
        self._changed = changed
        self._window = window
        self._free = list(range(1, window + 1))
        self._waiting: deque[tuple[bytes, int | None]] = deque()
        self.accepted = self.lost = False
        self.qos = 1

    @property
    def idle(self) -> bool:
        """Returns True if nothing waits and everything is acknowledged."""
        return not self._waiting and len(self._free) == self._window

    def put(self, topic: bytes, stamp_ns: int | None) -> None:
        """Queues a publication. stamp_ns: the time in its payload; None = the time of the write. Call `write` afterwards."""
        self._waiting.append((topic, stamp_ns))

    def write(self) -> None:
        """Writes waiting publications, up to the limit of unacknowledged ones."""
        packets = bytearray()
        while self._waiting and self._free:
            self._next(packets)
        if packets and self._transport is not None:
            self._transport.write(packets)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).write(connect_packet(self._client_id, clean=True))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._changed.set()

    def _next(self, packets: bytearray) -> None:
        topic, stamp_ns = self._waiting.popleft()
        payload = (time.time_ns() if stamp_ns is None else stamp_ns).to_bytes(8) + _REST
        packets += publish_packet(topic, payload, qos=self.qos, packet_id=self._free.pop())

    def _packet(self, buffer: bytes, start: int, body: int, end: int, answers: bytearray) -> None:
        kind = buffer[start] & 0xF0
        if kind == _PUBREC:
            answers += b"\x62\x02"
            answers += buffer[body : body + 2]
        elif kind in (PUBACK, _PUBCOMP):
            self._free.append(buffer[body] << 8 | buffer[body + 1])
            if self._waiting:
                self._next(answers)
            elif len(self._free) == self._window:
                self._changed.set()
        elif kind == CONNACK:
            self.accepted = buffer[body + 1] == 0
            self._changed.set()


class Publisher:
    """Holds all connections of the publisher."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._changed = asyncio.Event()
        self._connections: list[Publishing] = []

    async def connect(self, within_s: float) -> None:
        """Opens the connections, and begins again while the broker starts. Raises TimeoutError."""
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                await self._open(deadline_s)
            except (ConnectionError, RuntimeError):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"the broker accepts no publisher within {within_s:,.0f} s") from None
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _open(self, deadline_s: float) -> None:
        """Replaces all connections. Raises ConnectionError, TimeoutError, RuntimeError."""
        for connection in self._connections:
            if not connection.lost:
                connection.close()
        self._connections = []
        loop, (host, port) = asyncio.get_running_loop(), self._address
        for number in range(CONNECTIONS):
            connection = Publishing(f"backend-{number}", AT_ONCE // CONNECTIONS, self._changed)
            await loop.create_connection(lambda: connection, host, port)  # noqa: B023 - called at once
            self._connections.append(connection)
        await self._until_each("accepted", deadline_s - time.monotonic())

    async def carry_out(self, order: Order) -> Sent:
        """Executes an order. Returns when all is acknowledged. Raises TimeoutError, RuntimeError."""
        if order.again:
            await self.connect(order.within_s)
        clients = [f"{TOPIC}/{order.prefix}{number}".encode() for number in range(order.devices)]
        for connection in self._connections:
            connection.qos = order.qos
        started, cpu_s = time.time(), time.process_time()
        deadline_s = time.monotonic() + order.within_s
        late_s = await self._at_rate(order, clients, deadline_s) if order.rate else self._at_once(order, clients)
        await self._until_each("idle", deadline_s - time.monotonic())
        return Sent(started=started, late_ms=late_s * 1_000, cpu_s=time.process_time() - cpu_s)

    def _at_once(self, order: Order, clients: list[bytes]) -> float:
        for number in range(order.count):
            device = number % len(clients)
            self._connections[device % CONNECTIONS].put(clients[device], None if order.counted else 0)
        for connection in self._connections:
            connection.write()
        return 0.0

    async def _at_rate(self, order: Order, clients: list[bytes], deadline_s: float) -> float:
        """Returns the delay of the latest publication."""
        began_s, late_s = time.monotonic(), 0.0
        for number in range(order.count):
            due_s = began_s + number / order.rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            late_s = max(late_s, time.monotonic() - due_s)
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"only {number:,} of {order.count:,} messages are sent")
            device = number % len(clients)
            connection = self._connections[device % CONNECTIONS]
            connection.put(clients[device], time.time_ns() if order.counted else 0)
            connection.write()
        return late_s

    async def _until_each(self, state: str, within_s: float) -> None:
        """Returns when this attribute is true for each connection. Raises TimeoutError, RuntimeError."""
        async with asyncio.timeout(within_s):
            while not all(getattr(connection, state) for connection in self._connections):
                if any(connection.lost for connection in self._connections):
                    raise RuntimeError("the broker has closed a connection of the publisher")
                self._changed.clear()
                await self._changed.wait()


async def run(host: str, port: int) -> None:
    publisher = Publisher(host, port)
    await publisher.connect(_CONNECT_S)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        sent = await publisher.carry_out(msgspec.json.decode(line, type=Order))
        print(msgspec.json.encode(sent).decode(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    arguments = parser.parse_args()
    run_fast(run(arguments.host, arguments.port))


if __name__ == "__main__":
    main()
