"""Sends the same messages to a device at a gateway and to a device behind a broker: the real session writes the same records.

Gateway, bridge and sessions are the real ones, in this process; the broker is scripted. The records are receipts, dead letters
and the ledger. `inflight trace` shows them without a difference by who held the connection.
"""

import asyncio
import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.process import run_bridge
from sinks.bridge.settings import BridgeSettings
from sinks.mqtt.codec.packets import Publish
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.process import run_gateway
from sinks.mqtt.settings import GatewaySettings
from state.commands import DeadLetter, RecordTransition, SendReceipt
from state.model import Message, PublishProperties, QoS, ReasonCode
from state.settings import BackoffSettings, RetryMqtt5, SessionSettings
from tests.integration.bridge.bridge_fakes import FakeBroker, Peer
from tests.integration.engine.strict_device import PUBLISH, PUBREL, read_packet
from tests.integration.gateway.session_engine import Port, SessionEngine, on_loop, running_loop
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, text

DEVICE = "d1"
PARTITIONS = 2
SESSION = SessionSettings(
    retry_interval_ms=2_500,
    retry_mqtt5=RetryMqtt5.TIMER,  # to the session a device behind a broker speaks MQTT 3.1.1; so the timer runs on both sides
    max_inflight=3,
    delivery_limit=4,
    backoff=BackoffSettings(initial_ms=300),
)
FORGOTTEN = None
ANSWERS: dict[str, list[int | None]] = {
    # message id: reason codes to its copies, the last for all that follow
    "taken": [0],
    "taken at qos 2": [0],
    "taken by nobody": [0x10],
    "never": [ReasonCode.NOT_AUTHORIZED],
    "never at qos 2": [ReasonCode.PAYLOAD_FORMAT_INVALID],
    "busy": [ReasonCode.QUOTA_EXCEEDED, 0],
    "busy at qos 2": [ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUOTA_EXCEEDED, 0],
    "broken": [ReasonCode.UNSPECIFIED_ERROR],
    "broken at qos 2": [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR],
    "broken once": [ReasonCode.PACKET_ID_IN_USE, 0],
    "forgotten once": [FORGOTTEN, 0],
    "forgotten once at qos 2": [FORGOTTEN, 0],
}
EXPECTED = {
    "taken": "delivered",
    "taken at qos 2": "delivered",
    "taken by nobody": "delivered",
    "never": "rejected",
    "never at qos 2": "rejected",
    "busy": "delivered",
    "busy at qos 2": "delivered",
    "broken": "delivery_limit",
    "broken at qos 2": "delivery_limit",
    "broken once": "delivered",
    "forgotten once": "delivered",
    "forgotten once at qos 2": "delivered",
    "expired": "expired",
    "at qos 0": "sent",
}


class Device:
    """Simulates the device, however it is reached. received: message ids in the order of arrival, copies too."""

    def __init__(self) -> None:
        self.received: list[str] = []

    def reason_code(self, payload: bytes) -> int | None:
        """Returns the code with which the device answers, or None if it forgets to answer."""
        message_id = payload.decode()
        self.received.append(message_id)
        codes = ANSWERS.get(message_id, [0])
        return codes[min(self.received.count(message_id), len(codes)) - 1]


