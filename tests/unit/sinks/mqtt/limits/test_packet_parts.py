from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.codec import framing
from sinks.mqtt.limits.packet_parts import PacketParts
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits
from state.errors import ProtocolViolation
from state.events import Subscribed, Unsubscribed
from tests.unit.sinks.mqtt.connection.harness import Harness, ack, connected
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, packet, publish, text

USER_PROPERTY = b"\x26\x00\x01k\x00\x01v"


def parts(**limits: Any) -> PacketParts:
    return PacketParts(DeviceLimits(**limits), GatewayCounters())


def measured(data: bytes, *, is_v5: bool = True, **limits: Any) -> int:
    return parts(**limits).measure(data, body_start(data), is_v5=is_v5)[0]


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
    ("data", "limit", "decoded", "filters"),
    [
        (published(USER_PROPERTY * 15, payload=b"p"), "max_properties_bytes", published(b""), 0),
        (published(USER_PROPERTY * 15 + b"\x23\x00\x05", payload=b"p"), "max_properties_bytes", published(b"\x23\x00\x05"), 0),
        (
            packet(0x82, b"\x00\x01\x69", USER_PROPERTY * 15, text("a"), b"\x01"),
            "max_properties_bytes",
            packet(0x82, b"\x00\x01\x00", text("a"), b"\x01"),
            0,
        ),
        (packet(0x82, b"\x00\x01\x00", bytes(3 * 13)), "max_subscribe_filters", packet(0x82, b"\x00\x01\x00", bytes(3 * 10)), 3),
        (packet(0xA2, b"\x00\x01\x00", bytes(2 * 13)), "max_subscribe_filters", packet(0xA2, b"\x00\x01\x00", bytes(2 * 10)), 3),
    ],
)
def test_too_much_is_cut_off_before_it_is_decoded(data: bytes, limit: str, decoded: bytes, filters: int) -> None:
    counters = GatewayCounters()
    limits = DeviceLimits(max_properties_bytes=104, max_subscribe_filters=10)
    _, excess = PacketParts(limits, counters).measure(data, body_start(data), is_v5=True)
    assert excess is not None
    assert (excess.packet, excess.filters, excess.is_refused) == (decoded, filters, filters == 0)
    assert excess.body_start == body_start(decoded)
    assert counters.limits_reached == {limit: 1}


@pytest.mark.parametrize(
    ("data", "is_v5", "code"),
    [
        (packet(0x40, b"\x00\x01\x00\x69", USER_PROPERTY * 15), True, 0x97),
        (packet(0xA2, b"\x00\x01", bytes(2 * 11)), False, 0x97),
        (published(USER_PROPERTY * 15 + b"\x99"), True, 0x81),
        (published(USER_PROPERTY * 15 + b"\x26\x00"), True, 0x81),
        (packet(0x82, b"\x00\x01\x00", bytes(30), text(b"\xff"), b"\x00"), True, 0x81),
        (packet(0x82, b"\x00\x01\x00", bytes(30), text("a")), True, 0x81),
        (packet(0x82, b"\x00\x01\x00", bytes(30), text("a"), b"\x40"), True, 0x81),
        (packet(0x82, b"\x00\x01", bytes(30), text("a"), b"\x04"), False, 0x81),
        (packet(0x82, b"\x00\x01\x00", bytes(30), text("a"), b"\x03"), True, 0x81),
        (packet(0xA2, b"\x00\x01\x00", bytes(20), text("a\0")), True, 0x81),
        (packet(0xA2, b"\x00\x01\x00", bytes(20), b"\x00\x05a"), True, 0x81),
    ],
)
def test_what_no_code_refuses_and_malformed_excess_end_the_connection(data: bytes, is_v5: bool, code: int) -> None:
    limited = parts(max_properties_bytes=104, max_subscribe_filters=10)
    with pytest.raises(ProtocolViolation) as caught:
        limited.measure(data, body_start(data), is_v5=is_v5)
    assert caught.value.reason_code == code


@given(st.sampled_from((0x10, 0x30, 0x32, 0x40, 0x82, 0xA2, 0xC0, 0xE0)), st.binary(min_size=1, max_size=40), st.booleans())
def test_any_bytes_can_be_measured(first_byte: int, data: bytes, is_v5: bool) -> None:
    whole = packet(first_byte, data)
    assert 0 <= measured(whole, is_v5=is_v5, max_properties_bytes=1 << 28) < 1 << 28
    parts(max_connect_properties_bytes=1 << 29).check_connect(whole, body_start(whole))


