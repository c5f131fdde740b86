"""Kafka does not confirm, and devices continue to send, on real sockets."""

import contextlib

import pytest

from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from tests.integration.gateway.gateway_fakes import RawClient, running_gateway
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

DEVICES = 10
MESSAGES = 500


def send_until_nobody_reads(device: RawClient, data: bytes) -> int:
    """Returns how many bytes were sent before the socket accepted nothing for a second."""
    device.socket.settimeout(1.0)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(data):
            sent += device.socket.send(data[sent : sent + 65_536])
    device.socket.settimeout(DEADLINE_S)
    return sent


@pytest.mark.promise("more-than-kafka-confirms")
def test_all_devices_together_hold_no_more_than_the_gateway_may() -> None:
    limits = DeviceLimits(max_total_unconfirmed_appends=100)
    with running_gateway(GatewaySettings(device_limits=limits)) as gateway, contextlib.ExitStack() as sockets:
        devices = [sockets.enter_context(gateway.socket()) for _ in range(DEVICES)]
        for number, device in enumerate(devices):
            device.send(connect(payload=text(f"d{number}")))
            device.expect("20020000")
        gateway.kafka.holding = lambda record: record.topic.endswith("uplink")
        for device in devices:
            device.send(b"".join(publish("t", first_byte=0x32, packet_id=number) for number in range(1, MESSAGES + 1)))
        wait_until(lambda: gateway.counters.limits_reached["max_total_unconfirmed_appends"], "it is full")
        assert len(gateway.kafka.uplink()) <= 100 + DEVICES
        gateway.kafka.release()
        for device in devices:
            for number in range(1, MESSAGES + 1):
                device.expect(b"\x40\x02" + number.to_bytes(2, "big"))
        assert len(gateway.kafka.uplink()) == DEVICES * MESSAGES
        assert gateway.counters.connections_lost == {}
