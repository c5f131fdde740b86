"""The gateway on a real broker shows what the in-process stand-in of the other tests cannot."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars
from sinks.kafka import topic_partitions
from sinks.kafka.topic_partitions import PartitionsAdded
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.process import serve
from sinks.mqtt.settings import GatewaySettings
from sinks.routing.metrics import MatcherCounters
from sinks.routing.settings import RoutingSettings
from state.commands import SendPublish
from state.events import ClientConnected, ConnectionLost, PubAckReceived, PublishReceived, Subscribed
from state.model import QoS, Subscription
from state.records.events import decode_events
from state.records.session_marks import ALL_MARKED, encode_mark
from state.records.subscriptions import SubscriptionList, decode_subscriptions
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient
from tests.integration.gateway.gateway_process import EngineOnKafka, SessionsOnKafka
from tests.integration.gateway.own_topics import settings_on, topics_of
from tests.support.background import in_thread
from tests.support.kafka_topics import create_topics, read_topic
from tests.support.scripted_engine import ScriptedEngine
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

_MOST_CONNECTS: Final = 20
_SERVED_S: Final = 3.0
"""Within this a device that does not wait for an engine has PINGRESP."""

T = TypeVar("T")


@pytest.fixture
def settings(kafka: SharedKafka) -> GatewaySettings:
    """Topics and a group of its own for each test."""
    return settings_on(kafka, "gateway", group_session_timeout_ms=6_000)


@pytest.fixture(scope="module")
def mortal_broker(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[EmbeddedKafka]:
    """Yields a broker for tests that kill it and start it again."""
    with EmbeddedKafka(tmp_path_factory.mktemp("mortal"), jars=jars) as broker:
        yield broker


@contextmanager
def running(settings: GatewaySettings, matcher: MatcherCounters | None = None) -> Iterator[GatewayUnderTest]:
    gateway = GatewayUnderTest(None, GatewayCounters())  # type: ignore[arg-type]

    async def main(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        def on_ready(host: str, port: int) -> None:
            gateway.host, gateway.port = host, port
            ready()

        await serve(settings, on_ready=on_ready, stop=stop, counters=gateway.counters, matcher_counters=matcher)

    with in_thread(main, "gateway under test"):
        yield gateway


class Engine(EngineOnKafka, ScriptedEngine):
    """The scripted engine on a real Kafka."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__(settings)
        self.accepting.fields = {"max_awaiting_rel": 100}  # as the default settings say

    def micro_batch(self, records: list[tuple[str, bytes]]) -> None:
        for client_id, value in records:
            self.heard(client_id, value)


def accepted(gateway: GatewayUnderTest, client_id: str) -> RawClient:
    device = gateway.socket()
    device.send(connect(level=5, keep_alive_s=0, payload=text(client_id)))
    answer = device.packet()
    assert answer[:1] == b"\x20", answer
    assert answer[3] == 0, answer
    device.send("c000")
    device.expect("d000")  # not before the engine has accepted: CONNACK of a clean start does not wait for it
    return device


def served(gateway: GatewayUnderTest, client_id: str) -> RawClient:
    """Connects with Clean Start where there is no engine. A CONNECT that was read or appended late waits for one: then the device
    connects again."""
    for _ in range(_MOST_CONNECTS):
        device = gateway.socket()
        device.send(connect(flags=0x02, keep_alive_s=0, payload=text(client_id)) + b"\xc0\x00")
        device.expect("20020000")
        if device.has_more(_SERVED_S):
            device.expect("d000")
            return device
        device.socket.close()
    raise AssertionError("every CONNECT was late")


def message(packet_id: int) -> dict[str, Any]:
    return {"packet_id": packet_id, "topic": "t", "payload": b"p", "qos": QoS(1)}


@pytest.mark.promise("from-device-qos-1")
def test_everything_that_a_device_says_is_in_the_log_before_it_is_answered(settings: GatewaySettings) -> None:
    with Engine(settings) as engine, running(settings) as gateway, accepted(gateway, "d1") as device:
        device.send(publish("up/1", b"one", first_byte=0x32, packet_id=1, v5=b""))
        device.expect("40020001")
        device.send(publish("up/2", b"two", first_byte=0x34, packet_id=2, v5=b""))
        device.expect("50020002")
        engine.wait_for("d1", ClientConnected)
        engine.command("d1", SendPublish, **message(7))
        device.expect(publish("t", b"p", first_byte=0x32, packet_id=7, v5=b""))
        device.send("40020007")
        assert engine.wait_for("d1", PubAckReceived)[-1].packet_id == 7
        assert engine.wait_for("d1", PublishReceived)[-1].payload == b"two"
    (record,) = read_topic(settings.bootstrap_servers, settings.uplink_topic)
    assert (record.key, record.value) == (b"d1", b"one")
    assert dict(record.headers)["mqtt-topic"] == b"up/1"


