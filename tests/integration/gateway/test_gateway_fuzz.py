"""Any client may send anything: the connection is answered or closed, and other devices lose nothing."""

import asyncio
import random
from collections.abc import Callable

import pytest

from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from state.commands import SendPublish
from state.events import PubAckReceived
from state.model import QoS
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, running_gateway
from tests.support.waiting import DEADLINE_S
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text
from trials.fuzz.mutations import mutated
from trials.fuzz.packets import greeting, valid_packets

FEW, MORE, MANY = 300, 1_000, 10_000
STRANGERS_AT_ONCE, GROUP = 64, 500


def stranger_greeting(dice: random.Random, level: int) -> bytes:
    return greeting(dice, level, f"stranger-{dice.randrange(100)}")


def random_bytes(dice: random.Random) -> bytes:
    noise = dice.randbytes(dice.randrange(1, 200))
    return stranger_greeting(dice, dice.choice((4, 5))) + noise if dice.random() < 0.5 else noise


def nearly_right(dice: random.Random) -> bytes:
    level = dice.choice((4, 5))
    known = valid_packets(level)
    packets = [stranger_greeting(dice, level), *dice.choices(known, k=dice.randrange(1, 6))]
    safe = len(packets[0]) if dice.random() < 0.7 else 0  # mostly behind a CONNECT that is left as it is
    return mutated(dice, b"".join(packets), known, safe=safe)


class Stranger(asyncio.Protocol):
    """Sends its bytes, ends its half of the stream and waits to be closed."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.data)
        transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


async def visit(gateway: GatewayUnderTest, make: Callable[[random.Random], bytes], count: int, seed: int) -> None:
    """Connects `count` clients, at most STRANGERS_AT_ONCE at a time. Each sends `make`'s bytes and must be answered or closed."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(STRANGERS_AT_ONCE)

    async def one(number: int) -> None:
        data = make(random.Random(seed + number))
        async with room:
            source = (f"127.0.1.{1 + number % 100}", 0)  # many addresses, so that the ports of one do not run out
            transport, stranger = await loop.create_connection(
                lambda: Stranger(data), gateway.host, gateway.port, local_addr=source
            )
            try:
                await asyncio.wait_for(stranger.closed, DEADLINE_S)
            except TimeoutError:
                pytest.fail(f"neither answered nor closed: seed {seed + number}: {data.hex(' ')}")
            finally:
                transport.abort()

    for start in range(0, count, GROUP):
        async with asyncio.TaskGroup() as group:
            for number in range(start, start + GROUP):
                group.create_task(one(number))


async def connected(gateway: GatewayUnderTest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(gateway.host, gateway.port)
    writer.write(connect(payload=text("good")))
    assert await asyncio.wait_for(reader.readexactly(4), DEADLINE_S) == bytes.fromhex("20020000")
    return reader, writer


async def good_device(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gateway: GatewayUnderTest, done: asyncio.Event
) -> tuple[int, int]:
    """Publishes and acknowledges until done; how many publications were acknowledged, how many messages received."""
    message = publish("t", b"p", first_byte=0x32, packet_id=1)
    acknowledged = received = 0
    while not done.is_set():
        acknowledged += 1
        writer.write(publish("up", b"%d" % acknowledged, first_byte=0x32, packet_id=acknowledged % 65_535 + 1))
        await asyncio.to_thread(gateway.kafka.command, "good", SendPublish, packet_id=1, topic="t", payload=b"p", qos=QoS(1))
        expected = {b"\x40": 4, b"\x32": len(message)}
        for _ in range(2):
            first = await asyncio.wait_for(reader.readexactly(1), DEADLINE_S)
            await asyncio.wait_for(reader.readexactly(expected.pop(first) - 1), DEADLINE_S)
        received += 1
        writer.write(bytes.fromhex("40020001"))
    writer.close()
    return acknowledged, received


@pytest.mark.parametrize(
    "count", [FEW, pytest.param(MORE, marks=pytest.mark.servers), pytest.param(MANY, marks=pytest.mark.faults)]
)
@pytest.mark.parametrize("make", [random_bytes, nearly_right])
@pytest.mark.promise("any-bytes-on-a-socket")
def test_strangers_are_answered_or_closed_and_a_good_device_loses_nothing(
    make: Callable[[random.Random], bytes], count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario(gateway: GatewayUnderTest) -> tuple[int, int]:
        done = asyncio.Event()
        device = await connected(gateway)  # before the strangers, who keep this process busy beyond the time for a CONNECT
        good = asyncio.create_task(good_device(*device, gateway, done))
        try:
            await visit(gateway, make, count, seed=20_261_121)
        finally:
            done.set()
        return await good

    # Some of them repeat a packet 70,000 times: how fast a device may send is the business of test_packet_limits.py.
    settings = GatewaySettings(connect_timeout_ms=2_000, device_limits=DeviceLimits(max_packet_rate=50_000))
    with running_gateway(settings) as gateway:
        acknowledged, received = asyncio.run(scenario(gateway))
        kafka = gateway.kafka
        uplink = [record.value for record in kafka.uplink("good")]
        assert uplink == [b"%d" % number for number in range(1, acknowledged + 1)]
        assert received == acknowledged > 2
        kafka.wait_for("good", PubAckReceived, received)
    assert gateway.counters.connections_open == 0
    assert gateway.counters.appends_unconfirmed == 0
    captured = capfd.readouterr()
    assert "panicked" not in captured.err
    assert gateway.counters.bugs == 0
    assert "Traceback" not in captured.err + captured.out
