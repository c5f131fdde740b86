"""docs/protocol.md on the sockets of devices: acknowledgements, granted QoS, retransmission, life and the queue."""

from dataclasses import replace

import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.protocol.conftest import both_versions
from tests.integration.up.topics_of_up import await_gone
from tests.integration.up.wire_device import (
    PATIENCE_S,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Backend,
    Received,
    WireDevice,
    acknowledgement,
    receive_maximum,
)
from tests.unit.sinks.mqtt.mqtt_bytes import text

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_refusing_pubrec_gets_no_pubrel_and_frees_slot_and_id(up: SharedUp, backend: Backend) -> None:
    """[MQTT-4.4.0-2] [MQTT-4.3.3-4]; MQTT 3.1.1 has no reason codes."""
    with WireDevice(up.mqtt, "refusing", 5, properties=receive_maximum(1)) as device:
        unwanted, passing, next_one = backend.send("refusing", b"unwanted", b"passing", b"next", qos=2)
        first = device.receive()
        assert first.payload == b"unwanted"
        device.answer(PUBREC, first, 0x87)
        second = device.receive()  # nothing came in between, and the only slot is free
        assert second.payload == b"passing"
        assert backend.outcome(unwanted) == "rejected"
        device.answer(PUBREC, second, 0x80)
        again = device.receive()
        assert (again.payload, again.dup) == (b"passing", False)
        assert again.packet_id != second.packet_id
        device.answer(PUBREC, again, 0x97)  # comes again after the backoff, before what is behind it
        later = device.receive()
        assert (later.payload, later.dup) == (b"passing", False)
        device.finish(later)
        assert device.receive().payload == b"next"
        assert backend.outcome(passing) == "delivered"
    assert next_one


@both_versions
def test_acknowledgements_that_nobody_waits_for_are_answered_as_the_standard_says(
    up: SharedUp, backend: Backend, level: int
) -> None:
    name = f"unknown-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        device.send(acknowledgement(PUBACK, 4_711) + acknowledgement(PUBCOMP, 4_711) + acknowledgement(PUBREC, 4_712))
        device.expect(acknowledgement(PUBREL, 4_712, 0x92 if level == 5 else 0))
        device.send(acknowledgement(PUBREL, 4_713))
        device.expect(acknowledgement(PUBCOMP, 4_713, 0x92 if level == 5 else 0))
        backend.send(name, b"still there", qos=2)
        message = device.receive()
        device.answer(PUBREC, message)
        device.expect(acknowledgement(PUBREL, message.packet_id))
        device.answer(PUBREC, message)  # the PUBREL was lost
        device.expect(acknowledgement(PUBREL, message.packet_id))
        device.answer(PUBCOMP, message)
        assert backend.outcome(f"{name}/still there") == "delivered"


@both_versions
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection_and_the_session_goes_on(
    up: SharedUp, backend: Backend, level: int
) -> None:
    name = f"wrong-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        backend.send(name, b"x", qos=2)
        message = device.receive()
        device.answer(PUBACK, message)
        device.expect_disconnect(0x82)
    with WireDevice(up.mqtt, name, level) as device:
        assert device.session_present
        assert device.receive() == replace(message, dup=True)


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


def test_retry_mqtt5_decides_what_a_live_connection_sees_of_an_unacknowledged_message(up: SharedUp, backend: Backend) -> None:
    """[MQTT-4.4.0-1] forbids what `timer` does; MQTT 3.1.1 is resent to whatever the setting."""
    with (
        WireDevice(up.mqtt, "timer-5", 5) as timer,
        WireDevice(up.mqtt, "wait-4", 4) as old,
        WireDevice(up.mqtt, "wait-5", 5) as waiting,
        WireDevice(up.mqtt, "reconnect-5", 5) as stalled,
    ):
        devices = {"timer-5": timer, "wait-4": old, "wait-5": waiting, "reconnect-5": stalled}
        for name in devices:
            backend.send(name, b"x")
        first = {name: device.receive() for name, device in devices.items()}
        assert timer.receive() == replace(first["timer-5"], dup=True)
        assert old.receive() == replace(first["wait-4"], dup=True)
        stalled.expect_disconnect(0x83)
        # By now the time of the fourth is over as well: it was sent to with the others.
        backend.send("wait-5", b"y")
        assert waiting.receive().payload == b"y"
    with WireDevice(up.mqtt, "reconnect-5", 5) as back:
        assert back.receive() == replace(first["reconnect-5"], dup=True)
        back.finish(first["reconnect-5"])


def test_the_device_is_told_what_is_left_of_a_messages_life(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    with WireDevice(up.mqtt, "expiring", 5):
        pass
    await_gone(up, "expiring")
    backend.send("expiring", b"old", expiration="60000", age_ms=20_000)
    (over,) = backend.send("expiring", b"over", expiration="500")
    backend.send("expiring", b"for ever")
    assert backend.outcome(over) == "expired"  # without any traffic of the device
    with WireDevice(up.mqtt, "expiring", 5) as device:
        old, for_ever = device.receive(), device.receive()
        assert (old.payload, for_ever.payload) == (b"old", b"for ever")
        assert for_ever.expiry_interval_s is None
        assert old.expiry_interval_s is not None
        assert 40 - PATIENCE_S < old.expiry_interval_s <= 40


@both_versions
def test_a_full_queue_drops_its_oldest_and_a_higher_priority_goes_first(up: SharedUp, backend: Backend, level: int) -> None:
    name = f"short-{level}"
    with WireDevice(up.mqtt, name, level):
        pass
    await_gone(up, name)
    (oldest,) = backend.send(name, b"oldest")
    backend.send(name, b"normal")
    backend.send(name, b"urgent", priority="9")
    assert backend.outcome(oldest) == "maxlen"
    with WireDevice(up.mqtt, name, level) as device:
        assert device.receive_payloads(2) == [b"urgent", b"normal"]
