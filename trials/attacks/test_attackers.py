"""trials.attacks.attackers, against a gateway without Kafka: each does what it says, and that is no error of the gateway."""

import asyncio

import pytest

from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from tests.integration.gateway.gateway_fakes import running_gateway
from tests.unit.sinks.mqtt.mqtt_bytes import connect
from trials.attacks.attackers import ATTACKS, attack

LIMITS = DeviceLimits(max_connections=4_000, max_total_buffered_bytes=8 << 20)
SECONDS = 2.0


@pytest.mark.faults
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_does_something_and_no_error_of_the_gateway_comes_of_it(name: str) -> None:
    with running_gateway(GatewaySettings(device_limits=LIMITS)) as gateway, gateway.socket() as good:
        good.send(connect())
        good.expect("20020000")
        done = asyncio.run(attack(name, (gateway.host, gateway.port), ATTACKS[name].small, SECONDS))
        assert sum(done.values()) > 0
        good.send("c000")
        good.expect("d000")
        assert gateway.counters.bugs == 0