@pytest.mark.promise("engine-stands-still")
def test_a_device_with_a_clean_start_is_served_without_an_engine(settings: GatewaySettings) -> None:
    """Its records are in the log, where sessions read them behind its CONNECT. Its session ends with its connection, so QoS 2
    waits for nothing either."""
    name = f"{settings.leases_topic}-by-time"
    create_topics(settings.bootstrap_servers, name, message_timestamp_type="LogAppendTime")
    settings = replace(settings, leases_topic=name)
    with running(settings) as gateway, served(gateway, "served") as device:
        device.send(packet(0x82, b"\x00\x05", text("t"), b"\x01") + publish("up", b"one", first_byte=0x32, packet_id=6))
        assert {device.packet(), device.packet()} == {bytes.fromhex("9003000501"), bytes.fromhex("40020006")}
        device.send(publish("up", b"two", first_byte=0x34, packet_id=7))
        device.expect("50020007")
        with SessionsOnKafka(settings) as engine:
            wait_until(lambda: "served" in engine.sessions, "the session")
            session = engine.sessions["served"]
            wait_until(lambda: list(session.inbound.awaiting_rel.entries) == [7], "the session knows the publication")
            assert [one.topic_filter for one in session.outbound.subscriptions] == ["t"]


def with_routing(settings: GatewaySettings) -> GatewaySettings:
    """Adds topics of routing, where an engine has been before."""
    servers, name = settings.bootstrap_servers, settings.uplink_topic.removesuffix(".uplink")
    topics = {kind: f"{name}.{kind}-of-sessions" for kind in ("subscriptions", "retained", "publications", "leases")}
    create_topics(servers, *topics.values(), partitions=2, message_timestamp_type="LogAppendTime")
    leases = topics.pop("leases")
    routing = RoutingSettings(
        enabled=True,
        group_id=name,
        uplink_topic=settings.uplink_topic,
        messages_topic=settings.fast_path.messages_topic,
        **{f"{kind}_topic": topic for kind, topic in topics.items()},
    )
    with KafkaProducer(bootstrap_servers=servers) as producer:
        producer.send(routing.subscriptions_topic, key=ALL_MARKED, value=encode_mark(0)).get(DEADLINE_S)
    return replace(settings, leases_topic=leases, routing=routing, session=replace(settings.session, routing=True))


@pytest.mark.promise("new-session")
def test_what_a_new_client_subscribes_to_reaches_it_without_an_engine(settings: GatewaySettings) -> None:
    """The first message, and those behind it; the session adopts them when there is an engine."""
    settings, counters = with_routing(settings), MatcherCounters()
    with running(settings, counters) as gateway:
        wait_until(lambda: counters.partitions_owned > 0, "the gateway has its tables")
        with served(gateway, "new-subscriber") as subscriber, served(gateway, "new-publisher") as publisher:
            subscriber.send(packet(0x82, b"\x00\x05", text("first/t"), b"\x02"))
            subscriber.expect("9003000502")
            for packet_id, payload in ((6, b"one"), (7, b"two")):
                publisher.send(publish("first/t", payload, first_byte=0x32, packet_id=packet_id))
                publisher.expect(bytes((0x40, 2, 0, packet_id)))
            subscriber.expect(publish("first/t", b"one", first_byte=0x32, packet_id=0x8000))
            subscriber.expect(publish("first/t", b"two", first_byte=0x32, packet_id=0x8001))
            with SessionsOnKafka(settings) as engine:
                wait_until(lambda: "new-subscriber" in engine.sessions, "the session has begun")
                session = engine.sessions["new-subscriber"]
                wait_until(lambda: session.summary().inflight == 2, "the session has both messages")
                subscriber.send("40028000 40028001")
                wait_until(lambda: session.summary().inflight == 0, "the session has both acknowledgements")


