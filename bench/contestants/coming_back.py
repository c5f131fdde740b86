"""Measures how long devices wait after SIGKILL: the part of a contestant that holds their sessions is killed and started again.

The devices lose their connections at the same moment and connect again, and again after each failure. A backend sends a message
to each of them at once, or as soon as the contestant accepts it. The time is from the signal until the message is at its device.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from statistics import median
from typing import cast

from bench.contestants.child import Child, Order
from bench.contestants.contestant import Contestant
from bench.devices import CONNACK, PUBLISH, SUBACK, Connection, acknowledge, connect_packet, subscribe_packet

DEVICES = 20
_PREFIX = "returning-"
_PAUSE_S = 0.05
_SETTLE_S = 3.0
"""Sessions exist for this long before the signal, because Mosquitto writes them once a second at most."""
_LONGEST_S = 120.0
"""A message that needs longer counts as lost."""


class Returner:
    """A device with a kept session, over all its connections.

    is_ready: it has its CONNACK, and its SUBACK if it subscribes. has_message: any. arrived_ns: of the message with a time; 0 =
    not yet.
    """

    def __init__(self, client_id: str, subscribe: str, changed: asyncio.Event) -> None:
        self.client_id = client_id.encode()
        self.topic_filter = subscribe.replace("%c", client_id).encode()
        self.is_ready = self.has_message = False
        self.arrived_ns = 0
        self.changed = changed
        self.connection: ReturnerConnection | None = None

    def lose_connection(self) -> None:
        if self.connection is not None:
            self.connection.abort()

    async def stay_connected(self, host: str, port: int) -> None:
        """Connects again and again until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                self.connection = connection = ReturnerConnection(self)
                await loop.create_connection(lambda: connection, host, port)  # noqa: B023 - called at once
                await connection.is_over.wait()
            self.is_ready = False
            await asyncio.sleep(_PAUSE_S)


class ReturnerConnection(Connection):
    """A connection of a device. is_over: set when it is lost."""

    __slots__ = ("_device", "is_over")

    def __init__(self, device: Returner) -> None:
        super().__init__()
        self._device = device
        self.is_over = asyncio.Event()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).write(connect_packet(self._device.client_id, clean=False))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over.set()

    def _packet(self, buffer: bytes, start: int, body: int, end: int, answers: bytearray) -> None:
        kind, device = buffer[start] & 0xF0, self._device
        if kind == PUBLISH:
            payload = acknowledge(buffer, start, body, answers)
            device.has_message = True
            if int.from_bytes(buffer[payload : payload + 8]) and not device.arrived_ns:
                device.arrived_ns = time.time_ns()
        elif kind == CONNACK and buffer[body + 1]:
            self.abort()
        elif kind == CONNACK and device.topic_filter:
            answers += subscribe_packet(device.topic_filter, 1)
        elif kind in (CONNACK, SUBACK):
            device.is_ready = True
        device.changed.set()


async def come_back(contestant: Contestant, backend: Child, devices: int, patience_s: float) -> dict[str, float]:
    """Returns p50_s and max_s, from the signal until a message is at its device, and the number of lost ones.

    p50_s and max_s are missing if all are lost. Raises TimeoutError before the signal.
    """
    changed = asyncio.Event()
    host, port = contestant.mqtt
    returners = [Returner(f"{_PREFIX}{number}", contestant.subscribe, changed) for number in range(devices)]

    async def until_each(condition: Callable[[Returner], bool], within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while not all(map(condition, returners)):
                changed.clear()
                await changed.wait()

    def order(*, counted: bool, within_s: float) -> Order:
        return Order(prefix=_PREFIX, devices=devices, count=devices, qos=1, within_s=within_s, counted=counted, again=counted)

    connections = [asyncio.create_task(device.stay_connected(host, port)) for device in returners]
    try:
        await until_each(lambda device: device.is_ready, patience_s)
        backend.send(order(counted=False, within_s=patience_s))
        await until_each(lambda device: device.has_message, patience_s)
        contestant.await_rest(patience_s)
        await asyncio.sleep(_SETTLE_S)
        killed_ns = time.time_ns()
        contestant.kill()
        for device in returners:
            device.lose_connection()
        longest_s = min(_LONGEST_S, patience_s)
        meanwhile = order(counted=True, within_s=longest_s)
        backend.begin(meanwhile)
        with contextlib.suppress(TimeoutError):
            await until_each(lambda device: device.arrived_ns > 0, longest_s)
        backend.finish(meanwhile)
    finally:
        for task, device in zip(connections, returners, strict=True):
            task.cancel()
            device.lose_connection()
        await asyncio.gather(*connections, return_exceptions=True)
    waited_s = [(device.arrived_ns - killed_ns) / 1e9 for device in returners if device.arrived_ns]
    found = {"p50_s": round(median(waited_s), 2), "max_s": round(max(waited_s), 2)} if waited_s else {}
    return found | {"lost": devices - len(waited_s)}
