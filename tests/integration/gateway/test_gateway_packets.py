"""The gateway against a list of packets of every type, byte by byte, in both versions: each is answered or closed as MQTT says.

On real sockets, with the in-process stand-in for Kafka: the gateway alone decides what a packet is answered. Every device has a
client id of its own, and a test reads only what was said under it.
"""

import itertools
from collections.abc import Iterator

import pytest

from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.unit.sinks.mqtt.invalid_packets import NO_PROPERTIES, V5, V311
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
CONNECT_TYPE = 0x10
LONGEST = "x" * 65_535


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with running_gateway() as running:
        running.kafka.accepting.fields = {"max_awaiting_rel": 100, "send_quota": 32, "topic_filters": ()}
        yield running


@pytest.fixture(scope="module")
def closed_gateway() -> Iterator[GatewayUnderTest]:
    """A gateway that no device of these tests gets into: what is in its log was said by somebody who had no right to."""
    with running_gateway() as running:
        yield running


_numbers = itertools.count(1)


def accepted(gateway: GatewayUnderTest, level: int, client_id: str = "") -> RawClient:
    """A connected device. client_id: one that no other test uses; "" stands for any."""
    device = gateway.socket()
    device.send(connect(level=level, payload=text(client_id or f"device-{next(_numbers)}")))
    answer = device.packet()
    assert answer[:1] == b"\x20"
    assert answer[3] == 0
    return device


# --- what is allowed --------------------------------------------------------------------------------------------------------

EVERY_PROPERTY = (
    b"\x01\x01\x02\x00\x00\x00\x09\x03" + text("text/ü") + b"\x08" + text("r") + b"\x09" + text(b"\xff")
    + b"\x26" + text("k") + text("v") + b"\x26" + text("k") + text("")
)  # fmt: skip

VALID_311 = {
    "PUBLISH QoS 0": (publish("a/ü", b"\x00\xff"), ""),
    "PUBLISH QoS 0 retained and empty": (publish("a", first_byte=0x31), ""),
    "PUBLISH QoS 1": (publish("a", b"x", first_byte=0x32, packet_id=65_535), "4002ffff"),
    "PUBLISH QoS 1 with DUP and RETAIN": (publish("a", b"x", first_byte=0x3B, packet_id=1), "40020001"),
    "PUBLISH QoS 2": (publish("a", b"x", first_byte=0x34, packet_id=2), "50020002"),
    "PUBLISH QoS 2 with DUP": (publish("a", b"x", first_byte=0x3C, packet_id=3), "50020003"),
    "PUBLISH to the longest topic": (publish(LONGEST, first_byte=0x32, packet_id=4), "40020004"),
    "PUBLISH to $-topics and blanks": (publish("$SYS / x", first_byte=0x32, packet_id=5), "40020005"),
    "PUBACK that nobody waits for": (bytes.fromhex("40020001"), ""),
    "PUBREC that nobody waits for": (bytes.fromhex("50020001"), ""),
    "PUBREL that nobody waits for": (bytes.fromhex("62020009"), "70020009"),
    "PUBCOMP that nobody waits for": (bytes.fromhex("70020001"), ""),
    "SUBSCRIBE": (
        packet(0x82, b"\x00\x09", text("a/#"), b"\x02", text("+/b"), b"\x00", text("#/b"), b"\x01", text(LONGEST), b"\x01"),
        "90060009 02008001",
    ),
    "UNSUBSCRIBE": (packet(0xA2, b"\x00\x0a", text("a/#"), text("b")), "b002000a"),
    "PINGREQ": (PINGREQ, "d000"),
}

VALID_5 = {
    "PUBLISH QoS 0": (publish("a/ü", b"\x00\xff", v5=EVERY_PROPERTY), ""),
    "PUBLISH QoS 0 with an alias": (publish("a", b"x", v5=b"\x23\x00\x10"), ""),
    "PUBLISH QoS 1": (publish("a", b"x", first_byte=0x32, packet_id=65_535, v5=EVERY_PROPERTY), "4002ffff"),
    "PUBLISH QoS 1 with DUP": (publish("a", b"x", first_byte=0x3A, packet_id=1, v5=b""), "40020001"),
    "PUBLISH QoS 2": (publish("a", b"x", first_byte=0x34, packet_id=2, v5=b""), "50020002"),
    "PUBLISH QoS 2 with DUP": (publish("a", b"x", first_byte=0x3C, packet_id=3, v5=b""), "50020003"),
    "PUBLISH to the longest topic": (publish(LONGEST, first_byte=0x32, packet_id=4, v5=b""), "40020004"),
    "PUBACK that nobody waits for": (bytes.fromhex("40020001"), ""),
    "PUBACK with a reason": (packet(0x40, b"\x00\x01\x97\x08\x1f", text("füll")), ""),
    "PUBREC with a reason code": (bytes.fromhex("5003000180"), ""),
    "PUBREL that nobody waits for": (bytes.fromhex("62020009"), "7003000992"),
    "PUBREL with a reason code and no properties": (bytes.fromhex("620400099200"), "7003000992"),
    "PUBCOMP with a reason code": (bytes.fromhex("7003000192"), ""),
    "SUBSCRIBE": (
        packet(0x82, b"\x00\x09", NO_PROPERTIES, text("a/#"), b"\x2e", text("#/b"), b"\x01", text("$share/g/a"), b"\x01"),
        "90060009 00 028f9e",
    ),
    "UNSUBSCRIBE": (packet(0xA2, b"\x00\x0a", NO_PROPERTIES, text("a/#"), text("b#")), "b005000a 00 118f"),
    "PINGREQ": (PINGREQ, "d000"),
}
VALID = {
    **{f"3.1.1 {name}": (4, *case) for name, case in VALID_311.items()},
    **{f"5 {name}": (5, *case) for name, case in VALID_5.items()},
}