def test_kept_sessions_are_answered_at_each_gateway_without_an_engine(settings: GatewaySettings) -> None:
    """Each gateway says of the session what the log says, and the session finds it true."""
    settings = with_routing(settings)
    one, other = MatcherCounters(), MatcherCounters()
    with running(settings, one) as first, running(settings, other) as second:
        wait_until(lambda: min(one.partitions_owned, other.partitions_owned) > 0, "both gateways have their tables")
        for number, gateway in enumerate((first, second, first)):
            with gateway.socket() as device:
                device.send(connect(flags=0x00, keep_alive_s=0, payload=text("kept")))
                device.expect(bytes((0x20, 2, number > 0, 0)))
        with first.socket() as device:  # its session ends with it
            device.send(connect(level=5, flags=0x00, keep_alive_s=0, payload=text("kept")))
            assert device.packet()[2] == 1
            device.send(b"\xe0\x00")
            device.expect_closed()
        with first.socket() as device:
            device.send(connect(flags=0x00, keep_alive_s=0, payload=text("kept")))
            device.expect("20020000")
        with second.socket() as device, SessionsOnKafka(settings) as engine:
            device.send(connect(flags=0x00, keep_alive_s=0, payload=text("kept")) + b"\xc0\x00")
            device.expect("20020100")
            device.expect("d000")
            device.send(packet(0x82, b"\x00\x05", text("t"), b"\x01"))
            device.expect("9003000501")  # not before the session has found it true
            session = engine.sessions["kept"]
            assert session.started_by < session.newest_connection_id


def test_with_routing_an_answer_follows_both_records_of_its_packet(settings: GatewaySettings) -> None:
    """A SUBSCRIBE and a retained PUBLISH, sent at once. The broker's times tell the order of records of two topics."""
    servers, name = settings.bootstrap_servers, settings.uplink_topic.removesuffix(".uplink")
    subscriptions, retained, uplink = f"{name}.subscriptions", f"{name}.retained", f"{name}.uplink-by-time"
    publications = f"{name}.publications"  # of $SYS
    create_topics(servers, subscriptions, retained, publications, uplink, partitions=4, message_timestamp_type="LogAppendTime")
    routing = RoutingSettings(
        enabled=True, subscriptions_topic=subscriptions, retained_topic=retained, publications_topic=publications
    )
    settings = replace(settings, uplink_topic=uplink, routing=routing)
    with Engine(settings) as engine:
        engine.accepting.fields = {"max_awaiting_rel": 100, "subscriptions": (), "topic_filters": ()}
        with running(settings) as gateway, accepted(gateway, "d1") as device:
            subscribe = packet(0x82, b"\x00\x01\x00", text("up/#"), b"\x01")
            device.send(subscribe + publish("up/1", b"one", first_byte=0x33, packet_id=2, v5=b""))
            device.expect("90040001 0001")
            lists = [record for record in read_topic(servers, subscriptions) if record.key == b"d1"]  # marks have other keys
            *empty, listed = sorted(lists, key=lambda record: record.offset)
            events = [event for record in read_topic(servers, settings.events_topic) for event in decode_events(record.value)]
            device.expect("40020002")
            [kept], [published] = read_topic(servers, retained), read_topic(servers, uplink)
            device.send(publish("up/1", b"", first_byte=0x35, packet_id=3, v5=b""))
            device.expect("50020003")
            *_, removed = read_topic(servers, retained)
    asked = Subscription(topic_filter="up/#", qos=QoS(1))
    [subscribed] = [event for event in events if isinstance(event, Subscribed)]
    connection_id = subscribed.connection_id
    assert (subscribed.version, subscribed.subscriptions) == (1, (asked,))
    # None if the gateway knew already that the client has no list.
    assert [decode_subscriptions(one.value or b"") for one in empty] in (
        [],
        [SubscriptionList(connection_id=connection_id, version=0)],
    )
    assert decode_subscriptions(listed.value or b"") == SubscriptionList(
        connection_id=connection_id, version=1, subscriptions=(asked,), wanted=("up/#",)
    )
    assert published.timestamp_ms >= listed.timestamp_ms
    assert (kept.key, kept.value, kept.headers) == (b"up/1", b"one", published.headers)
    assert (removed.key, removed.value) == (b"up/1", None)


def test_a_second_gateway_costs_only_the_devices_of_its_partitions(settings: GatewaySettings) -> None:
    with Engine(settings) as engine, running(settings) as first:
        devices = {f"d{number}": accepted(first, f"d{number}") for number in range(12)}
        before = {name: engine.wait_for(name, ClientConnected)[-1].commands_partition for name in devices}
        assert set(before.values()) == {0, 1, 2, 3}
        with running(settings) as second:
            with accepted(second, "new"):
                moved = engine.wait_for("new", ClientConnected)[-1].commands_partition
            # It may have got a second partition, too: what moves is closed before anybody else can have it.
            lost = {name for name in devices if before[name] == moved or not devices[name].is_silent()}
            for name in lost:
                assert devices[name].rest() == bytes.fromhex("e00189")
                engine.wait_for(name, ConnectionLost)
            kept = devices.keys() - lost
            assert kept, "some partitions stay with the first gateway"
            for name in kept:
                engine.command(name, SendPublish, **message(1))
                devices[name].expect(publish("t", b"p", first_byte=0x32, packet_id=1, v5=b""))
        for device in devices.values():
            device.socket.close()
        with wait_until(lambda: _try(lambda: accepted(first, "back")), "the first gateway serves again") as device:
            device.send("c000")
            device.expect("d000")