class BrokerOfDevice(FakeBroker):
    """The scripted broker with the device at its other side."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def handle(self, peer: Peer, packet: object) -> None:
        super().handle(peer, packet)
        if isinstance(packet, Publish):
            reason_code = self._device.reason_code(packet.payload)
            if packet.qos and reason_code is not None:
                assert packet.properties.response_topic is not None
                self._next_packet_id += 1
                answer = Publish(
                    topic=packet.properties.response_topic,
                    payload=b'{"reason_code": %d}' % reason_code if reason_code else b"",
                    qos=QoS.AT_LEAST_ONCE,
                    packet_id=self._next_packet_id,
                    properties=PublishProperties(correlation_data=packet.properties.correlation_data),
                )
                self.peers["bridge"].send(answer)


async def mqtt5_device(device: Device, host: str, port: int) -> None:
    """Plays the device at a gateway, on a bare socket, until cancelled."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        expiry = b"\x11\x00\x00\x0e\x10"
        writer.write(connect(level=5, flags=0, keep_alive_s=0, properties=expiry, payload=text(DEVICE)))
        await read_packet(reader)
        while True:
            kind, flags, body = await read_packet(reader)
            if kind == PUBREL:
                writer.write(packet(0x70, body[:2]))
            elif kind == PUBLISH:
                qos = flags >> 1 & 3
                rest = body[2 + int.from_bytes(body[:2], "big") :]
                packet_id, rest = (rest[:2], rest[2:]) if qos else (b"", rest)
                reason_code = device.reason_code(rest[1 + rest[0] :])
                if qos and reason_code is not None:
                    writer.write(packet(0x40 if qos == 1 else 0x50, packet_id, bytes((reason_code,))))
    finally:
        writer.close()


