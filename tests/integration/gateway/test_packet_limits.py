"""A device may send packets of a limited size at a limited rate, on real sockets."""

import time

import pytest

from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from tests.integration.gateway.gateway_fakes import running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text


@pytest.mark.promise("device-rate")
def test_a_flood_is_read_at_its_rate_and_others_are_answered_meanwhile() -> None:
    limits = DeviceLimits(max_packet_rate=500)
    with running_gateway(GatewaySettings(device_limits=limits)) as gateway, gateway.socket() as flood, gateway.socket() as good:
        for name, device in (("flood", flood), ("good", good)):
            device.send(connect(payload=text(name), keep_alive_s=0))
            device.expect("20020000")
        started_s = time.monotonic()
        flood.send(publish("t", b"x") * 1_500)
        good.send(publish("t", first_byte=0x32, packet_id=1))
        good.expect("40020001")
        assert len(gateway.kafka.uplink("flood")) <= 500 * (1 + time.monotonic() - started_s)
        wait_until(lambda: len(gateway.kafka.uplink("flood")) == 1_500, "nothing of the flood is lost")
        assert time.monotonic() - started_s > 1.9
        assert gateway.counters.limits_reached["max_packet_rate"]
        assert gateway.counters.connections_lost == {}
