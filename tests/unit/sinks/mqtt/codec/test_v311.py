import pytest

from sinks.mqtt.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ServerPacket,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from sinks.mqtt.codec.v311 import decode, encode
from state.errors import ProtocolViolation
from state.model import QoS, ReasonCode, Subscription, Will
from tests.unit.sinks.mqtt.invalid_packets import V311
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, connect, packet, publish, text

VALID = [
    (connect(), Connect(protocol_version=4, client_id="c1", clean_start=True, keep_alive_s=10)),
    (
        connect(flags=0, payload=text("ü")),
        Connect(protocol_version=4, client_id="ü", clean_start=False, keep_alive_s=10, session_expiry_interval_s=None),
    ),
    (
        connect(flags=0xF6, payload=text("c") + text("w/t") + text(b"\xff") + text("user") + text(b"\x00pw")),
        Connect(
            protocol_version=4,
            client_id="c",
            clean_start=True,
            keep_alive_s=10,
            will=Will(topic="w/t", payload=b"\xff", qos=QoS.EXACTLY_ONCE, retain=True),
            username="user",
            password=b"\x00pw",
        ),
    ),
    (publish("a/b", b"\xffx"), Publish(topic="a/b", payload=b"\xffx")),
    (
        publish("a", b"", first_byte=0x3B, packet_id=65_535),
        Publish(topic="a", payload=b"", qos=QoS.AT_LEAST_ONCE, packet_id=65_535, dup=True, retain=True),
    ),
    (publish("\ufeffa", b""), Publish(topic="\ufeffa", payload=b"")),
    (publish("a", first_byte=0x34, packet_id=1), Publish(topic="a", payload=b"", qos=QoS.EXACTLY_ONCE, packet_id=1)),
    (bytes.fromhex("40020007"), PubAck(packet_id=7)),
    (bytes.fromhex("50020007"), PubRec(packet_id=7)),
    (bytes.fromhex("62020007"), PubRel(packet_id=7)),
    (bytes.fromhex("70020007"), PubComp(packet_id=7)),
    (
        packet(0x82, b"\x00\x09", text("a/#"), b"\x01", text("b"), b"\x02"),
        Subscribe(
            packet_id=9,
            subscriptions=(
                Subscription(topic_filter="a/#", qos=QoS.AT_LEAST_ONCE),
                Subscription(topic_filter="b", qos=QoS.EXACTLY_ONCE),
            ),
        ),
    ),
    (packet(0xA2, b"\x00\x09", text("a"), text("b")), Unsubscribe(packet_id=9, topic_filters=("a", "b"))),
    (b"\xc0\x00", PingReq()),
    (b"\xe0\x00", Disconnect()),
]


@pytest.mark.parametrize(("data", "expected"), VALID, ids=[data.hex() for data, _ in VALID])
def test_valid_packets_are_read(data: bytes, expected: object) -> None:
    assert decode(data, body_start(data)) == expected


@pytest.mark.parametrize("data", V311.values(), ids=V311.keys())
def test_invalid_packets_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(data, body_start(data))


WRITTEN = [
    (ConnAck(), "20020000"),
    (ConnAck(session_present=True), "20020100"),
    (ConnAck(reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, session_present=True), "20020001"),
    (ConnAck(reason_code=ReasonCode.CLIENT_ID_NOT_VALID), "20020002"),
    (ConnAck(reason_code=ReasonCode.SERVER_UNAVAILABLE), "20020003"),
    (ConnAck(reason_code=ReasonCode.BAD_USER_NAME_OR_PASSWORD), "20020004"),
    (ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED), "20020005"),
    (ConnAck(reason_code=0xBB), "20020003"),
    (Publish(topic="a", payload=b"p"), "30040001 61 70"),
    (Publish(topic="a", payload=b"p", qos=QoS.AT_LEAST_ONCE, packet_id=258, dup=True, retain=True), "3b060001 61 0102 70"),
    (PubAck(packet_id=258, reason_code=0x97), "40020102"),
    (PubRec(packet_id=258), "50020102"),
    (PubRel(packet_id=258, reason_code=0x92), "62020102"),
    (PubComp(packet_id=258, reason_code=0x92), "70020102"),
    (SubAck(packet_id=1, reason_codes=(0, 1, 2, 0x8F)), "9006000100010280"),
    (UnsubAck(packet_id=1, reason_codes=(0, 0)), "b0020001"),
    (PingResp(), "d000"),
    (Disconnect(reason_code=0x8E), ""),
]


@pytest.mark.parametrize(("value", "expected"), WRITTEN)
def test_packets_are_written(value: ServerPacket, expected: str) -> None:
    assert encode(value) == bytes.fromhex(expected)


def test_a_topic_that_does_not_fit_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="65,535"):
        encode(Publish(topic="x" * 65_536, payload=b""))