def _try(action: Callable[[], T]) -> T | None:
    try:
        return action()
    except (AssertionError, ConnectionError):
        return None


def test_a_later_gateway_reports_the_connections_that_are_gone(settings: GatewaySettings) -> None:
    static = replace(settings, group_instance_id="gateway-0")
    with Engine(settings) as engine:
        with running(static) as gateway:
            device = accepted(gateway, "d1")
            connected = engine.wait_for("d1", ClientConnected)[-1]
            engine.command("d1", SendPublish, **message(1))
            device.expect(publish("t", b"p", first_byte=0x32, packet_id=1, v5=b""))
        device.socket.close()
        gone = ClientConnected(connection_id=1, commands_partition=connected.commands_partition)
        engine.answer("ghost", gone, SendPublish, **message(1))
        with running(static):
            assert engine.wait_for("ghost", ConnectionLost)[-1].connection_id == 1
        assert len(engine.of("d1", ConnectionLost)) == 1, "what the first gateway carried out is not read again"


@pytest.mark.faults
def test_a_broker_that_is_away_costs_only_the_connections_that_wrote(
    mortal_broker: EmbeddedKafka, settings: GatewaySettings
) -> None:
    create_topics(mortal_broker.bootstrap_servers, *topics_of(settings))
    # Longer than the broker is away: a partition that the group gives up would cost the idle device, too.
    own = replace(
        settings, bootstrap_servers=mortal_broker.bootstrap_servers, append_timeout_ms=4_000, group_session_timeout_ms=60_000
    )
    with running(own) as gateway:
        with Engine(own), accepted(gateway, "writer") as writer, accepted(gateway, "idle") as idle:
            mortal_broker.kill()
            writer.send(publish("up", b"x", first_byte=0x32, packet_id=1, v5=b""))
            assert writer.rest() == bytes.fromhex("e00189")
            idle.send("c000")
            idle.expect("d000")
        mortal_broker.start()
        with Engine(own), wait_until(lambda: _try(lambda: accepted(gateway, "later")), "a new connection") as later:
            later.send(publish("up", b"x", first_byte=0x32, packet_id=1, v5=b""))
            later.expect("40020001")


@pytest.mark.faults
@pytest.mark.promise("gateway-frozen")
def test_a_gateway_that_is_cut_off_from_kafka_closes_its_idle_devices(
    mortal_broker: EmbeddedKafka, settings: GatewaySettings
) -> None:
    create_topics(mortal_broker.bootstrap_servers, *topics_of(settings))
    own = replace(
        settings,
        bootstrap_servers=mortal_broker.bootstrap_servers,
        append_timeout_ms=4_000,
        group_session_timeout_ms=15_000,
        lease_ms=3_000,
    )
    with running(own) as gateway:
        with Engine(own), accepted(gateway, "idle") as idle:
            mortal_broker.kill()
            assert idle.rest() == bytes.fromhex("e00189")
            with gateway.socket() as refused:
                refused.send(connect(level=5, keep_alive_s=0, payload=text("idle")))
                assert refused.packet()[3] == 0x88
        mortal_broker.start()
        with Engine(own), wait_until(lambda: _try(lambda: accepted(gateway, "idle")), "a new connection") as back:
            back.send("c000")
            back.expect("d000")
    assert gateway.counters.leases_lost >= 1


@pytest.mark.promise("added-partitions")
def test_a_gateway_stops_when_a_topic_gets_more_partitions(settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_partitions, "_WATCH_INTERVAL_S", 0.2)
    expected = f"{settings.events_topic} has 6 partitions now, and had 4 when this process started"

    def while_it_runs() -> None:
        with running(settings) as gateway, Engine(settings), accepted(gateway, "d1") as device:
            admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
            admin.create_partitions({settings.events_topic: 6})
            admin.close()
            assert device.rest() == bytes.fromhex("e0018b"), "the server is shutting down"

    with pytest.raises(PartitionsAdded, match=expected):
        while_it_runs()
    with running(settings) as gateway, Engine(settings), accepted(gateway, "d1") as device:
        device.send("c000")
        device.expect("d000")
