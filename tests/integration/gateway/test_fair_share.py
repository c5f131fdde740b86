"""A device that waits slows the others down, on real sockets and with a Kafka that is slow on request.

tests/unit/sinks/mqtt/limits/test_adaptive_rate.py has the rules; here a gateway measures how long its devices wait.
"""

import itertools
import time
from contextlib import suppress

from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from tests.integration.gateway.gateway_fakes import running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish


def test_every_share_is_lower_after_a_device_that_sends_little_waited() -> None:
    settings = GatewaySettings(device_limits=DeviceLimits(max_delay_ms=200))
    with running_gateway(settings) as gateway, gateway.socket() as little:
        little.send(connect(keep_alive_s=0))
        little.expect("20020000")
        packet_ids = itertools.count(1)

        def publishes(needs_s: float) -> None:
            """needs_s: so long Kafka does not confirm it."""
            packet_id = next(packet_ids)
            gateway.kafka.holding = lambda record: record.topic.endswith("uplink")
            little.send(publish("t", first_byte=0x32, packet_id=packet_id))
            wait_until(lambda: len(gateway.kafka.uplink()) == packet_id, "it is with Kafka")
            time.sleep(needs_s)
            gateway.kafka.release()
            little.expect(b"\x40\x02" + packet_id.to_bytes(2, "big"))

        def is_lowered() -> bool:
            """A busy machine may miss the second in which it is."""
            publishes(0.5)
            with suppress(AssertionError):
                return wait_until(lambda: gateway.counters.fair_share < 1, "everybody has less", within_s=1.5)
            return False

        publishes(0)
        wait_until(is_lowered, "everybody has less")
        wait_until(lambda: gateway.counters.fair_share == 1, "nobody is there to wait")
