"""Two bridges share a consumer group of a real Kafka, and one of them loses its broker or never had one."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.process import serve
from sinks.bridge.settings import BridgeSettings
from sinks.health import NO_BROKER, LoopHealth
from sinks.kafka.partitioning import partition_of
from sinks.mqtt.codec.packets import ConnAck, Publish
from state.model import QoS, ReasonCode
from state.records.leases import decode_lease
from tests.integration.bridge.bridge_fakes import PARTITIONS, QUICK, FakeBroker, Peer
from tests.support.kafka_topics import create_topics, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import until

DEVICES = [f"d{number}" for number in range(16)]
SESSION_TIMEOUT_MS = 6_000


class OwnBroker(FakeBroker):
    """The broker of one bridge. It knows all devices, as each node of a cluster does, and refuses connections while away."""

    def __init__(self, *, is_away: bool) -> None:
        super().__init__()
        self.is_away = is_away

    @property
    def is_away(self) -> bool:
        return self.connack.reason_code != 0

    @is_away.setter
    def is_away(self, away: bool) -> None:
        self.connack = ConnAck(reason_code=ReasonCode.SERVER_UNAVAILABLE) if away else ConnAck()
        if away:
            for peer in list(self.peers.values()):
                peer.transport.abort()

    def handle(self, peer: Peer, packet: object) -> None:
        before = self.subscriptions
        super().handle(peer, packet)
        if self.subscriptions is not before:
            for device in DEVICES:
                topic = f"devices/{device}/presence"
                peer.send(Publish(topic=topic, payload=b"online", qos=QoS.AT_MOST_ONCE, retain=True))


class OneBridge:
    """A bridge with a broker of its own."""

    def __init__(self, *, is_away: bool) -> None:
        self.broker = OwnBroker(is_away=is_away)
        self.counters = BridgeCounters()
        self.health = LoopHealth()

    @property
    def owned(self) -> int:
        return self.counters.partitions_owned

    @asynccontextmanager
    async def running(self, settings: BridgeSettings) -> AsyncIterator[None]:
        server = await asyncio.get_running_loop().create_server(lambda: Peer(self.broker), "127.0.0.1", 0)
        settings = dataclasses.replace(settings, port=server.sockets[0].getsockname()[1])
        stop = asyncio.Event()
        bridge = asyncio.ensure_future(serve(settings, stop=stop, counters=self.counters, health=self.health))
        try:
            yield
        finally:
            stop.set()
            await bridge
            server.close()


def settings_for(kafka: SharedKafka, prefix: str) -> BridgeSettings:
    names = {name: f"{prefix}.{name}" for name in ("events", "commands", "uplink", "leases")}
    create_topics(kafka.bootstrap_servers, names["commands"], partitions=PARTITIONS)
    create_topics(kafka.bootstrap_servers, *names.values())
    return BridgeSettings(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=prefix,
        group_session_timeout_ms=SESSION_TIMEOUT_MS,
        backoff=QUICK,
        **{f"{name}_topic": topic for name, topic in names.items()},  # type: ignore[arg-type]
    )


def lacked(kafka: SharedKafka, settings: BridgeSettings) -> dict[str, str]:
    """Returns what each bridge lacks by its newest renewal."""
    leases = [decode_lease(record.value) for record in read_topic(kafka.bootstrap_servers, settings.leases_topic) if record.value]
    return {lease.holder: lease.lacks for lease in leases}


@pytest.mark.parametrize("members", ["dynamic", "static"])
@pytest.mark.promise("bridge-without-broker")
async def test_a_bridge_without_its_broker_lets_no_device_starve(kafka: SharedKafka, members: str) -> None:
    settings = settings_for(kafka, f"bridge-group-{members}")
    assert {partition_of(device.encode(), PARTITIONS) for device in DEVICES} == set(range(PARTITIONS))
    lonely, other = OneBridge(is_away=True), OneBridge(is_away=False)

    def is_held_by_other() -> bool:
        return (lonely.owned, other.owned) == (0, PARTITIONS) and other.counters.devices == len(DEVICES)

    def is_shared() -> bool:
        held = lonely.counters.devices, other.counters.devices
        return lonely.owned == other.owned == PARTITIONS // 2 and all(held) and sum(held) == len(DEVICES)

    async with AsyncExitStack() as stack:
        for name, bridge in (("lonely", lonely), ("other", other)):
            own = dataclasses.replace(settings, name=name, group_instance_id=name if members == "static" else None)
            await stack.enter_async_context(bridge.running(own))
        await until(lambda: len(lonely.broker.attempts.get("lonely", ())) > 3, "its broker refuses it")
        await until(is_held_by_other, "the bridge with a broker has every device")
        await until(lambda: lonely.health.not_ready() == (NO_BROKER,), "it says why it is not ready")

        lonely.broker.is_away = False
        await until(is_shared, "the broker is there, and they share the devices")
        await until(lambda: lonely.health.not_ready() == (), "it is ready")

        with capture_logs() as logs:
            lonely.broker.is_away = True
            await until(is_held_by_other, "the broker has stayed away, and the other bridge takes over")
        assert [log["event"] for log in logs if log["event"].startswith("group_")] == ["group_left"]
        async with asyncio.timeout(10):  # an operator has to know by then
            while await asyncio.to_thread(lacked, kafka, settings) != {"bridge lonely": NO_BROKER.what, "bridge other": ""}:
                pass
        await until(lambda: lonely.health.not_ready() == (NO_BROKER,), "it says why it is not ready")

        lonely.broker.is_away = False
        await until(is_shared, "the broker is there again, and they share the devices again")
    assert (lonely.counters.devices, other.counters.devices) == (0, 0)
