"""Messages whose dead letters would be copied thousands of times, or without end, and what others wait meanwhile.

Each message names the default exchange and further queues in CC. One kind dies at once in the queue of a client that never
connects. The other is for a device that rejects it each time, and CC names that device again: a rejection closes no cycle.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from itertools import cycle
from secrets import token_hex
from threading import Event
from typing import Final

from kafka import KafkaProducer

from bench.devices import percentile
from trials.attacks import packets
from trials.attacks.device import PUBLISH, Device

Done = Counter[str]

_MESSAGES: Final = "inflight.messages"
_LIFE_S: Final = 3_600
_REJECTED: Final = 0x87
_EVERY_S: Final = 0.1
_PAUSE_S: Final = 0.2
_BOMB_EVERY: Final = 50
"""So many messages for the other device are sent between two bombs."""
_P99: Final = "ms, p99 of others"
_LONGEST: Final = "ms, the longest of others"


class RoutingBombs:
    """The devices, on the loop, and the writer, on a thread. All count in `done`."""

    def __init__(self, address: tuple[str, int], done: Done) -> None:
        self._address = address
        self._done = done
        self._latencies_ms: list[float] = []
        name = token_hex(4)
        self._rejecting, self._other, self._nobody = f"rejects-{name}", f"other-{name}", f"nobody-{name}"

    async def reject(self) -> None:
        """Connects as the device that rejects every message."""
        async with await Device.open(self._address, packets.connect_v5(self._rejecting, session_expiry_s=_LIFE_S)) as device:
            self._done["connected"] += 1
            while True:
                first_byte, body = await device.packet()
                if first_byte & 0xF0 == PUBLISH:
                    packet_id = 2 + int.from_bytes(body[:2], "big")
                    self._done["rejected"] += 1
                    await device.send(b"\x40\x03" + body[packet_id : packet_id + 2] + bytes([_REJECTED]))

    async def measure(self) -> None:
        """Connects as another device, and measures how long its messages take."""
        async with await Device.open(self._address, packets.connect_clean(self._other)) as device:
            self._done["connected"] += 1
            while True:
                sent_ns = int(await device.publication())
                self._latencies_ms.append((time.time_ns() - sent_ns) / 1e6)
                self._done[_P99] = round(percentile(self._latencies_ms, 0.99))
                self._done[_LONGEST] = round(max(self._latencies_ms))

    def write(self, bootstrap_servers: str, size: int, stop: Event) -> None:
        """Writes bombs, and messages for the other device, until `stop` is set. size: ids in CC."""
        with closing(KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", max_request_size=4 << 20)) as producer:
            bombs = self._bombs(size)
            number = 0
            while not stop.wait(_EVERY_S):
                if number % _BOMB_EVERY == 0:
                    what, key, headers = next(bombs)
                    producer.send(_MESSAGES, b"bomb", key=key.encode(), headers=[*headers, ("x-dead-letter-exchange", b"")])
                    self._done[what] += 1
                number += 1
                # A priority keeps it off the fast path, which waits for no micro-batch.
                slow = [("mqtt-topic", b"attack"), ("priority", b"1")]
                producer.send(_MESSAGES, b"%d" % time.time_ns(), key=self._other.encode(), headers=slow)

    def _bombs(self, size: int) -> Iterator[tuple[str, str, list[tuple[str, bytes]]]]:
        """Yields what it is, the client, and the headers."""
        for kind in cycle(range(3)):
            name = token_hex(2)
            if kind < 2:
                count = size if kind == 0 else 64
                ids = [f"{name}{number:x}" for number in range(count)]
                copies = ("CC", json.dumps(ids, separators=(",", ":")).encode())
                yield f"messages with {count:,} ids in CC", self._nobody, [("mqtt-topic", b"t"), ("expiration", b"0"), copies]
            else:
                copies = ("CC", json.dumps([f"{name}-nobody"]).encode())
                yield "messages rejected in a circle", self._rejecting, [("mqtt-topic", self._rejecting.encode()), copies]


async def routing_bombs(address: tuple[str, int], size: int, done: Done, *, kafka: str = "") -> None:
    """Sends such messages until it is cancelled. size: ids in the longest CC. kafka: empty = the devices only connect."""
    attack, stop = RoutingBombs(address, done), Event()
    writing = asyncio.to_thread(attack.write, kafka, size, stop) if kafka else asyncio.sleep(0)
    try:
        await asyncio.gather(_again_and_again(attack.reject), _again_and_again(attack.measure), writing)
    finally:
        stop.set()


async def _again_and_again(connect: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(OSError, EOFError):
            await connect()
        await asyncio.sleep(_PAUSE_S)
