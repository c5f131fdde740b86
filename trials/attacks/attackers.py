"""Has one function for each kind of hostile or broken device, and the process that runs one of them.

    python -m trials.attacks.attackers half_open --host 127.0.0.1 --port 1883 --seconds 20 <<< go

Each attack continues until it is cancelled, and reconnects when its connections are closed. The process prints when it is ready
and begins when its standard input has a line. At its end it prints what it has done, and the processor time of that: it shares
the machine with its victim.
"""

import argparse
import asyncio
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from threading import Event, Thread
from typing import Final

import msgspec
import uvloop
from kafka import KafkaProducer

from sinks.kafka.kafka_python import abandon
from tests.unit.sinks.mqtt.mqtt_bytes import publish
from trials.attacks import packets
from trials.attacks.connect_flood import flood_with_connects
from trials.attacks.device import Device, Refused
from trials.attacks.half_open import hold_half_open
from trials.attacks.record_bombs import RecordBombs
from trials.attacks.routing_bombs import routing_bombs

Address = tuple[str, int]
Done = Counter[str]
"""Counts of what was done, by their names in the table."""
READY: Final = "ready"

_DEAF_PREFIX: Final = "deaf-"
_CLOSED: Final = (OSError, EOFError)
_PAUSE_S: Final = 0.1
_DRIP_S: Final = 1.0
_WORKERS: Final = 200
_FILTERS: Final = 256
"""The most filters that a SUBSCRIBE may have by default."""
_UNFINISHED_BYTES: Final = 400_000
_BOMB: Final = 65_000
_SMALL_HEADERS: Final = packets.user_property(b"h", b"v" * 450) * 16
"""Headers of 8,000 bytes, which are allowed by default."""


async def half_open(address: Address, size: int, done: Done) -> None:
    """Opens sockets that send nothing."""
    await _on_a_thread(hold_half_open, address, size, done)


async def slow_loris(address: Address, size: int, done: Done) -> None:
    """Sends a CONNECT byte by byte on every other connection, and a large PUBLISH that never ends on the others."""
    numbers = count()

    async def one() -> None:
        if next(numbers) % 2:
            reader, writer = await asyncio.open_connection(*address)
            device = Device(reader, writer)
            slow = packets.connect_clean("c" * 500)
        else:
            device = await Device.open(address, packets.connect_clean(token_hex(8)))
            await device.send(packets.unfinished_publish(_UNFINISHED_BYTES, 10_000))
            slow = bytes(10_000)
        done["opened"] += 1
        async with device:
            for start in range(len(slow)):
                await device.send(slow[start : start + 1])
                done["bytes, slowly"] += 1
                await asyncio.sleep(_DRIP_S)

    await _at_once(size, one, done)


async def connect_flood(address: Address, size: int, done: Done) -> None:
    """Floods with CONNECTs of new clients that do not wait long for an answer. size: CONNECTs a second."""
    await _on_a_thread(flood_with_connects, address, size, done)


async def subscribes(address: Address, size: int, done: Done) -> None:
    """Subscribes to new topic filters without end, as many as fit in a packet, as fast as they are accepted."""

    async def one() -> None:
        async with await Device.open(address, packets.connect_clean(token_hex(8))) as device:
            reading = asyncio.create_task(device.until_closed())
            try:
                while not reading.done():
                    filters = [f"{token_hex(40)}/{number}" for number in range(_FILTERS)]
                    await device.send(packets.subscribe(1, filters))
                    done["SUBSCRIBEs"] += 1
            finally:
                reading.cancel()

    await _at_once(size, one, done)


async def deaf(address: Address, size: int, done: Done) -> None:
    """Holds connections that have messages waiting and never read."""
    numbers = count()

    async def one(number: int) -> None:
        async with await Device.open(address, packets.connect_kept(f"{_DEAF_PREFIX}{number}"), reads_ahead=False) as device:
            done["connected"] += 1
            transport = device.writer.transport
            while not transport.is_closing():
                await device.send(b"\xc0\x00")  # a socket that only reads could not find out that it was closed
                await asyncio.sleep(_DRIP_S)

    await _at_once(size, lambda: one(next(numbers) % size), done)


async def headers(address: Address, size: int, done: Done) -> None:
    """Messages with 64 KiB of headers, which end the connection by default; every other one 8 KB, as fast as they are taken."""
    numbers = count()
    large = packets.user_property(value=b"v" * packets.MAX_TEXT_BYTES)

    async def one() -> None:
        properties = large if next(numbers) % 2 else _SMALL_HEADERS
        async with await Device.open(address, packets.connect_v5(token_hex(8))) as device:
            for packet_id in range(1, 65_536):
                await device.send(packets.publish_v5(properties, packet_id=packet_id))
                done["messages"] += 1
                await device.packet()

    await _at_once(size, one, done)


async def qos0_flood(address: Address, size: int, done: Done) -> None:
    """Sends as fast as the gateway reads."""
    many = publish("attack", bytes(100)) * 100

    async def one() -> None:
        async with await Device.open(address, packets.connect_clean(token_hex(8))) as device:
            while True:
                await device.send(many)
                done["messages"] += 100

    await _at_once(size, one, done)


async def bombs(address: Address, size: int, done: Done) -> None:
    """Packets of 65,000 user properties."""
    bomb = packets.bomb(_BOMB)

    async def one() -> None:
        async with await Device.open(address, packets.connect_v5(token_hex(8))) as device:
            await device.send(bomb)
            done["packets"] += 1
            await device.until_closed()

    await _at_once(size, one, done, pause_s=0)


