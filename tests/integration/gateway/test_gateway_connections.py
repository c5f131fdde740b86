"""The gateway on real sockets, with an in-process stand-in for Kafka and a scripted engine (gateway_fakes.py)."""

import socket
import time
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest

from sinks.mqtt.settings import GatewaySettings
from state.commands import SendPublish
from state.events import ClientConnected, ClientDisconnected, ConnectionLost, PubAckReceived, PubCompReceived, PublishReceived
from state.model import QoS
from state.records.leases import decode_lease
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.integration.up.paho_subscriber import PahoSubscriber
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.connection.harness import PINGREQ
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

VERSIONS = [paho.MQTTv311, paho.MQTTv5]


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with running_gateway() as running:
        yield running


def paho_device(gateway: GatewayUnderTest, client_id: str, version: int) -> PahoSubscriber:
    return PahoSubscriber((gateway.host, gateway.port), client_id, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_device_publishes_is_in_the_log(gateway: GatewayUnderTest, version: int, qos: int) -> None:
    client_id = f"publisher-{version}-{qos}"
    with paho_device(gateway, client_id, version) as device:
        for number in range(20):
            info = device.client.publish("up/t", str(number), qos=qos)
        info.wait_for_publish(DEADLINE_S)
    gateway.kafka.wait_for(client_id, ClientDisconnected)
    if qos == 2:
        payloads = [event.payload for event in gateway.kafka.of(client_id, PublishReceived)]
    else:
        payloads = [record.value for record in gateway.kafka.uplink(client_id)]
    assert payloads == [str(number).encode() for number in range(20)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_engine_and_a_device_exchange_messages_and_answers(gateway: GatewayUnderTest, version: int, qos: int) -> None:
    client_id = f"receiver-{version}-{qos}"
    with paho_device(gateway, client_id, version) as device:
        for number in range(1, 51):
            gateway.kafka.command(
                client_id, SendPublish, packet_id=number if qos else 0, topic="cmd", payload=b"%d" % number, qos=QoS(qos)
            )
        wait_until(lambda: len(device.messages) == 50, "50 messages")
        assert [message.payload for message in device.messages] == [b"%d" % number for number in range(1, 51)]
        assert {message.qos for message in device.messages} == {qos}
        if qos:
            kind = PubAckReceived if qos == 1 else PubCompReceived
            assert [event.packet_id for event in gateway.kafka.wait_for(client_id, kind, 50)] == list(range(1, 51))


def test_records_that_are_no_commands_are_counted_and_skipped(gateway: GatewayUnderTest) -> None:
    unreadable = gateway.counters.unreadable_commands
    with gateway.socket() as device:
        device.send(connect(payload=text("after-garbage")))
        device.expect("20020000")
        gateway.kafka.deliver(0, [b"", b"\x01\xc1", b"\x02", b"garbage"])
        gateway.kafka.command("after-garbage", SendPublish, packet_id=0, topic="t", payload=b"", qos=QoS(0))
        device.expect(publish("t"))
    assert gateway.counters.unreadable_commands == unreadable + 4


def test_a_revoked_partition_costs_its_connections_and_no_others() -> None:
    with running_gateway() as gateway:
        devices = []
        for number in range(6):
            device = gateway.socket()
            device.send(connect(level=5, payload=text(f"d{number}")))
            assert device.packet()[3] == 0
            devices.append(device)
        gateway.kafka.revoke(0)
        for number, device in enumerate(devices):
            with device:
                if gateway.kafka.of(f"d{number}", ClientConnected)[0].commands_partition == 0:
                    assert device.rest() == bytes.fromhex("e00189")
                    gateway.kafka.wait_for(f"d{number}", ConnectionLost)
                else:
                    device.send("c000")
                    device.expect("d000")
        gateway.kafka.revoke(1)
        with gateway.socket() as refused:
            refused.send(connect(level=5))
            assert refused.rest() == bytes.fromhex("2003008800")
        gateway.kafka.assign(1)
        with gateway.socket() as accepted:
            accepted.send(connect(payload=text("again")))
            accepted.expect("20020000")
        assert gateway.kafka.of("again", ClientConnected)[0].commands_partition == 1


def test_a_lease_that_is_not_renewed_costs_all_connections() -> None:
    with running_gateway(GatewaySettings(lease_ms=1_000)) as gateway:
        with wait_until(lambda: _accepted(gateway, "idle"), "a lease") as device, gateway.socket() as waiting:
            first = gateway.kafka.wait_for("idle", ClientConnected)[-1]
            gateway.kafka.failing = lambda record: record.topic.endswith("leases")
            device.expect("e00189")
            device.expect_closed()
            assert gateway.kafka.wait_for("idle", ConnectionLost)[-1].connection_id == first.connection_id
            # On a busy machine a lease may expire without the test: so nothing here checks how many there are.
            waiting.send(connect(level=5, keep_alive_s=0, payload=text("later")))
            assert waiting.packet()[3] == 0x88
            gateway.kafka.failing = lambda record: False
        again = wait_until(lambda: _accepted(gateway, "idle"), "another lease")
        with again:
            second = gateway.kafka.of("idle", ClientConnected)[-1]
            assert first.lease_id != second.lease_id
            assert all((first.lease_id, second.lease_id))
        assert gateway.counters.leases_lost >= 1
    leases = [decode_lease(record.value) for record in gateway.kafka.records if record.topic.endswith("leases")]
    assert leases[-1].ended, "a gateway that stops ends its lease"
    assert {lease.holder for lease in leases} == {f"gateway 127.0.0.1:{gateway.port}"}, "the port that was free"


def _accepted(gateway: GatewayUnderTest, client_id: str) -> RawClient | None:
    device = gateway.socket()
    device.send(connect(level=5, keep_alive_s=0, payload=text(client_id)))
    if device.packet()[3:4] == b"\x00":
        return device
    device.socket.close()
    return None


def test_a_silent_device_is_closed(gateway: GatewayUnderTest) -> None:
    with gateway.socket() as silent:
        silent.send(connect(level=5, keep_alive_s=1, payload=text("silent")))
        assert silent.packet()[3] == 0
        assert silent.rest() == bytes.fromhex("e0018d")


def test_a_socket_that_sends_no_connect_is_closed() -> None:
    with running_gateway(GatewaySettings(connect_timeout_ms=200)) as gateway, gateway.socket() as mute:
        mute.expect_closed()


def lazy_device(gateway: GatewayUnderTest, client_id: str = "lazy", keep_alive_s: int = 0) -> socket.socket:
    """Returns a socket that has read CONNACK, and reads nothing of the megabytes that the gateway sends then."""
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    lazy.connect((gateway.host, gateway.port))
    lazy.sendall(connect(keep_alive_s=keep_alive_s, payload=text(client_id)))
    assert lazy.recv(4) == bytes.fromhex("20020000")
    for number in range(1, 33):
        gateway.kafka.command(client_id, SendPublish, packet_id=number, topic="t", payload=bytes(200_000), qos=QoS(1))
    return lazy


def test_a_device_that_does_not_read_is_closed_and_holds_nobody_up() -> None:
    settings = GatewaySettings(stalled_write_timeout_ms=500, max_write_buffer_bytes=65_536)
    with running_gateway(settings) as gateway, gateway.socket() as good:
        good.send(connect(payload=text("good")))
        good.expect("20020000")
        lazy = lazy_device(gateway)
        good.send(publish("t", first_byte=0x32, packet_id=2))
        good.expect("40020002")
        gateway.kafka.wait_for("lazy", ConnectionLost)
        lazy.close()


def test_a_slow_device_that_pings_stays_connected() -> None:
    """[MQTT-3.1.2-22] It takes a little of the megabytes in the kernel's buffers all the time, and never all of ours."""
    settings = GatewaySettings(stalled_write_timeout_ms=1_000, max_write_buffer_bytes=65_536)
    with running_gateway(settings) as gateway, lazy_device(gateway, "slow", keep_alive_s=2) as slow:
        wait_until(lambda: gateway.counters.writers_blocked == 1, "it blocks")
        until_s = time.monotonic() + 4  # more than one and a half keep alives
        while time.monotonic() < until_s:
            slow.sendall(PINGREQ)
            assert slow.recv(4_096)
            time.sleep(0.1)
        assert gateway.counters.writers_blocked == 1
        assert gateway.counters.connections_open == 1


def test_sockets_and_what_their_devices_do_not_read_are_counted() -> None:
    with running_gateway(GatewaySettings(max_write_buffer_bytes=65_536)) as gateway:
        counters = gateway.counters
        lazy = lazy_device(gateway)
        wait_until(lambda: counters.writers_blocked == 1, "it blocks")
        assert counters.unsent_bytes > 65_536
        assert counters.sockets_open == 1
        assert counters.partitions_owned > 0
        lazy.close()
        wait_until(lambda: counters.sockets_open == counters.writers_blocked == counters.unsent_bytes == 0, "it is gone")
