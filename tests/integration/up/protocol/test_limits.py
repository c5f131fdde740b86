"""docs/protocol.md on the sockets of devices: Receive Maximum and Maximum Packet Size, of the device and of the server."""

from dataclasses import replace

import paho.mqtt.client as paho
import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_device import PahoDevice
from tests.integration.up.protocol.conftest import both_versions
from tests.integration.up.wire_device import (
    MAXIMUM_PACKET_SIZE,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Backend,
    WireDevice,
    acknowledgement,
    receive_maximum,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_receive_maximum_of_1_is_strict_order_and_qos_0_passes_by(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-2] [MQTT-4.9.0-3]"""
    with WireDevice(up.mqtt, "one-by-one", 5, properties=receive_maximum(1)) as device:
        backend.send("one-by-one", b"1", b"2", b"3", qos=1)
        backend.send("one-by-one", b"passes by", qos=0)
        first = device.receive()
        assert device.receive().payload == b"passes by"
        device.finish(first)
        second = device.receive()
        backend.send("one-by-one", b"this too", qos=0)
        assert device.receive().payload == b"this too"
        device.finish(second)
        third = device.receive()
        device.finish(third)
        assert [first.payload, second.payload, third.payload] == [b"1", b"2", b"3"]


def test_a_receive_maximum_of_65535_lets_everything_out_at_once(up: SharedUp, backend: Backend) -> None:
    with WireDevice(up.mqtt, "wide-5", 5, properties=receive_maximum(65_535)) as device:
        payloads = [b"%d" % number for number in range(500)]
        backend.send("wide-5", *payloads)
        received = [device.receive() for _ in payloads]
        assert [message.payload for message in received] == payloads
        assert len({message.packet_id for message in received}) == 500
        for message in received:
            device.finish(message)
        assert backend.outcomes([f"wide-5/{payload.decode()}" for payload in payloads]) == ["delivered"] * 500


def test_a_smaller_receive_maximum_on_resume_lets_the_window_drain_first(up: SharedUp, backend: Backend) -> None:
    """[MQTT-4.9.0-1]; the quota is that of the connection, and nothing new goes out before the old."""
    with WireDevice(up.mqtt, "shrinking", 5, properties=receive_maximum(4)) as device:
        backend.send("shrinking", b"1", b"2", b"3", b"4", b"5")
        first = [device.receive() for _ in range(4)]
    with WireDevice(up.mqtt, "shrinking", 5, properties=receive_maximum(1)) as device:
        for number, message in enumerate(first):
            assert device.receive() == replace(message, dup=True)
            backend.send("shrinking", b"passes by %d" % number, qos=0)
            assert device.receive().payload == b"passes by %d" % number
            device.finish(message)
        fifth = device.receive()
        assert (fifth.payload, fifth.dup) == (b"5", False)
        device.finish(fifth)


def test_a_message_too_large_for_the_device_is_skipped_with_an_outcome(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    properties = bytes((MAXIMUM_PACKET_SIZE,)) + (100).to_bytes(4, "big")
    with WireDevice(up.mqtt, "small", 5, properties=properties) as device:
        (large,) = backend.send("small", b"x" * 100)
        (fitting,) = backend.send("small", b"y" * 80)
        message = device.receive()
        assert message.payload == b"y" * 80
        device.finish(message)
        assert backend.outcomes([large, fitting]) == ["too-large", "delivered"]


def test_one_unreleased_publication_too_many_ends_the_connection_and_a_repetition_is_not_too_many(
    up: SharedUp, backend: Backend
) -> None:
    """[MQTT-3.3.4-7]"""
    name, level = "narrow-5", 5
    with WireDevice(up.mqtt, name, level) as device:
        assert receive_maximum(2) in device.connack
        for packet_id, dup in ((1, False), (2, False), (1, True), (2, False)):
            device.publish(b"%d" % packet_id, qos=2, packet_id=packet_id, dup=dup)
            device.expect(acknowledgement(PUBREC, packet_id))
        device.publish(b"3", qos=2, packet_id=3)
        device.expect_disconnect(0x93)
    with WireDevice(up.mqtt, name, level) as device:
        device.send(acknowledgement(PUBREL, 1))
        device.expect(acknowledgement(PUBCOMP, 1))  # known to the session over the connections
        device.publish(b"3", qos=2, packet_id=3, dup=True)
        device.expect(acknowledgement(PUBREC, 3))
    assert backend.uplink(name, last=b"3") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["many", "narrow-4"])
def test_paho_with_mqtt_3_1_1_finishes_500_publications_that_it_sends_at_once(up: SharedUp, backend: Backend, name: str) -> None:
    """By default, and with a `max_awaiting_rel` of 2: all PUBLISHes are on the wire before the first PUBREL."""
    with PahoDevice(up, name, paho.MQTTv311, max_inflight=1_000) as device:
        done: set[int] = set()
        connections: list[int] = []
        device.client.on_connect = lambda client, data, flags, reason, properties: connections.append(1)
        device.client.on_publish = lambda client, data, packet_id, reason, properties: done.add(packet_id)
        payloads = [b"%d" % number for number in range(500)]
        for payload in payloads:
            device.client.publish("up/t", payload, qos=2)
        wait_until(lambda: len(done) == 500, lambda: f"{len(done)} PUBCOMPs of 500, {len(connections)} reconnects")
        assert connections == []
    assert backend.uplink(name, last=b"499") == payloads


@both_versions
def test_a_packet_over_the_servers_limit_ends_the_connection_before_its_body_has_come(up: SharedUp, level: int) -> None:
    with WireDevice(up.mqtt, f"huge-{level}", level) as device:
        if level == 5:
            assert bytes((MAXIMUM_PACKET_SIZE,)) + (512 << 10).to_bytes(4, "big") in device.connack
        device.send("30 ff ff ff 7f")
        device.expect_disconnect(0x95)
