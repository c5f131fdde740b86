"""The fast path on a real Kafka and real sockets: routers, gateways, and an engine that gives grants and nothing else.

So everything that a device receives here was sent without a micro-batch.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from kafka import KafkaProducer

from sinks.kafka.partitioning import partition_of
from sinks.mqtt.settings import GatewaySettings
from state.commands import OpenFastPath, SetRoute
from state.events import ClientConnected, FastSent
from state.model import Position, QoS, Routing
from state.records.routes import route_record
from state.records.routing import RECIPIENT_PREFIX, encode_routing
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient
from tests.integration.gateway.own_topics import settings_on
from tests.integration.gateway.test_gateway_kafka import Engine, accepted, running
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import publish

FIRST = 32_768
PARTITIONS = 4


@pytest.fixture
def settings(kafka: SharedKafka) -> GatewaySettings:
    own = settings_on(kafka, "fast", group_session_timeout_ms=6_000)
    # A test may pause while its device still answers: unread answers would keep its window full.
    limits = replace(own.device_limits, max_delay_ms=0)
    return replace(own, fast_path=replace(own.fast_path, pressure_loop_lag_ms=60_000), device_limits=limits)


class Backend:
    """Sends messages, and knows where they are."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._topic, self._routes = settings.fast_path.messages_topic, settings.fast_path.routes_topic
        self._producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)

    def send(self, client_id: str, payload: bytes = b"p", *, qos: int = 1) -> Position:
        headers = [("mqtt-topic", b"t"), ("mqtt-qos", b"%d" % qos)]
        record = self._producer.send(self._topic, value=payload, key=client_id.encode(), headers=headers).get(30)
        return Position(record.partition, record.offset)

    def send_routed(self, entries: dict[str, Routing], payload: bytes) -> Position:
        """Sends one record to clients whose messages are in one partition, as a matcher does."""
        (partition,) = {partition_of(client_id.encode(), PARTITIONS) for client_id in entries}
        recipients = [(RECIPIENT_PREFIX + client_id, encode_routing(entry)) for client_id, entry in entries.items()]
        headers = [("mqtt-topic", b"t"), ("mqtt-qos", b"0"), *recipients]
        record = self._producer.send(self._topic, value=payload, headers=headers, partition=partition).get(30)
        return Position(record.partition, record.offset)

    def set_route(self, client_id: str, connected: ClientConnected) -> None:
        command = SetRoute(connection_id=connected.connection_id, partition=connected.commands_partition)
        record = route_record(self._routes, client_id, command)
        self._producer.send(self._routes, value=record.value, key=record.key).get(30)


class GrantingEngine(Engine):
    """Adopts what gateways say that they have sent, as a session that is never in their way; and its backend."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__(settings)
        self.accepting.fields = {"send_quota": 32, "max_awaiting_rel": 100}
        self.backend = Backend(settings)

    def grant(self, client_id: str, after: Position, **fields: Any) -> None:
        self.command(client_id, OpenFastPath, after=after, is_snapshot=True, subscriptions=(), **fields)

    def open_for(self, client_id: str, device: RawClient) -> None:
        """The first message is the session's; the next ones come by the fast path, as soon as a router reads them."""
        self.wait_for(client_id, ClientConnected)
        self.grant(client_id, self.backend.send(client_id, b"first"))
        self.await_router(client_id, device)

    def await_router(self, client_id: str, device: RawClient) -> None:
        """Returns when messages reach the device by the fast path."""

        numbers = itertools.count()

        def arrives() -> bool:
            payload = b"probe %d" % next(numbers)
            position = self.backend.send(client_id, payload, qos=0)
            while device.has_more(0.5):
                if device.packet() == publish("t", payload, v5=b""):  # else an older one, that has come late
                    self.fast_sent(client_id, position)
                    return True
            self.grant(client_id, position)
            return False

        wait_until(arrives, f"a message reaches {client_id} by the fast path")

    def send_fast(self, client_id: str, device: RawClient, payload: bytes) -> None:
        """A message that is on its way to the device when this returns. An offer may be lost, as when routers share out their
        partitions anew; the session sends that message, and opens the fast path again."""
        position = self.backend.send(client_id, payload)
        if not device.has_more(5):
            self.grant(client_id, position)
            self.await_router(client_id, device)
            self.backend.send(client_id, payload)

    def fast_sent(self, client_id: str, position: Position) -> FastSent:
        """The gateway's event for the message at that position; waits for it."""

        def found() -> list[FastSent]:
            return [event for event in self.of(client_id, FastSent) if event.position == position]

        return wait_until(found, f"the gateway says that it has sent {position}")[0]


def sent(packet_id: int, payload: bytes, *, qos: int = 1) -> bytes:
    return publish("t", payload, first_byte=0x30 | qos << 1, packet_id=packet_id if qos else None, v5=b"")


def ack(first_byte: int, packet_id: int) -> bytes:
    return bytes((first_byte, 2)) + packet_id.to_bytes(2, "big")


@contextmanager
def device_of(engine: GrantingEngine, gateway: GatewayUnderTest, client_id: str) -> Iterator[RawClient]:
    with accepted(gateway, client_id) as device:
        engine.open_for(client_id, device)
        yield device


