"""Who is slowed down for whom, on real sockets and with a Kafka that is slow when it is told to be."""

import itertools
import time

from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.settings import GatewaySettings
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

SLOW_S = 1.5
LOOKED_AT_S = 2.5
EVERY_S = 0.3
SETTINGS = GatewaySettings(device_limits=DeviceLimits(max_delay_ms=1_000))
"""More than a busy machine is ever late by itself."""


def _connected(device: RawClient, name: str) -> None:
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


def _lowest_share(gateway: GatewayUnderTest, device: RawClient) -> float:
    """Of a moment in which the gateway looks at it at least twice. The device says something now and then: it is there."""
    seen: list[float] = []
    started_s = time.monotonic()
    said = itertools.count(1)
    due_s = started_s

    def is_over() -> bool:
        nonlocal due_s
        if time.monotonic() >= due_s:
            device.send(publish("t"))
            due_s = started_s + EVERY_S * next(said)
        seen.append(gateway.counters.fair_share)
        return time.monotonic() >= started_s + LOOKED_AT_S

    wait_until(is_over, "it has been looked at")
    return min(seen)


def test_all_have_a_share_only_when_a_device_that_sends_little_has_to_wait() -> None:
    with running_gateway(SETTINGS) as gateway, gateway.socket() as much, gateway.socket() as little:
        _connected(much, "much")
        _one_that_is_slow(gateway, much, 60)
        assert _lowest_share(gateway, much) == 1, "it waits for itself"
        _connected(little, "little")
        _one_that_is_slow(gateway, little, 1)
        assert 0.5 <= _lowest_share(gateway, little) < 1, "everybody has less"
        wait_until(lambda: gateway.counters.fair_share == 1, "nobody is there to wait")