async def sessions(address: Address, size: int, done: Done) -> None:
    """Makes sessions that never expire, as fast as they are accepted. size: client ids, each with its own session."""
    ids = iter(range(size))

    async def one() -> None:
        if next(ids, None) is None:
            await asyncio.Event().wait()  # all are made
        connect = packets.connect_v5(token_hex(8), session_expiry_s=packets.FOREVER)
        async with await Device.open(address, connect) as device:
            done["sessions"] += 1
            await device.send(b"\xe0\x00")

    await _at_once(_WORKERS, one, done, pause_s=0)


async def record_bombs(address: Address, size: int, done: Done, *, kafka: str = "") -> None:
    """Writes records of a few hundred KB with `size` MiB in them, and connects meanwhile. kafka: empty = only connects."""
    attack_ = RecordBombs(address, done)
    stop = Event()
    writing = asyncio.to_thread(attack_.write, kafka, size, stop) if kafka else asyncio.sleep(0)
    try:
        await asyncio.gather(attack_.connect_again_and_again(), writing)
    finally:
        stop.set()


async def _on_a_thread(run: Callable[[Address, int, Done, Event], None], address: Address, size: int, done: Done) -> None:
    stop = Event()
    try:
        await asyncio.to_thread(run, address, size, done, stop)
    finally:
        stop.set()


async def _at_once(size: int, one: Callable[[], Awaitable[None]], done: Done, *, pause_s: float = _PAUSE_S) -> None:
    """Runs `size` attackers at a time, and restarts each after a pause when its connection was closed."""

    async def again_and_again() -> None:
        while True:
            try:
                await one()
            except Refused:
                done["refused"] += 1
            except _CLOSED:
                done["closed"] += 1
            await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(again_and_again())


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack and its extent.

    size, small: connections, or what the function counts; small for a short test. messages: waiting for the attackers, with
    payload_bytes each. writes: it gets the address of Kafka, too.
    """

    run: Callable[..., Awaitable[None]]
    what: str
    size: int
    small: int
    messages: int = 0
    payload_bytes: int = 0
    writes: bool = False


ATTACKS: Final = {
    attack.run.__name__: attack
    for attack in (
        Attack(run=half_open, what="{size:,} half-open connections", size=10_000, small=2_500),
        Attack(run=slow_loris, what="{size:,} slow-loris", size=1_000, small=200),
        Attack(run=connect_flood, what="up to {size:,} CONNECTs a second", size=5_000, small=1_500),
        Attack(run=subscribes, what="endless SUBSCRIBEs, {size} devices", size=10, small=3),
        Attack(
            run=deaf,
            what="{size} devices never read, {messages:,} messages of 100 KB",
            size=20,
            small=20,
            messages=1_000,
            payload_bytes=100_000,
        ),
        Attack(run=headers, what="8 KB and 64 KiB of headers, {size} devices", size=10, small=4),
        Attack(run=qos0_flood, what="QoS 0 flood, {size} devices", size=4, small=2),
        Attack(run=bombs, what="65,000 user properties, {size} devices", size=10, small=4),
        Attack(run=record_bombs, what="records of {size} MiB in 300 KB", size=300, small=120, writes=True),
        Attack(run=routing_bombs, what="CC of {size:,} ids, and rejections in a circle", size=7_000, small=7_000, writes=True),
        Attack(run=sessions, what="{size:,} client ids, infinite expiry", size=1_000_000, small=2_000),
    )
}


def send_to_deaf(bootstrap_servers: str, attack: Attack, size: int, done: Done, stop: Event) -> None:
    """Writes messages as a backend does, until all are written or `stop` is set."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
    headers = [("mqtt-topic", b"attack"), ("mqtt-qos", b"1")]
    for number in range(attack.messages):
        key = f"{_DEAF_PREFIX}{number % size}".encode()
        sent = producer.send("inflight.messages", key=key, value=bytes(attack.payload_bytes), headers=headers)
        sent.add_callback(lambda _: done.update(["messages for them"]))
    stop.wait()
    abandon(producer)


class Said(msgspec.Struct, frozen=True):
    """The output of the process at its end. cores: processors used, on average."""

    done: dict[str, int] = {}
    cores: float = 0.0


async def attack(name: str, address: Address, size: int, seconds: float, *, kafka: str = "") -> Done:
    """Runs an attack and returns what was done, by kind.

    size: as of `Attack`. kafka: where backends write; empty = there are no messages.
    """
    done: Done = Counter()
    stop = Event()
    sending = Thread(target=send_to_deaf, args=(kafka, ATTACKS[name], size, done, stop))
    if ATTACKS[name].messages and kafka:
        sending.start()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                options = {"kafka": kafka} if ATTACKS[name].writes else {}
                await ATTACKS[name].run(address, size, done, **options)
    finally:
        stop.set()
        if sending.is_alive():
            sending.join()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kafka", default="", help="bootstrap servers, for the attacks with messages to the attackers")
    parser.add_argument("--size", type=int, help="instead of what is usual for this attack")
    arguments = parser.parse_args()
    size = arguments.size or ATTACKS[arguments.name].size
    address = (arguments.host, arguments.port)
    print(READY, flush=True)
    sys.stdin.readline()
    done = uvloop.run(attack(arguments.name, address, size, arguments.seconds, kafka=arguments.kafka))
    used = resource.getrusage(resource.RUSAGE_SELF)
    said = Said(done, (used.ru_utime + used.ru_stime) / arguments.seconds)
    print(msgspec.json.encode(said).decode())


if __name__ == "__main__":
    main()
