"""docs/protocol.md on the sockets of devices: what a device gets again after its connection is lost, and what it does not."""

from dataclasses import replace

import paho.mqtt.client as paho
import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_device import PahoDevice
from tests.integration.up.protocol.conftest import both_versions
from tests.integration.up.wire_device import (
    PATIENCE_S,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Backend,
    WireDevice,
    acknowledgement,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@both_versions
def test_a_reconnect_is_answered_with_everything_unfinished_in_order_with_dup_and_the_same_ids(
    up: SharedUp, backend: Backend, level: int
) -> None:
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
    """docs/protocol.md, section 2: the resends after the retry interval come before what is new."""
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
def test_paho_that_loses_its_socket_gets_what_it_had_not_acknowledged_and_each_qos_2_message_once(
    up: SharedUp, backend: Backend, version: int
) -> None:
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
