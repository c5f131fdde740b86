"""trials/faults/devices/busy.py and the device that stops reading: what it reads late is not taken for new."""

import asyncio

from trials.faults.account.facts import Attempt
from trials.faults.devices.busy import DeafDevice
from trials.faults.devices.device import Signals, Wire
from trials.faults.plan.busy import BUSY_CLIENTS, DEAF

NOON_S = 1_800_000_000.0
PING_ANSWER = b"\xd0\x00"


def deaf_device() -> DeafDevice:
    client = next(client for client in BUSY_CLIENTS if client.client_id == DEAF)
    return DeafDevice(client.character, {"a": ("127.0.0.1", 1)}, Signals(), seed=7, publish_every_s=1.0)


def test_a_wire_that_stops_reading_leaves_packets_until_its_time_is_over() -> None:
    async def packets_while_deaf_and_after() -> tuple[int, int]:
        came: list[int] = []
        arrived = asyncio.Event()

        def on_packet(kind: int, flags: int, body: bytes) -> None:
            came.append(kind)
            arrived.set()

        server = await asyncio.start_server(lambda reader, writer: writer.write(PING_ANSWER), "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()
            _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(on_packet), *address)
            wire.stop_reading(0.5)
            await asyncio.sleep(0.2)
            while_deaf = len(came)
            await asyncio.wait_for(arrived.wait(), 5.0)
            wire.cut()
        return while_deaf, len(came)

    assert asyncio.run(packets_while_deaf_and_after()) == (0, 1)


def test_what_a_deaf_device_reads_late_counts_from_when_it_stopped_reading() -> None:
    device = deaf_device()
    attempt = Attempt(gateway="a", will=b"w", clean=False, began_s=NOON_S, accepted_s=NOON_S, heard_s=NOON_S + 9)
    device._deaf_since_s, device._deaf_until_s = NOON_S + 10, NOON_S + 20
    assert device._sent_s(NOON_S + 21, attempt) == NOON_S + 10, "it waited in the network"
    assert device._sent_s(NOON_S + 23, attempt) == NOON_S + 23, "by then it has read what had waited"
    later = Attempt(gateway="a", will=b"w", clean=False, began_s=NOON_S + 15, heard_s=NOON_S + 15)
    assert device._sent_s(NOON_S + 16, later) == NOON_S + 16, "a new connection reads"
