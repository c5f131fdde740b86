"""docs/protocol.md on the sockets of devices: connections, the life of a session, wills, and what a device publishes."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.integration.up.conftest import SharedUp
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
from tests.unit.sinks.mqtt.mqtt_bytes import text

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MALFORMED: dict[str, tuple[str, int]] = {
    "a type that only servers send": ("9003000100", 0x82),
    "a second CONNECT": ("100d 0004 4d515454 05 02 0000 00 0000", 0x82),
    "PUBLISH with QoS 3": ("36 05 000161 0001", 0x81),
    "PUBACK too short": ("400100", 0x81),
    "PUBREC with reserved flags": ("51020001", 0x81),
    "PUBREL with reserved flags": ("60020001", 0x81),
    "PUBCOMP with packet id 0": ("70020000", 0x82),
    "SUBSCRIBE with reserved flags": ("8000", 0x81),
    "UNSUBSCRIBE with packet id 0": ("a2 06 0000 00 000161", 0x82),
    "PINGREQ with a body": ("c00100", 0x81),
    "DISCONNECT with reserved flags": ("e100", 0x81),
    "AUTH": ("f000", 0x8C),
}


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


def test_a_disconnect_may_change_the_expiry_interval_but_not_from_zero(up: SharedUp, backend: Backend) -> None:
    """MQTT 5, 3.14.2.2.2"""
    in_a_second, in_an_hour = (bytes.fromhex("e0070005 11") + seconds.to_bytes(4, "big") for seconds in (1, 3_600))
    with WireDevice(up.mqtt, "unlengthened", 5, expiry_s=0) as device:
        device.send(in_an_hour)
        device.expect_disconnect(0x82)
    with WireDevice(up.mqtt, "lengthened", 5, expiry_s=1) as device:
        device.send(in_an_hour)
        device.expect_closed()
    with WireDevice(up.mqtt, "shortened", 5, expiry_s=3_600) as device:
        unfinished = backend.send("shortened", b"x")
        device.receive()
        device.send(in_a_second)
        device.expect_closed()
    assert backend.outcomes(unfinished) == ["session_ended"]  # more than a second after the one before had gone
    (kept,) = backend.send("lengthened", b"x")
    for name, is_kept in (("shortened", False), ("lengthened", True), ("unlengthened", False)):
        with WireDevice(up.mqtt, name, 5) as device:
            assert device.session_present is is_kept, name
            if is_kept:
                device.finish(device.receive())
    assert backend.outcome(kept) == "delivered"


def test_a_will_with_a_delay_is_published_unless_the_client_returns_in_time(up: SharedUp, backend: Backend) -> None:
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
def test_a_client_without_an_id_gets_one_and_can_be_written_to(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7]; MQTT 3.1.1 has no way to tell the id."""
    with WireDevice(up.mqtt, "", level, expiry_s=None) as device:
        if level == 5:
            start = device.connack.index(b"\x12\x00") + 1
            length = int.from_bytes(device.connack[start : start + 2], "big")
            assigned = device.connack[start + 2 : start + 2 + length].decode()
            backend.send(assigned, b"for you")
            assert device.receive().payload == b"for you"
        device.send("c000")
        device.expect("d000")


@both_versions
def test_malformed_input_ends_its_own_connection_with_the_reason_of_the_standard_and_no_other(
    up: SharedUp, backend: Backend, level: int
) -> None:
    """[MQTT-4.13.1-1]; test_gateway_packets.py has the whole list."""
    connections: list[tuple[str, WireDevice]] = []

    def open_one(name: str) -> None:
        connections.append((name, WireDevice(up.mqtt, f"bad {name} {level}", level, expiry_s=None)))

    in_parallel([lambda name=name: open_one(name) for name in MALFORMED])  # type: ignore[misc]
    with WireDevice(up.mqtt, f"beside-{level}", level) as beside:
        for name, device in connections:
            with device:
                device.send(MALFORMED[name][0])
                device.expect_disconnect(MALFORMED[name][1])
        backend.send(f"beside-{level}", b"untouched")
        assert beside.receive().payload == b"untouched"
    assert len(connections) == len(MALFORMED)


@both_versions
def test_a_qos_2_publication_is_handed_on_once_whatever_its_dup_flag_says(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12]"""
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


def in_parallel(actions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
