"""A bridge in a thread, between a scripted MQTT broker on a real socket and the gateway tests' stand-in for Kafka and engine."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.process import run_bridge
from sinks.bridge.settings import BridgeSettings
from sinks.health import LoopHealth
from sinks.mqtt.codec.framing import FrameBuffer
from sinks.mqtt.codec.packets import (
    PING_RESP,
    ConnAck,
    Connect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ServerPacket,
    SubAck,
    Subscribe,
)
from sinks.mqtt.connection.handshake import V5
from state.model import NO_PROPERTIES, PublishProperties, QoS
from state.settings import BackoffSettings
from tests.integration.gateway.gateway_fakes import FakeKafka
from tests.support.background import in_thread
from tests.support.waiting import DEADLINE_S, wait_until

PARTITIONS = 4
ALL = frozenset(range(PARTITIONS))
QUICK = BackoffSettings(initial_ms=50, max_ms=200)


class Peer(asyncio.Protocol):
    """A client that is connected to the scripted broker."""

    def __init__(self, broker: "FakeBroker") -> None:
        self.broker = broker
        self.client_id = ""
        self.frames = FrameBuffer(1 << 20)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.broker.peers.get(self.client_id) is self:
            del self.broker.peers[self.client_id]

    def data_received(self, data: bytes) -> None:
        self.frames.feed(data)
        while (frame := self.frames.next_packet()) is not None:
            self.broker.handle(self, V5.decode(*frame))

    def send(self, packet: ServerPacket) -> None:
        self.transport.write(V5.encode(packet))


class FakeBroker:
    """Speaks MQTT 5 and acts as the test scripts it.

    answers: the reason code for a publication of the bridge, None = no answer yet (see `answer_held`).
    """

    def __init__(self) -> None:
        self.connack = ConnAck()
        self.answers: Callable[[Publish], int | None] = lambda publish: 0
        self.silent = False
        self.attempts: dict[str, list[float]] = {}
        self.connects: list[Connect] = []
        self.peers: dict[str, Peer] = {}
        self.subscriptions: list[str] = []
        self.published: list[Publish] = []
        self.most_unanswered = 0
        self.acknowledged: list[int] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self._held: list[tuple[Peer, Publish]] = []
        self._next_packet_id = 0

    def handle(self, peer: Peer, packet: object) -> None:
        if self.silent:
            return
        match packet:
            case Connect():
                peer.client_id = packet.client_id
                self.connects.append(packet)
                self.attempts.setdefault(packet.client_id, []).append(time.monotonic())
                peer.send(self.connack)
                if self.connack.reason_code:
                    peer.transport.close()
                else:
                    self.peers[packet.client_id] = peer
            case Subscribe():
                self.subscriptions = [wanted.topic_filter for wanted in packet.subscriptions]
                peer.send(SubAck(packet_id=packet.packet_id, reason_codes=tuple(1 for _ in packet.subscriptions)))
            case PingReq():
                peer.send(PING_RESP)
            case Publish():
                self.published.append(packet)
                if packet.qos:
                    self._held.append((peer, packet))
                    self.most_unanswered = max(self.most_unanswered, len(self._held))
                    reason_code = self.answers(packet)
                    if reason_code is not None:
                        self._answer(peer, packet, reason_code)
            case PubRel():
                peer.send(PubComp(packet_id=packet.packet_id))
            case PubAck():
                self.acknowledged.append(packet.packet_id)

    def _answer(self, peer: Peer, publish: Publish, reason_code: int) -> None:
        self._held.remove((peer, publish))
        answer = PubAck if publish.qos == QoS.AT_LEAST_ONCE else PubRec
        peer.send(answer(packet_id=publish.packet_id, reason_code=reason_code))

    # For tests, from their thread

    def answer_held(self, count: int = 1) -> None:
        def answer() -> None:
            for peer, publish in self._held[:count]:
                self._answer(peer, publish, 0)

        self.on_loop(answer)

    def deliver(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        properties: PublishProperties = NO_PROPERTIES,
    ) -> int:
        """Sends a PUBLISH on the bridge's subscribing connection. Returns the packet id, or 0 at QoS 0."""
        self._next_packet_id += 1
        publish = Publish(
            topic=topic,
            payload=payload.encode() if isinstance(payload, str) else payload,
            qos=QoS(qos),
            packet_id=self._next_packet_id if qos else 0,
            retain=retain,
            properties=properties,
        )
        self.on_loop(self.peers["bridge"].send, publish)
        return self._next_packet_id

    def acknowledge(self, client_id: str, message_id: str, payload: bytes | str = b"") -> int:
        """Publishes an acknowledgement, as a device does."""
        return self.deliver(
            f"devices/{client_id}/ack", payload, properties=PublishProperties(correlation_data=message_id.encode())
        )

    def cut(self, client_id: str = "bridge") -> None:
        self.on_loop(self.peers[client_id].transport.abort)

    def of(self, topic: str) -> list[Publish]:
        return [publish for publish in list(self.published) if publish.topic == topic]

    def wait_for(self, topic: str, count: int = 1) -> list[Publish]:
        wait_until(lambda: len(self.of(topic)) >= count, f"{count} × {topic}")
        return self.of(topic)

    def on_loop(self, function: Callable[..., None], *args: Any) -> None:
        assert self.loop is not None

        async def call() -> None:
            function(*args)

        asyncio.run_coroutine_threadsafe(call(), self.loop).result(DEADLINE_S)


@dataclass
class BridgeUnderTest:
    kafka: FakeKafka
    broker: FakeBroker
    counters: BridgeCounters = field(default_factory=BridgeCounters)
    health: LoopHealth = field(default_factory=LoopHealth)
    stop: Callable[[], object] = lambda: None
    ready: threading.Event = field(default_factory=threading.Event)


@contextmanager
def running_bridge(
    broker: FakeBroker | None = None, *, owned: frozenset[int] = ALL, ready: bool = True, **changes: Any
) -> Iterator[BridgeUnderTest]:
    """Runs a bridge. changes: of BridgeSettings. ready: whether to wait until the bridge reports that it is ready."""
    broker = broker or FakeBroker()
    bridge = BridgeUnderTest(FakeKafka(owned), broker)

    async def main(stop: asyncio.Event, started: Callable[[], None]) -> None:
        loop = bridge.kafka.loop = broker.loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Peer(broker), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = dataclasses.replace(
            BridgeSettings(name="bridge", port=port, backoff=QUICK, connect_timeout_ms=5_000), **changes
        )
        started()
        await run_bridge(
            settings,
            bridge.kafka,
            bridge.kafka,
            commands_partitions=PARTITIONS,
            on_ready=bridge.ready.set,
            stop=stop,
            counters=bridge.counters,
            health=bridge.health,
        )
        server.close()

    with in_thread(main, "bridge under test") as bridge.stop:
        assert not ready or bridge.ready.wait(DEADLINE_S), "the bridge is not ready"
        yield bridge
