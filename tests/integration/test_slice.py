"""The whole path on real parts: Kafka, the engine on Spark, a gateway, a device on a bare socket, restarts of everything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from tests.integration.strict_device import CONNACK, PUBACK, PUBLISH, read_packet

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PATIENCE_S = 60.0


def send(up: UpProcess, client_id: str, *payloads: bytes) -> None:
    """QoS 1 messages as any backend would write them, confirmed by Kafka."""
    producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    for payload in payloads:
        headers = [("mqtt-topic", b"cmd/step"), ("mqtt-qos", b"1")]
        producer.send("inflight.messages", key=client_id.encode(), value=payload, headers=headers).get(timeout=30)
    producer.close()


class Wire:
    """A connected MQTT 3.1.1 client, packet by packet. seen: (payload, DUP) of each PUBLISH."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, session_present: bool) -> None:
        self._reader = reader
        self._writer = writer
        self.session_present = session_present
        self.seen: list[tuple[bytes, bool]] = []

    async def next_publish(self) -> int:
        """The packet id of the next PUBLISH."""
        kind, flags, body = await asyncio.wait_for(read_packet(self._reader), PATIENCE_S)
        assert kind == PUBLISH
        start = 2 + int.from_bytes(body[:2], "big")
        self.seen.append((body[start + 2 :], bool(flags & 8)))
        return int.from_bytes(body[start : start + 2], "big")

    def acknowledge(self, packet_id: int) -> None:
        self._writer.write(bytes([PUBACK << 4, 2]) + packet_id.to_bytes(2, "big"))


@contextlib.asynccontextmanager
async def connected(up: UpProcess, client_id: str) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(*up.mqtt)
    try:
        name = client_id.encode()
        body = b"\x00\x04MQTT\x04\x00\x00\x00" + len(name).to_bytes(2, "big") + name
        writer.write(bytes([0x10, len(body)]) + body)
        kind, _, packet = await asyncio.wait_for(read_packet(reader), PATIENCE_S)
        assert (kind, packet[1]) == (CONNACK, 0)
        yield Wire(reader, writer, session_present=bool(packet[0]))
    finally:
        writer.close()


async def _seeds_example(up: UpProcess) -> list[tuple[bytes, bool]]:
    send(up, "window-2", b"1", b"2", b"3", b"4")
    async with connected(up, "window-2") as wire:
        first, _ = await wire.next_publish(), await wire.next_publish()
        wire.acknowledge(first)  # then the line goes bad: what follows is received, its acknowledgements are lost
        await wire.next_publish()
        again = [await wire.next_publish(), await wire.next_publish()]
        for packet_id in again:
            wire.acknowledge(packet_id)
        wire.acknowledge(await wire.next_publish())
        return wire.seen


async def _receive(up: UpProcess, client_id: str, count: int) -> tuple[bool, list[bytes]]:
    async with connected(up, client_id) as wire:
        for _ in range(count):
            wire.acknowledge(await wire.next_publish())
        return wire.session_present, [payload for payload, _ in wire.seen]


async def _keep_a_session(up: UpProcess, client_id: str) -> None:
    async with connected(up, client_id):
        pass


def test_the_path_from_kafka_to_the_device_through_lost_acknowledgements_and_a_restart(tmp_path: Path) -> None:
    settings = ("--set", "max_inflight=2", "--set", "retry_interval=10s")
    with UpProcess(tmp_path / "data", *settings) as up:
        # The example of the seeds, on the socket of a device.
        assert asyncio.run(_seeds_example(up)) == [
            (b"1", False),
            (b"2", False),
            (b"3", False),
            (b"2", True),
            (b"3", True),
            (b"4", False),
        ]
        # Offline: the messages wait for the device, in order.
        asyncio.run(_keep_a_session(up, "sleeper"))
        send(up, "sleeper", b"a", b"b", b"c")
        assert asyncio.run(_receive(up, "sleeper", 3)) == (True, [b"a", b"b", b"c"])
        send(up, "sleeper", b"d", b"e", b"f")
    assert up.exit_code == 0
    with UpProcess(tmp_path / "data", *settings) as up:
        # Everything was stopped and started again: session and messages are still there.
        assert asyncio.run(_receive(up, "sleeper", 3)) == (True, [b"d", b"e", b"f"])
    assert up.exit_code == 0
