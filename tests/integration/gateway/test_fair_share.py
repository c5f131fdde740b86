"""Who is slowed down for whom, on real sockets and with a Kafka that is slow when it is told to be."""

import time

from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.settings import GatewaySettings
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

SLOW_S = 0.3
SETTINGS = GatewaySettings(device_limits=DeviceLimits(max_delay_ms=100))
"""More than this machine is ever late by itself."""


def _connected(gateway: GatewayUnderTest, device: RawClient, name: str) -> None:
    device.send(connect(payload=text(name), keep_alive_s=0))
    device.expect("20020000")


def _one_that_is_slow(gateway: GatewayUnderTest, device: RawClient, count: int) -> None:
    """Publications that Kafka takes `SLOW_S` for, after one that it has taken at once."""
    device.send(publish("t", first_byte=0x32, packet_id=1))
    device.expect("40020001")
    before = len(gateway.kafka.uplink())
    gateway.kafka.holding = lambda record: record.topic.endswith("uplink")
    device.send(b"".join(publish("t", first_byte=0x32, packet_id=1 + number) for number in range(1, 1 + count)))
    wait_until(lambda: len(gateway.kafka.uplink()) == before + count, "they are with Kafka")
    until_s = time.monotonic() + SLOW_S
    wait_until(lambda: time.monotonic() >= until_s, "it has taken its time")
    gateway.kafka.release()
    for number in range(1, 1 + count):
        device.expect((b"\x40\x02" + (1 + number).to_bytes(2, "big")).hex())


def test_all_have_a_share_only_when_a_device_that_sends_little_has_to_wait() -> None:
    """That one which sends much waits for itself changes nothing: afterwards the share is what one late record makes of 1."""
    with running_gateway(SETTINGS) as gateway, gateway.socket() as much, gateway.socket() as little:
        _connected(gateway, much, "much")
        _one_that_is_slow(gateway, much, 60)
        _connected(gateway, little, "little")
        _one_that_is_slow(gateway, little, 1)
        wait_until(lambda: gateway.counters.fair_share < 1, "everybody has less")
        assert gateway.counters.fair_share >= 0.5
        wait_until(lambda: gateway.counters.fair_share == 1, "nobody is there to wait")