class Side:
    """A way to the device: sessions of its own, and a gateway or a bridge that runs already. `appear` connects the device."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.device = Device()
        self.loop = loop
        self.tasks: list[asyncio.Task[Any]] = []
        on_loop(loop, self._start())

    async def _start(self) -> None:
        self.engine = SessionEngine(SESSION, PARTITIONS)
        self.stop, ready = asyncio.Event(), asyncio.Event()
        self.run(self.engine.run())
        self.run(self.host(Port(self.engine), ready))
        await ready.wait()

    def run(self, work: Any) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def host(self, port: Port, ready: asyncio.Event) -> None:
        raise NotImplementedError

    async def appear(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for task in reversed(self.tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def submit(self, message: Message) -> None:
        self.loop.call_soon_threadsafe(self.engine.submit, DEVICE, message)

    def of(self, message_id: str, kind: type) -> list[Any]:
        found = []
        for record in list(self.engine.records):
            if isinstance(record, kind):
                match record:
                    case DeadLetter(message=about) | SendReceipt(receipt=about) | (RecordTransition() as about):
                        if about.message_id == message_id:
                            found.append(record)
        return found


class AtGateway(Side):
    async def host(self, port: Port, ready: asyncio.Event) -> None:
        def on_ready(host: str, number: int) -> None:
            self.address = host, number
            ready.set()

        settings = GatewaySettings(host="127.0.0.1", port=0)
        await run_gateway(settings, port, port, on_ready=on_ready, stop=self.stop, counters=GatewayCounters())

    async def appear(self) -> None:
        self.run(mqtt5_device(self.device, *self.address))


class BehindBroker(Side):
    async def host(self, port: Port, ready: asyncio.Event) -> None:
        self.broker = BrokerOfDevice(self.device)
        self.broker.loop = self.loop
        server = await self.loop.create_server(lambda: Peer(self.broker), "127.0.0.1", 0)
        settings = BridgeSettings(name="bridge", port=server.sockets[0].getsockname()[1])
        try:
            await run_bridge(
                settings,
                port,
                port,
                commands_partitions=PARTITIONS,
                on_ready=ready.set,
                stop=self.stop,
                counters=BridgeCounters(),
            )
        finally:
            server.close()

    async def appear(self) -> None:
        presence = Publish(topic=f"devices/{DEVICE}/presence", payload=b"online", qos=QoS.AT_MOST_ONCE)
        self.broker.peers["bridge"].send(presence)


@contextmanager
def both_sides() -> Iterator[tuple[AtGateway, BehindBroker]]:
    with ExitStack() as stack:
        loop = stack.enter_context(running_loop())
        sides = []
        for kind in (AtGateway, BehindBroker):
            side = kind(loop)
            stack.callback(lambda side=side: on_loop(loop, side.close()))
            sides.append(side)
        yield sides[0], sides[1]  # type: ignore[misc]


def message(message_id: str, now_ms: int) -> Message:
    qos = 2 if message_id.endswith("2") else 0 if message_id.endswith("0") else 1
    expires_at_ms = now_ms if message_id == "expired" else None  # over when it arrives, however fast that is
    return Message(
        message_id=message_id,
        topic="cmd",
        payload=message_id.encode(),
        qos=QoS(qos),
        accepted_ms=now_ms,
        expires_at_ms=expires_at_ms,
    )


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[AtGateway, BehindBroker]]:
    """Yields both sides when all messages have an outcome: they waited for an offline device, which then connected."""
    with both_sides() as sides:
        now_ms = int(time.time() * 1_000)
        for side in sides:
            for message_id in EXPECTED:
                side.submit(message(message_id, now_ms))
        for side in sides:
            wait_until(lambda side=side: side.of("expired", SendReceipt), "the first outcome, while the device is away")
            wait_until(lambda side=side: all(side.of(one, RecordTransition) for one in EXPECTED), "everything waits")
            assert side.device.received == []
            assert list(side.engine.outcomes) == ["expired"], "while the device is away nothing else ends"
            on_loop(side.loop, side.appear())
        for side in sides:
            wait_until(lambda side=side: side.engine.outcomes.keys() == EXPECTED.keys(), "all outcomes")
        yield sides


def test_an_answer_has_the_outcome_of_a_puback_with_its_reason_code(sides: tuple[AtGateway, BehindBroker]) -> None:
    for side in sides:
        assert side.engine.outcomes == EXPECTED
        assert side.engine.receipts_twice == []


def test_the_receipts_are_the_same(sides: tuple[AtGateway, BehindBroker]) -> None:
    times = {"accepted_ms", "first_sent_ms", "outcome_ms", "recorded_ms"}
    for message_id in EXPECTED:
        at_gateway, behind_broker = ([_without(one.receipt, times) for one in side.of(message_id, SendReceipt)] for side in sides)
        assert behind_broker == at_gateway
        assert len(behind_broker) == 1


def test_the_dead_letters_are_the_same(sides: tuple[AtGateway, BehindBroker]) -> None:
    reasons = defaultdict(list)
    for message_id in EXPECTED:
        at_gateway, behind_broker = ([(one.reason, one.detail) for one in side.of(message_id, DeadLetter)] for side in sides)
        assert behind_broker == at_gateway
        for reason, _ in behind_broker:
            reasons[reason].append(message_id)
    assert reasons == {
        "expired": ["expired"],
        "rejected": ["never", "never at qos 2"],
        "delivery_limit": ["broken", "broken at qos 2"],
    }


def _without_clock(row: dict[str, Any]) -> dict[str, Any]:
    """Drops the backoff ("300 ms …, in 199 ms") from the detail: it depends on when the refusal was sent and read."""
    return row | {"detail": re.sub(r", in .*|\d+ ms", "", row["detail"])}


def test_the_ledger_tells_the_same_story_of_every_message(sides: tuple[AtGateway, BehindBroker]) -> None:
    for message_id in EXPECTED:
        at_gateway, behind_broker = (
            [_without_clock(_without(row, {"time_ms", "packet_id"})) for row in side.of(message_id, RecordTransition)]
            for side in sides
        )
        assert behind_broker == at_gateway
        assert behind_broker


def test_both_devices_got_the_same_copies(sides: tuple[AtGateway, BehindBroker]) -> None:
    at_gateway, behind_broker = (sorted(side.device.received) for side in sides)
    assert behind_broker == at_gateway
    assert behind_broker.count("busy at qos 2") == 3
    assert behind_broker.count("broken") == SESSION.delivery_limit
    assert behind_broker.count("forgotten once") == 2
    assert "expired" not in behind_broker


def test_first_copies_arrive_in_the_order_sent(sides: tuple[AtGateway, BehindBroker]) -> None:
    for side in sides:
        first = [one for one in dict.fromkeys(side.device.received) if one != "at qos 0"]
        assert first == [one for one in EXPECTED if one in first]


def _without(record: Any, fields: set[str]) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    return {name: value for name, value in values.items() if name not in fields}
