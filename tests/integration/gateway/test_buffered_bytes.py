"""A gateway holds a limited number of bytes for all devices together, on real sockets."""

import contextlib
import socket
import ssl
from pathlib import Path

import pytest

from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from state.commands import SendPublish
from state.events import ConnectionLost
from state.model import QoS
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway, standing_still
from tests.integration.gateway.test_back_pressure import send_until_nobody_reads
from tests.integration.gateway.test_gateway_connections import lazy_device
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

MIB = 1 << 20
LIMIT = 8 * MIB
KEY = "max_total_buffered_bytes"
CONNACK = "20020000"
DEVICES = 10


def settings(**others: object) -> GatewaySettings:
    limits = DeviceLimits(max_total_buffered_bytes=LIMIT)
    return GatewaySettings(device_limits=limits, stalled_write_timeout_ms=600_000, **others)  # type: ignore[arg-type]


def connected(device: RawClient, client_id: str) -> None:
    device.send(connect(payload=text(client_id)))
    device.expect(CONNACK)


def test_devices_that_do_not_read_are_closed_when_all_hold_too_much() -> None:
    with running_gateway(settings()) as gateway, gateway.socket() as good, contextlib.ExitStack() as sockets:
        connected(good, "good")
        for number in range(DEVICES):
            sockets.enter_context(lazy_device(gateway, f"lazy-{number}"))
            payload = b"%d" % number * 1_000
            gateway.kafka.command("good", SendPublish, packet_id=number + 1, topic="t", payload=payload, qos=QoS(1))
            good.expect(publish("t", payload, first_byte=0x32, packet_id=number + 1))
            good.send(b"\x40\x02\x00" + bytes((number + 1,)))
        wait_until(lambda: LIMIT // 4 < gateway.counters.buffered_bytes <= LIMIT, "it is counted")
        good.send("c000")
        good.expect("d000")
        closed = gateway.counters.limits_reached[KEY]
        assert DEVICES // 2 <= closed < DEVICES

        def lost() -> int:
            return sum(bool(gateway.kafka.of(f"lazy-{number}", ConnectionLost)) for number in range(DEVICES))

        # The engine hears of them, and sends everything again when they are back.
        wait_until(lambda: lost() == closed == 1 + DEVICES - gateway.counters.connections_open, "they are closed")


@pytest.mark.parametrize("tls", [False, True])
def test_packets_that_do_not_come_to_their_end_count(tls: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    context = ssl.create_default_context(cafile=authority.file)

    def opened(gateway: GatewayUnderTest) -> RawClient:
        if not tls:
            return gateway.socket()
        plain = socket.create_connection(gateway.addresses[1], timeout=DEADLINE_S)
        return RawClient(context.wrap_socket(plain, server_hostname="localhost"))

    unfinished = publish("t", bytes(500_000))[:-1]
    with running_gateway(settings(listeners=(authority.listener(),))) as gateway, contextlib.ExitStack() as sockets:
        devices = [sockets.enter_context(opened(gateway)) for _ in range(30)]
        for number, device in enumerate(devices):
            connected(device, f"d{number}")
        for device in devices:
            device.send(unfinished)
        wait_until(lambda: gateway.counters.limits_reached[KEY] >= 14, "16 of them fit")
        wait_until(lambda: LIMIT // 2 < gateway.counters.buffered_bytes <= LIMIT, "it is counted")
        assert gateway.counters.connections_open >= 12


def test_a_device_that_sends_too_fast_is_stopped_at_once() -> None:
    """A single read of a socket may bring megabytes unless reading stops after the first piece."""
    limits = DeviceLimits(max_packet_rate=100, max_byte_rate=1 << 30, max_total_buffered_bytes=MIB)
    with running_gateway(GatewaySettings(device_limits=limits)) as gateway, gateway.socket() as device:
        connected(device, "fast")
        device.send(publish("t", bytes(400_000)) * 90)  # now the system gives this socket a large buffer
        wait_until(lambda: gateway.counters.packets_received["Publish"] == 90, "they are read")
        with standing_still(gateway):
            sent = send_until_nobody_reads(device, publish("t", bytes(100)) * 300_000)
        assert sent > 2 * MIB, "so much waits in the socket"
        reached = gateway.counters.limits_reached
        wait_until(lambda: reached["max_packet_rate"] > 0 or not gateway.counters.connections_open, "it sends faster than it may")
        assert gateway.counters.limits_reached[KEY] == 0
        assert gateway.counters.connections_open == 1
