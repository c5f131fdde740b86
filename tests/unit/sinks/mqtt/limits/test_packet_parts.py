"""sinks.mqtt.limits.packet_parts, and connections that keep to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.codec import framing
from sinks.mqtt.limits.packet_parts import PacketParts
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.metrics import GatewayCounters
from state.errors import ProtocolViolation
from tests.unit.sinks.mqtt.connection.harness import Harness, ack, connected
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, packet, publish, text

USER_PROPERTY = b"\x26\x00\x01k\x00\x01v"
QUOTA_EXCEEDED = bytes.fromhex("e00197")


def parts(**limits: Any) -> PacketParts:
    return PacketParts(DeviceLimits(**limits), GatewayCounters())


def measured(data: bytes, *, is_v5: bool = True, **limits: Any) -> int:
    return parts(**limits).measure(data, body_start(data), is_v5=is_v5)


def published(properties: bytes, *, qos: int = 1, payload: bytes = b"") -> bytes:
    packet_id = b"\x00\x01" if qos else b""
    return packet(0x30 | qos << 1, text("topic"), packet_id, framing.encode_length(len(properties)), properties, payload)


def asked_to_connect(properties: bytes = b"", will: bytes | None = None, *, will_payload: bytes = b"") -> bytes:
    """Returns a CONNECT of MQTT 5. will: its properties."""
    header = text("MQTT") + bytes((5, 0x02 if will is None else 0x06)) + b"\x00\x0a"
    body = framing.encode_length(len(properties)) + properties + text("c1")
    if will is not None:
        body += framing.encode_length(len(will)) + will + text("w") + text(will_payload)
    return packet(0x10, header, body)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 100, 1_000])
def test_properties_of_a_publication_count_and_its_payload_does_not(qos: int, count: int) -> None:
    assert measured(published(USER_PROPERTY * count, qos=qos, payload=bytes(10_000))) == 7 * count


def test_mqtt_3_1_1_has_no_properties() -> None:
    assert measured(publish("t", bytes(20_000)), is_v5=False) == 0


@pytest.mark.parametrize(("first_byte", "options"), [(0x82, b"\x00"), (0xA2, b"")])
def test_each_further_topic_filter_counts_64_bytes(first_byte: int, options: bytes) -> None:
    filters = text("a") + options + text("b" * 60_000) + options
    assert measured(packet(first_byte, b"\x00\x01", filters), is_v5=False) == 64
    assert measured(packet(first_byte, b"\x00\x01", b"\x07", USER_PROPERTY, filters)) == 7 + 64


@pytest.mark.parametrize(
    ("data", "limits", "limit"),
    [
        (published(USER_PROPERTY * 15), {"max_properties_bytes": 104}, "max_properties_bytes"),
        (packet(0x40, b"\x00\x01\x00\x69", USER_PROPERTY * 15), {"max_properties_bytes": 104}, "max_properties_bytes"),
        (packet(0x82, b"\x00\x01\x69", USER_PROPERTY * 15, text("a")), {"max_properties_bytes": 104}, "max_properties_bytes"),
        (packet(0x82, b"\x00\x01\x00", bytes(3 * 11)), {"max_subscribe_filters": 10}, "max_subscribe_filters"),
        (packet(0xA2, b"\x00\x01\x00", bytes(2 * 11)), {"max_subscribe_filters": 10}, "max_subscribe_filters"),
    ],
)
def test_too_much_is_refused_before_it_is_decoded(data: bytes, limits: dict[str, int], limit: str) -> None:
    counters = GatewayCounters()
    with pytest.raises(ProtocolViolation) as caught:
        PacketParts(DeviceLimits(**limits), counters).measure(data, body_start(data), is_v5=True)  # type: ignore[arg-type]
    assert caught.value.reason_code == 0x97
    assert counters.limits_reached == {limit: 1}


@given(st.sampled_from((0x10, 0x30, 0x32, 0x40, 0x82, 0xA2, 0xC0, 0xE0)), st.binary(min_size=1, max_size=40), st.booleans())
def test_any_bytes_can_be_measured(first_byte: int, data: bytes, is_v5: bool) -> None:
    whole = packet(first_byte, data)
    assert 0 <= measured(whole, is_v5=is_v5, max_properties_bytes=1 << 28) < 1 << 28
    parts(max_connect_properties_bytes=1 << 29).check_connect(whole, body_start(whole))


def test_a_publication_with_too_many_properties_ends_its_connection() -> None:
    harness = connected(5, device_limits=DeviceLimits(max_properties_bytes=700))
    assert harness.send(published(USER_PROPERTY * 100)) == ack(0x40, 1)
    assert harness.send(published(USER_PROPERTY * 101)) == QUOTA_EXCEEDED
    assert len(harness.uplink) == 1


def test_the_properties_of_a_connect_and_its_will_count_together() -> None:
    limits = DeviceLimits(max_connect_properties_bytes=700)
    harness = Harness(device_limits=limits)
    assert harness.send(asked_to_connect(USER_PROPERTY * 50, USER_PROPERTY * 50))[3] == 0
    refused = Harness(device_limits=limits)
    answer = refused.send(asked_to_connect(USER_PROPERTY * 50, USER_PROPERTY * 51))
    assert (answer[0], answer[3]) == (0x20, 0x97)
    assert refused.counters.limits_reached == {"max_connect_properties_bytes": 1}
    assert refused.events == []
    assert Harness(device_limits=limits).send(asked_to_connect(USER_PROPERTY * 101))[3] == 0x97


def with_will(level: int, topic: str, payload: bytes) -> bytes:
    no_properties = b"\x00" if level == 5 else b""
    return packet(
        0x10,
        text("MQTT"),
        bytes((level, 0x06)),
        b"\x00\x0a",
        no_properties,
        text("c1"),
        no_properties,
        text(topic),
        text(payload),
    )


@pytest.mark.parametrize(("level", "code"), [(4, 3), (5, 0x97)])
def test_a_large_will_is_refused(level: int, code: int) -> None:
    limits = DeviceLimits(max_will_bytes=1_000)
    assert Harness(device_limits=limits).send(with_will(level, "topic", bytes(995)))[3] == 0
    harness = Harness(device_limits=limits)
    assert harness.send(with_will(level, "topic", bytes(996)))[3] == code
    assert harness.counters.limits_reached == {"max_will_bytes": 1}


@pytest.mark.parametrize(("level", "code"), [(4, 3), (5, 0x90)])
def test_a_will_to_a_topic_of_too_many_levels_is_refused(level: int, code: int) -> None:
    limits = DeviceLimits(max_topic_levels=3)
    assert Harness(device_limits=limits).send(with_will(level, "a/b/c", b""))[3] == 0
    harness = Harness(device_limits=limits)
    assert harness.send(with_will(level, "a/b/c/d", b""))[3] == code
    assert harness.counters.limits_reached == {"max_topic_levels": 1}


def test_a_publication_to_too_many_levels_reaches_nobody() -> None:
    limits = DeviceLimits(max_topic_levels=3)
    harness = connected(5, device_limits=limits)
    assert harness.send(publish("a/b/c", first_byte=0x32, packet_id=1, v5=b"")) == ack(0x40, 1)
    assert harness.send(publish("a/b/c/", first_byte=0x32, packet_id=2, v5=b"")) == bytes.fromhex("4003000290")
    assert harness.send(publish("a/b/c/", first_byte=0x34, packet_id=3, v5=b"")) == bytes.fromhex("5003000390")
    assert harness.send(publish("a/b/c/", v5=b"")) == b""
    assert len(harness.uplink) == 1
    assert harness.counters.limits_reached == {"max_topic_levels": 3}
    old = connected(4, device_limits=limits)
    old.send(publish("////"))
    assert not old.connection.is_closed
    assert old.send(publish("////", first_byte=0x32, packet_id=1)) == b""
    assert old.connection.is_closed


def test_filters_that_are_refused_for_a_limit_are_counted() -> None:
    harness = connected(4, accept={"topic_filters": (), "max_subscriptions": 1})
    subscribe = packet(0x82, b"\x00\x07", text("a") + b"\x00" + text("b") + b"\x00" + text("c") + b"\x00")
    assert harness.send(subscribe) == bytes.fromhex("90050007008080")
    assert harness.counters.limits_reached == {"max_subscriptions": 2}