def test_a_publication_with_too_many_properties_is_refused_alone() -> None:
    """[MQTT-4.3.3-8] [MQTT-4.4.0-2]"""
    harness = connected(5, device_limits=DeviceLimits(max_properties_bytes=700))
    excessive = b"\x23\x00\x01" + USER_PROPERTY * 100
    assert harness.send(published(USER_PROPERTY * 100)) == ack(0x40, 1)
    assert harness.send(published(excessive)) == bytes.fromhex("4003000197")
    assert harness.send(published(excessive, qos=2)) == bytes.fromhex("5003000197")
    assert harness.send(published(excessive, qos=0)) == b""
    assert len(harness.uplink) == 1
    assert harness.counters.limits_reached == {"max_properties_bytes": 3}
    assert harness.send(publish("", first_byte=0x32, packet_id=2, v5=b"\x23\x00\x01")) == ack(0x40, 2), "the alias holds"


def subscribe(level: int, count: int, properties: bytes = b"") -> bytes:
    header = framing.encode_length(len(properties)) + properties if level == 5 else b""
    return packet(0x82, b"\x00\x07", header, *(text(f"f/{number}") + b"\x01" for number in range(count)))


def unsubscribe(level: int, count: int, properties: bytes = b"") -> bytes:
    header = framing.encode_length(len(properties)) + properties if level == 5 else b""
    return packet(0xA2, b"\x00\x07", header, *(text(f"f/{number}") for number in range(count)))


@pytest.mark.parametrize(("level", "refusal"), [(4, 0x80), (5, 0x97)])
@pytest.mark.parametrize("count", [256, 257, 500])
def test_each_filter_of_a_long_subscribe_has_its_code(level: int, refusal: int, count: int) -> None:
    """[MQTT-3.8.4-5] [MQTT-3.8.4-6]"""
    harness = connected(level, accept={"topic_filters": (), "max_subscriptions": 1_000})
    codes = harness.send(subscribe(level, count))[-count:]
    assert codes == bytes((1,)) * 256 + bytes((refusal,)) * (count - 256)
    assert len(harness.last(Subscribed).subscriptions) == 256
    assert harness.counters.limits_reached == ({"max_subscribe_filters": 1} if count > 256 else {})
    assert not harness.connection.is_closed


@pytest.mark.parametrize("level", [4, 5])
def test_unsubscribe_may_name_all_that_a_session_may_hold(level: int) -> None:
    harness = connected(level, accept={"topic_filters": ("f/999",), "max_subscriptions": 1_000})
    answer = harness.send(unsubscribe(level, 1_000))
    assert answer[0] == 0xB0
    assert len(harness.last(Unsubscribed).topic_filters) == 1_000
    if level == 5:
        assert answer[-1_000:] == bytes((0x11,)) * 999 + b"\x00"


def test_each_filter_of_a_longer_unsubscribe_has_its_code() -> None:
    """[MQTT-3.11.3-1] UNSUBACK of MQTT 3.1.1 has no codes."""
    harness = connected(5, accept={"topic_filters": (), "max_subscriptions": 300})
    assert harness.send(unsubscribe(5, 305))[-10:] == bytes((0x11,)) * 5 + bytes((0x83,)) * 5
    assert not harness.connection.is_closed
    old = connected(4, accept={"max_subscriptions": 300})
    assert old.send(unsubscribe(4, 301)) == b""
    assert old.connection.is_closed


def test_a_subscribe_with_too_many_properties_is_refused_alone() -> None:
    harness = connected(5, accept={"topic_filters": ()}, device_limits=DeviceLimits(max_properties_bytes=700))
    before = len(harness.events)
    assert harness.send(subscribe(5, 2, USER_PROPERTY * 101)) == bytes.fromhex("90050007009797")
    assert harness.send(unsubscribe(5, 2, USER_PROPERTY * 101)) == bytes.fromhex("b0050007008383")
    assert harness.counters.limits_reached == {"max_properties_bytes": 2}
    assert len(harness.events) == before


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
