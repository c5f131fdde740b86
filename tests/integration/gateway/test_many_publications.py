"""A device with more QoS 2 publications under way than `max_awaiting_rel`: with the real gateway and session, without Kafka."""

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.process import run_gateway
from sinks.mqtt.settings import GatewaySettings
from state.commands import ForwardPublication
from state.settings import SessionSettings
from tests.integration.gateway.gateway_fakes import RawClient
from tests.integration.gateway.session_engine import Port, SessionEngine, on_loop, running_loop
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

COUNT = 500


@dataclass
class Running:
    engine: SessionEngine
    counters: GatewayCounters
    address: tuple[str, int]

    def handed_on(self) -> list[bytes]:
        return [command.payload for command in list(self.engine.records) if isinstance(command, ForwardPublication)]


@contextmanager
def running(**settings: int) -> Iterator[Running]:
    """A gateway on a free port, and sessions behind it; settings: of the gateway."""
    engine, counters = SessionEngine(SessionSettings(), partitions=1), GatewayCounters()
    address: list[tuple[str, int]] = []
    with running_loop() as loop:
        tasks: list[asyncio.Task[None]] = []
        ready, stop = threading.Event(), asyncio.Event()

        def on_ready(host: str, port: int) -> None:
            address.append((host, port))
            ready.set()

        async def start() -> None:
            port = Port(engine)
            used = dataclasses.replace(GatewaySettings(**settings), port=0)  # type: ignore[arg-type]
            tasks.append(asyncio.ensure_future(engine.run()))
            tasks.append(asyncio.ensure_future(run_gateway(used, port, port, on_ready=on_ready, stop=stop, counters=counters)))

        async def end() -> None:
            stop.set()
            await tasks[1]
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)

        on_loop(loop, start())
        try:
            assert ready.wait(DEADLINE_S)
            yield Running(engine, counters, address[0])
        finally:
            on_loop(loop, end())


@pytest.mark.parametrize("clean_session", [False, True])
def test_a_device_of_mqtt_3_1_1_finishes_500_publications_at_once(clean_session: bool) -> None:
    """An MQTT 3.1.1 device has no Receive Maximum to respect, and sends its PUBRELs after all its PUBLISHes."""
    connections: list[int] = []
    done: set[int] = set()
    with running() as broker:
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id="many", protocol=paho.MQTTv311, clean_session=clean_session)
        client.max_inflight_messages_set(1_000)
        client.on_connect = lambda client, data, flags, reason, properties: connections.append(1)
        client.on_publish = lambda client, data, packet_id, reason, properties: done.add(packet_id)
        payloads = [b"%d" % number for number in range(COUNT)]
        for payload in payloads:
            client.publish("up/t", payload, qos=2)
        client.connect(*broker.address)
        client.loop_start()
        try:
            wait_until(
                lambda: len(done) == COUNT,
                lambda: f"{len(done)} PUBCOMPs of {COUNT}, {len(connections)} connections",
            )
        finally:
            client.disconnect()
            client.loop_stop()
        wait_until(lambda: len(broker.handed_on()) >= COUNT, "everything handed on")
        assert broker.handed_on() == payloads
        assert len(connections) == 1
        assert not broker.counters.protocol_errors


def test_mqtt_5_answers_what_it_accepted_before_an_overflow() -> None:
    """[MQTT-3.3.4-7] However the publications are divided when they are read."""
    with running() as broker, RawClient(socket.create_connection(broker.address, DEADLINE_S)) as device:
        device.send(connect(level=5, properties=b"\x11\x00\x00\x0e\x10"))
        assert device.packet()[0] == 0x20
        device.send(b"".join(publish("t", b"%d" % i, first_byte=0x34, packet_id=i, v5=b"") for i in range(1, COUNT + 1)))
        for packet_id in range(1, 101):
            device.expect(bytes((0x50, 2)) + packet_id.to_bytes(2, "big"))
        device.expect("e0 01 93")
        device.expect_closed()
        wait_until(lambda: len(broker.handed_on()) >= 100, "what was accepted")
        assert broker.handed_on() == [b"%d" % number for number in range(1, 101)]