def await_shared(first: GatewayUnderTest, second: GatewayUnderTest) -> None:
    """Waits until each gateway has two partitions of commands. The first closes its connections in those that it hands over."""
    wait_until(lambda: [each.counters.partitions_owned for each in (first, second)] == [2, 2], "each has its partitions")


@pytest.mark.promise("engine-stands-still")
def test_a_gateway_offers_what_it_reads_to_the_one_that_has_the_device(settings: GatewaySettings) -> None:
    """Each of two gateways has a client in every partition of messages, so the other gateway's router reads some of them."""
    clients = [f"d{number}" for number in range(8)]
    with GrantingEngine(settings) as engine, running(settings) as first, running(settings) as second:
        await_shared(first, second)
        devices = {name: accepted((first, second)[number % 2], name) for number, name in enumerate(clients)}
        for name in clients:
            engine.backend.set_route(name, engine.wait_for(name, ClientConnected)[-1])
        for name in clients:
            engine.open_for(name, devices[name])
        for number in range(5):
            for name in clients:
                engine.send_fast(name, devices[name], b"%d" % number)
                devices[name].expect(sent(FIRST + number, b"%d" % number))
                devices[name].send(ack(0x40, FIRST + number))
        for device in devices.values():
            device.socket.close()


def test_one_record_reaches_each_recipient_at_its_gateway(settings: GatewaySettings) -> None:
    names = [f"r{number}" for number in range(100) if partition_of(b"r%d" % number, PARTITIONS) == 1]
    here, there, nowhere = names[:3]
    with GrantingEngine(settings) as engine, running(settings) as first, running(settings) as second:
        await_shared(first, second)
        devices = {here: accepted(first, here), there: accepted(second, there)}
        for name in devices:
            engine.backend.set_route(name, engine.wait_for(name, ClientConnected)[-1])
        for name, device in devices.items():
            engine.open_for(name, device)
        marks = itertools.count(1)

        def arrives() -> bool:
            """Each recipient gets the record. An offer may be lost, as when routers share out their partitions anew."""
            mark, missing = next(marks), []
            entries = {
                name: Routing(source=0, mark=mark, connection_id=0, version=0, qos=QoS(0), subscription_ids=(number,))
                for number, name in enumerate((here, there, nowhere), 1)
            }
            position = engine.backend.send_routed(entries, b"%d" % mark)
            for number, (name, device) in enumerate(devices.items(), 1):
                expected = publish("t", b"%d" % mark, v5=b"\x0b%c" % number)
                while (has_more := device.has_more(2)) and device.packet() != expected:
                    pass
                if not has_more:
                    missing.append(name)
                    engine.grant(name, position)
                    continue
                routing = engine.fast_sent(name, position).message.routing
                assert routing is not None
                assert (routing.mark, routing.subscription_ids) == (mark, (number,))
            return not missing

        wait_until(arrives, "one record arrives by the fast path of both gateways")
        for device in devices.values():
            device.socket.close()


def test_a_gateway_that_takes_over_reads_from_the_end(settings: GatewaySettings) -> None:
    with GrantingEngine(settings) as engine, running(settings) as stays, ExitStack() as leaving:
        await_shared(stays, leaving.enter_context(running(settings)))
        with accepted(stays, "d1") as device:
            engine.backend.set_route("d1", engine.wait_for("d1", ClientConnected)[-1])
            engine.open_for("d1", device)
            leaving.close()
            engine.await_router("d1", device)
            position = engine.backend.send("d1", b"last")
            device.expect(sent(FIRST, b"last"))
            assert engine.fast_sent("d1", position).packet_id == FIRST


def test_without_the_fast_path_nothing_is_read_and_nothing_taken(settings: GatewaySettings) -> None:
    off = replace(settings, fast_path=replace(settings.fast_path, enabled=False))
    with GrantingEngine(settings) as engine, running(off) as gateway, accepted(gateway, "d1") as device:
        connected = engine.wait_for("d1", ClientConnected)[-1]
        assert connected.capabilities == 0
        engine.grant("d1", engine.backend.send("d1", b"first"))
        engine.backend.send("d1", b"second")
        assert device.is_silent(1.0)
        assert not any(thread.name.startswith("inflight-rout") for thread in threading.enumerate())


def test_a_router_that_is_behind_goes_on_at_the_end(settings: GatewaySettings) -> None:
    lagging = replace(settings, fast_path=replace(settings.fast_path, max_lag=1, max_lag_of_few=1, pressure_offers=1_000_000))
    with GrantingEngine(settings) as engine, running(lagging) as gateway, device_of(engine, gateway, "d1") as device:
        producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, linger_ms=100)
        headers = [("mqtt-topic", b"t"), ("mqtt-qos", b"0")]
        for _ in range(2_000):
            producer.send(settings.fast_path.messages_topic, value=b"many", key=b"d1", headers=headers)
        producer.flush()
        producer.close()

        def current() -> bool:
            position = engine.backend.send("d1", b"now", qos=0)
            device.socket.settimeout(1.0)
            with suppress(TimeoutError):
                while device.packet() != publish("t", b"now", v5=b""):
                    pass
                return True
            engine.grant("d1", position)
            return False

        wait_until(current, "what is sent now arrives")
        assert gateway.counters.offers_taken < 1_500