@pytest.mark.parametrize(("level", "data", "answer"), VALID.values(), ids=VALID.keys())
def test_what_mqtt_allows_is_answered_and_the_connection_goes_on(
    gateway: GatewayUnderTest, level: int, data: bytes, answer: str
) -> None:
    with accepted(gateway, level) as device:
        device.send(data)
        device.expect(answer)
        device.send(PINGREQ)
        device.expect(PINGRESP)


@pytest.mark.parametrize("level", [4, 5])
def test_a_disconnect_is_answered_by_the_end_alone(gateway: GatewayUnderTest, level: int) -> None:
    with accepted(gateway, level) as device:
        device.send(b"\xe0\x00" + PINGREQ)
        device.expect_closed()


# --- what is not ------------------------------------------------------------------------------------------------------------

FRAMES = {
    **{f"type {kind:#04x} is for servers": (bytes((kind, 2, 0, 1)), 0x82) for kind in (0x20, 0x90, 0xB0, 0xD0)},
    "type 0": (b"\x00\x00", 0x81),
    **{
        f"first byte {first_byte:#04x}": (bytes((first_byte, 2, 0, 1)), 0x81)
        for first_byte in (0x11, 0x41, 0x52, 0x60, 0x63, 0x72, 0x80, 0x83, 0xA0, 0xA1, 0xC2, 0xE1, 0xF1)
    },
    "PUBLISH with QoS 3": (b"\x36\x02\x00\x01", 0x81),
    "PUBLISH with DUP at QoS 0": (b"\x38\x02\x00\x01", 0x81),
    "a length of five bytes": (b"\x30\xff\xff\xff\xff\x01", 0x81),
    "a padded length": (b"\x30\x80\x00", 0x81),
    "a packet over the limit": (b"\x30\xff\xff\xff\x7f", 0x95),
}
INVALID = {
    **{f"3.1.1 {name}": (4, data, 0) for name, data in V311.items() if data[0] != CONNECT_TYPE},
    **{f"3.1.1 {name}": (4, data, 0) for name, (data, _) in FRAMES.items()},
    **{f"5 {name}": (5, data, code) for name, (data, code) in V5.items() if data[0] != CONNECT_TYPE},
    **{f"5 {name}": (5, data, code) for name, (data, code) in FRAMES.items()},
}


@pytest.mark.parametrize(("level", "data", "reason_code"), INVALID.values(), ids=INVALID.keys())
def test_what_mqtt_forbids_is_told_to_mqtt_5_and_closed(
    gateway: GatewayUnderTest, level: int, data: bytes, reason_code: int
) -> None:
    """[MQTT-4.13.1-1] [MQTT-4.13.2-1] [MQTT-3.14.4-1]: one DISCONNECT with the reason, nothing after it, and the end."""
    with accepted(gateway, level) as device:
        device.send(data + PINGREQ)
        assert device.rest() == (bytes((0xE0, 0x01, reason_code)) if level == 5 else b"")


WRONG_CONNECT = {
    **{f"3.1.1 {name}": (data, "") for name, data in V311.items() if data[0] == CONNECT_TYPE},
    **{f"5 {name}": (data, f"200300{code:02x}00") for name, (data, code) in V5.items() if data[0] == CONNECT_TYPE},
    "3.1.1 another protocol level": (connect(level=6), "2003008400"),
    "an older MQTT": (connect(name="MQIsdp", level=2), "20020001"),
    "3.1 no client id": (connect(name="MQIsdp", level=3, payload=text("")), "20020002"),
    "5 an authentication method": (connect(level=5, properties=b"\x15" + text("x")), "2003008c00"),
    "3.1.1 no client id, but a session to keep": (connect(flags=0, payload=text("")), "20020002"),
    "PUBLISH before CONNECT": (publish("a"), ""),
    "CONNECT with reserved flags": (b"\x11" + connect()[1:], ""),
}


@pytest.mark.parametrize(("data", "answer"), WRONG_CONNECT.values(), ids=WRONG_CONNECT.keys())
def test_a_forbidden_connect_gets_its_connack_and_nothing_behind_it_counts(
    closed_gateway: GatewayUnderTest, data: bytes, answer: str
) -> None:
    """[MQTT-3.1.4-1] [MQTT-3.1.4-6] [MQTT-3.2.2-6] [MQTT-3.2.2-7]"""
    with closed_gateway.socket() as device:
        device.send(data + publish("behind", first_byte=0x32, packet_id=1) + PINGREQ)
        assert device.rest() == bytes.fromhex(answer)
    own = ("leases", "wake-ups")  # the gateway itself renews its lease, and wakes the engine at its start
    assert [record for record in closed_gateway.kafka.records if not record.topic.endswith(own)] == []
