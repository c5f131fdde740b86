"""A gateway that is drained, on real sockets, with an in-process stand-in for Kafka (gateway_fakes.py)."""

import time

import pytest

from sinks.health import STOPPING
from sinks.mqtt.settings import GatewaySettings
from state.events import ConnectionLost
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, Record, running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

GOODBYE = bytes.fromhex("e0018b")


def device(gateway: GatewayUnderTest, name: str, *, level: int = 5) -> RawClient:
    """Connected."""
    client = gateway.socket()
    client.send(connect(level=level, payload=text(name)))
    assert client.packet()[3] == 0
    return client


def is_an_end(record: Record) -> bool:
    return record.topic.endswith("events") and b"stopping" in record.value


@pytest.mark.promise("gateway-stop")
def test_a_device_is_let_go_when_kafka_has_what_it_said_and_its_end() -> None:
    with running_gateway() as gateway:
        going = device(gateway, "going")
        gateway.kafka.holding = lambda record: record.topic.endswith(("events", "uplink"))
        going.send(publish("up", b"last words", first_byte=0x32, packet_id=7, v5=b""))
        wait_until(gateway.kafka.uplink, "it is read")
        gateway.stop()
        lost = gateway.kafka.wait_for("going", ConnectionLost)[0]
        assert lost.reconnect_grace_ms == GatewaySettings().reconnect_grace_ms, "its will waits for it to come back"
        assert going.is_silent(0.3), "it could be back elsewhere before its end is in the log"
        gateway.kafka.release()
        assert going.packet()[:4] == bytes.fromhex("40020007"), "what it said is acknowledged"
        assert going.rest() == GOODBYE
    assert len(gateway.kafka.of("going", ConnectionLost)) == 1
    assert gateway.counters.appends_unconfirmed == 0


def test_a_draining_gateway_takes_nobody_in_and_is_not_ready() -> None:
    with running_gateway() as gateway:
        going, early = device(gateway, "going"), gateway.socket()
        wait_until(lambda: gateway.counters.sockets_open == 2, "the socket without a CONNECT is there")
        gateway.kafka.holding = is_an_end
        gateway.stop()
        wait_until(lambda: gateway.health.not_ready() == (STOPPING,), "it is not ready")
        assert gateway.health.not_alive() == ()
        early.expect_closed()
        with pytest.raises(ConnectionError):
            gateway.socket()
        assert going.is_silent(), "it is connected"
        gateway.kafka.release()
        assert going.rest() == GOODBYE


def test_a_device_whose_partition_moves_is_let_go_within_a_bounded_time() -> None:
    with running_gateway(GatewaySettings(stop_timeout_ms=1_000), partitions=frozenset({0, 1})) as gateway:
        devices = [device(gateway, "one"), device(gateway, "two")]
        gateway.kafka.holding = lambda record: record.topic.endswith("events")
        began_s = time.monotonic()
        gateway.kafka.revoke(0)
        moved = wait_until(lambda: [name for name in ("one", "two") if gateway.kafka.of(name, ConnectionLost)], "one is lost")
        assert len(moved) == 1
        going = devices[moved == ["two"]]
        assert going.rest() == bytes.fromhex("e00189")
        assert time.monotonic() - began_s > 0.9, "it was not closed at once"
        gateway.kafka.release()  # or its stop would wait for that
