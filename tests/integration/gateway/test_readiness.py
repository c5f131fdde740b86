"""A gateway and a bridge tell a probe what is missing while partitions, lease and broker come and go."""

from sinks.health import NO_BROKER, NO_LEASE, NO_PARTITION, STOPPING
from sinks.mqtt.settings import GatewaySettings
from state.settings import BackoffSettings
from tests.integration.bridge.bridge_fakes import ALL, FakeBroker, running_bridge
from tests.integration.gateway.gateway_fakes import running_gateway
from tests.support.waiting import wait_until


def test_a_gateway_is_ready_while_it_owns_partitions_and_until_it_stops() -> None:
    with running_gateway(partitions=frozenset({0, 1})) as gateway:
        health = gateway.health
        assert health.not_ready() == (), "it has said that it is ready"
        gateway.kafka.revoke(0, 1)
        wait_until(lambda: health.not_ready() == (NO_PARTITION,), "it owns nothing")
        assert health.not_alive() == ()
        gateway.kafka.assign(1)
        wait_until(lambda: health.not_ready() == (), "it owns one again")
    assert health.not_ready() == (STOPPING,)


def test_a_gateway_is_not_ready_when_its_lease_has_passed() -> None:
    with running_gateway(GatewaySettings(lease_ms=2_000)) as gateway:
        gateway.kafka.holding = lambda record: True
        wait_until(lambda: gateway.health.not_ready() == (NO_LEASE,), "Kafka confirms nothing")
        gateway.kafka.release()
        wait_until(lambda: gateway.health.not_ready() == (), "it has another lease")


def test_a_bridge_is_ready_while_it_has_its_broker_and_partitions() -> None:
    broker = FakeBroker()
    with running_bridge(broker) as bridge:
        assert bridge.health.not_ready() == (), "it has said that it is ready"
        bridge.kafka.revoke(*ALL)
        wait_until(lambda: bridge.health.not_ready() == (NO_PARTITION,), "it owns nothing")
    away_for_long = BackoffSettings(initial_ms=60_000, max_ms=60_000)
    with running_bridge(broker := FakeBroker(), backoff=away_for_long) as bridge:
        broker.cut()
        wait_until(lambda: bridge.health.not_ready() == (NO_BROKER,), "the broker is away")
