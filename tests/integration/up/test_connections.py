"""protocol.md on the sockets of devices: connections, the life of a session, wills, and what a device publishes."""

from dataclasses import replace

import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.wire_device import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Backend,
    DeviceWithWill,
    WireDevice,
    acknowledgement,
    both_versions,
)
from tests.unit.sinks.mqtt.mqtt_bytes import packet, publish, text


@both_versions
def test_a_second_connection_takes_the_session_over_and_the_first_is_told(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.1.4-3]"""
    name = f"taken-{level}"
    with WireDevice(up.mqtt, name, level) as first:
        backend.send(name, b"x")
        message = first.receive()
        with WireDevice(up.mqtt, name, level) as second:
            assert second.session_present
            first.expect_disconnect(0x8E)
            assert second.receive() == replace(message, dup=True)
            second.finish(message)
            assert backend.outcome(f"{name}/x") == "delivered"


@both_versions
def test_a_session_ends_when_its_expiry_interval_has_passed(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]: MQTT 5 says how long, for MQTT 3.1.1 the configuration does."""
    name = f"brief-{level}"
    with WireDevice(up.mqtt, name, level, expiry_s=1):
        pass
    assert backend.outcomes(backend.send(name, b"too late")) == ["session_ended"]
    with WireDevice(up.mqtt, name, level, expiry_s=1) as device:
        assert not device.session_present


def test_no_connect_is_refused_whatever_the_one_before_asked_for(up: SharedUp) -> None:
    """[MQTT-3.1.2-23] [MQTT-3.2.2-2]: each connection follows at once. SUBACK says that the session has accepted it."""
    name, for_a_while, gone = "changes-its-mind", "e0 00", "e0 07 00 05 11 00000000"
    turns = [(3_600, for_a_while), (0, for_a_while), (3_600, gone), (3_600, for_a_while), (3_600, for_a_while)]
    seen = []
    for expiry_s, disconnect in turns:
        with WireDevice(up.mqtt, name, 5, expiry_s=expiry_s) as device:
            seen.append(device.session_present)
            device.send(packet(0x82, b"\x00\x09\x00", text("t"), b"\x01"))
            device.expect("90 04 0009 00 01")
            device.send(disconnect)
    assert seen == [False, True, False, False, True]


@both_versions
def test_who_leaves_without_suback_has_subscribed(up: SharedUp, level: int) -> None:
    """A new session, and nobody waits for it."""
    suback = b"\x90\x04\x00\x09\x00\x01" if level == 5 else b"\x90\x03\x00\x09\x01"
    for attempt in range(5):  # a gateway need not read both packets at once
        name = f"hasty-{level}-{attempt}"
        with WireDevice(up.mqtt, name, level) as device:
            device.send(packet(0x82, b"\x00\x09" + b"\x00" * (level == 5), text(f"{name}/t"), b"\x01") + b"\xe0\x00")
            received = device.rest()
        if received != suback:
            break
    assert received == b""
    with WireDevice(up.mqtt, f"{name}-pub", level, expiry_s=None) as publisher:
        v5 = b"" if level == 5 else None
        publisher.send(publish(f"{name}/t", b"p", first_byte=0x32, packet_id=1, v5=v5))
        publisher.expect("40 02 0001")
    with WireDevice(up.mqtt, name, level) as device:
        assert device.session_present
        device.finish(device.receive())


def test_a_delayed_will_is_published_unless_the_client_returns(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9]"""

    def with_will(name: str, *, delay_s: int) -> WireDevice:
        will = bytes((5, 0x18)) + delay_s.to_bytes(4, "big") + text("will/t") + text("bye")
        return WireDevice(up.mqtt, name, 5, flags=0x04, payload=will)

    with with_will("returning", delay_s=6):
        pass
    with WireDevice(up.mqtt, "returning", 5) as returned:
        with with_will("leaving", delay_s=6):
            pass
        assert backend.uplink("leaving", last=b"bye") == [b"bye"]
        assert backend.uplink_headers("leaving")[0]["mqtt-topic"] == b"will/t"
        # The other one's delay began earlier, so its will would be here by now.
        returned.publish(b"end", qos=1, packet_id=1)
        returned.expect(acknowledgement(PUBACK, 1))
    assert backend.uplink("returning", last=b"end") == [b"end"]


@both_versions
@pytest.mark.parametrize("is_reset", [True, False], ids=["lost", "taken over"])
def test_a_device_that_is_back_publishes_behind_its_will(up: SharedUp, backend: Backend, level: int, is_reset: bool) -> None:
    """[MQTT-3.1.4-3] [MQTT-3.1.2-8] A birth message would else be overwritten: the device looked dead for ever."""
    name = f"back-{level}-{is_reset}"
    with DeviceWithWill(up.mqtt, name, level) as device:
        device.retain(b"online 1")
        if is_reset:
            device.reset()
        with DeviceWithWill(up.mqtt, name, level) as again:
            again.retain(b"online 2")
            assert backend.uplink(name, last=b"online 2") == [b"online 1", b"offline", b"online 2"]
            assert again.retained_value() == b"online 2"


@both_versions
def test_a_qos_2_publication_is_handed_on_once_whatever_its_dup_flag_says(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12]; a copy has the same `inflight-id`."""
    name = f"twice-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        for dup in (False, True, False):
            device.publish(b"a", qos=2, packet_id=7, dup=dup)
            device.expect(acknowledgement(PUBREC, 7))
    with WireDevice(up.mqtt, name, level) as device:
        for dup in (True, False):
            device.publish(b"a", qos=2, packet_id=7, dup=dup)
            device.expect(acknowledgement(PUBREC, 7))
        device.send(acknowledgement(PUBREL, 7))
        device.expect(acknowledgement(PUBCOMP, 7))
        device.publish(b"released, so new", qos=2, packet_id=7, dup=True)
        device.expect(acknowledgement(PUBREC, 7))
        device.publish(b"unseen, so new", qos=2, packet_id=8, dup=True)
        device.expect(acknowledgement(PUBREC, 8))
        device.publish(b"the same content", qos=2, packet_id=9)
        device.expect(acknowledgement(PUBREC, 9))
        device.publish(b"the same content", qos=2, packet_id=10)
        device.expect(acknowledgement(PUBREC, 10))
        device.publish(b"end", qos=2, packet_id=11)
        device.expect(acknowledgement(PUBREC, 11))
    expected = [b"a", b"released, so new", b"unseen, so new", b"the same content", b"the same content", b"end"]
    assert backend.uplink(name, last=b"end") == expected


def test_a_topic_alias_stands_for_its_topic_on_its_connection_only(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.3.2-12]; an alias ends with its connection [MQTT-3.3.2-7]."""
    alias = b"\x23\x00\x05"
    by_alias_only = b"\x00\x00\x03" + alias
    with WireDevice(up.mqtt, "alias", 5) as device:
        device.publish(b"named", qos=0, packet_id=0, properties=alias)
        device.send(bytes((0x30, len(by_alias_only) + 3)) + by_alias_only[:2] + by_alias_only[2:] + b"end")
        assert backend.uplink("alias", last=b"end") == [b"named", b"end"]
        assert [headers["mqtt-topic"] for headers in backend.uplink_headers("alias")] == [b"up/t", b"up/t"]
    with WireDevice(up.mqtt, "alias", 5) as device:
        device.send(bytes((0x30, len(by_alias_only))) + by_alias_only)
        device.expect_disconnect(0x82)
