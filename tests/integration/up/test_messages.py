"""protocol.md on the sockets of devices: what they are sent, what comes again after a lost connection, and limits.

One `inflight up` serves all tests; each has client ids of its own. What comes next shows that something is not sent: a QoS 0
message passes a full window, and a later message comes behind an earlier one.
"""

from dataclasses import replace

import paho.mqtt.client as paho
import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_device import PahoDevice
from tests.integration.up.topics_of_up import await_gone
from tests.integration.up.wire_device import (
    MAXIMUM_PACKET_SIZE,
    PATIENCE_S,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Backend,
    Received,
    WireDevice,
    acknowledgement,
    both_versions,
    receive_maximum,
)
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import text


@both_versions
def test_the_granted_qos_of_a_matching_subscription_caps_the_qos(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.8.4-8] and [MQTT-3.10.4-1]: an unsubscribed filter caps nothing."""
    name = f"capped-{level}"
    empty = b"\x00" if level == 5 else b""
    with WireDevice(up.mqtt, name, level) as device:
        subscribe = b"\x00\x01" + empty + text("cmd") + b"\x00"
        device.send(bytes((0x82, len(subscribe))) + subscribe)
        device.expect(b"\x90" + bytes((3 + len(empty),)) + b"\x00\x01" + empty + b"\x00")
        backend.send(name, b"capped", qos=2)
        assert device.receive() == Received(b"capped", qos=0, dup=False, packet_id=0)
        unsubscribe = b"\x00\x02" + empty + text("cmd")
        device.send(bytes((0xA2, len(unsubscribe))) + unsubscribe)
        device.expect(b"\xb0\x02\x00\x02" if level == 4 else b"\xb0\x04\x00\x02\x00\x00")
        device.send(bytes((0xA2, len(unsubscribe))) + unsubscribe)
        device.expect(b"\xb0\x02\x00\x02" if level == 4 else b"\xb0\x04\x00\x02\x00\x11")
        backend.send(name, b"free", qos=2)
        message = device.receive()
        assert (message.payload, message.qos) == (b"free", 2)
        device.finish(message)


def test_the_device_is_told_what_is_left_of_a_messages_life(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    with WireDevice(up.mqtt, "expiring", 5):
        pass
    await_gone(up, "expiring")
    backend.send("expiring", b"old", expiration="60000")
    (over,) = backend.send("expiring", b"over", expiration="2000")
    backend.send("expiring", b"for ever")
    assert backend.outcome(over) == "expired"  # without any traffic of the device
    with WireDevice(up.mqtt, "expiring", 5) as device:
        old, for_ever = device.receive(), device.receive()
        assert (old.payload, for_ever.payload) == (b"old", b"for ever")
        assert for_ever.expiry_interval_s is None
        assert old.expiry_interval_s is not None
        assert 60 - PATIENCE_S < old.expiry_interval_s <= 58


@both_versions
def test_a_reconnect_replays_all_unfinished_with_dup_and_its_ids(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1] [MQTT-4.3.3-6]"""
    name = f"replay-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        assert not device.session_present
        for number, qos in enumerate((1, 2, 1, 2), start=1):
            backend.send(name, b"%d" % number, qos=qos)
        first = [device.receive() for _ in range(4)]
        assert [(message.payload, message.qos, message.dup) for message in first] == [
            (b"1", 1, False),
            (b"2", 2, False),
            (b"3", 1, False),
            (b"4", 2, False),
        ]
        assert len({message.packet_id for message in first}) == 4
        device.answer(PUBREC, first[1])
        device.expect(acknowledgement(PUBREL, first[1].packet_id))
    with WireDevice(up.mqtt, name, level) as device:
        assert device.session_present
        assert device.receive() == replace(first[0], dup=True)
        device.expect(acknowledgement(PUBREL, first[1].packet_id))
        assert device.receive() == replace(first[2], dup=True)
        assert device.receive() == replace(first[3], dup=True)
        device.answer(PUBACK, first[0])
        device.answer(PUBCOMP, first[1])
        device.answer(PUBACK, first[2])
        device.finish(first[3])
        assert backend.outcomes([f"{name}/{number}" for number in range(1, 5)]) == ["delivered"] * 4
        backend.send(name, b"5")
        last = device.receive()
        assert (last.payload, last.dup) == (b"5", False)
        device.finish(last)


def test_a_window_of_two_through_lost_acknowledgements(up: SharedUp, backend: Backend) -> None:
    """protocol.md, section 2: the resends after the retry interval come before what is new."""
    with WireDevice(up.mqtt, "window-2", 4) as device:
        backend.send("window-2", b"1", b"2", b"3", b"4")
        received = [device.receive(), device.receive()]
        device.answer(PUBACK, received[0])  # then the line goes bad: what follows is received, its acknowledgements are lost
        received += [device.receive(), device.receive(), device.receive()]
        for message in received[3:]:
            device.answer(PUBACK, message)
        received.append(device.receive())
        device.answer(PUBACK, received[5])
        assert [(message.payload, message.dup) for message in received] == [
            (b"1", False),
            (b"2", False),
            (b"3", False),
            (b"2", True),
            (b"3", True),
            (b"4", False),
        ]


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5], ids=["3.1.1", "5"])
def test_paho_that_loses_its_socket_gets_what_it_did_not_acknowledge(up: SharedUp, backend: Backend, version: int) -> None:
    name = f"paho-{version}"
    with PahoDevice(up, name, version) as device:
        backend.send(name, b"a", b"b", b"c")
        wait_until(lambda: len(device.messages) == 3, "three messages")
        device.cut()
        wait_until(lambda: len(device.messages) == 6, "the replay")
        assert [(message.payload, message.dup) for message in device.messages] == [
            *((payload, False) for payload in (b"a", b"b", b"c")),
            *((payload, True) for payload in (b"a", b"b", b"c")),
        ]
        assert [message.mid for message in device.messages[:3]] == [message.mid for message in device.messages[3:]]
        for message in device.messages[3:]:
            device.client.ack(message.mid, message.qos)
        assert backend.outcomes([f"{name}/{letter}" for letter in "abc"]) == ["delivered"] * 3
        # QoS 2 in both directions at once, and the line goes bad again.
        device.client.manual_ack_set(False)
        device.messages.clear()
        sent = backend.send(name, *(b"d%d" % number for number in range(20)), qos=2)
        published = [device.client.publish("up/t", b"u%d" % number, qos=2) for number in range(20)]
        wait_until(lambda: device.messages, "a message")
        device.cut()
        assert backend.outcomes(sent) == ["delivered"] * 20
        for info in published:
            info.wait_for_publish(PATIENCE_S)
        assert [message.payload for message in device.messages] == [b"d%d" % number for number in range(20)]
        assert backend.uplink(name, last=b"u19") == [b"u%d" % number for number in range(20)]


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


def test_one_unreleased_publication_too_many_ends_the_connection(up: SharedUp, backend: Backend) -> None:
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
@pytest.mark.promise("max-awaiting-rel")
def test_paho_with_mqtt_3_1_1_finishes_500_publications_at_once(up: SharedUp, backend: Backend, name: str) -> None:
    """Every PUBLISH is on the wire before the first PUBREL, by default and with a `max_awaiting_rel` of 2."""
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
