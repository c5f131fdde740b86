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
from sinks.mqtt.codec.v5 import decode, encode, encode_publish
from state.errors import ProtocolViolation
from state.model import PublishProperties, QoS, ReasonCode, Subscription, Will
from tests.unit.sinks.mqtt.invalid_packets import NO_PROPERTIES, V5, connect5, will
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, packet, publish, text

VALID = [
    (connect5(), Connect(protocol_version=5, client_id="c1", clean_start=True, keep_alive_s=10)),
    (
        connect5(0x00, b"\x11\x00\x00\x00\x3c" + b"\x21\x00\x05" + b"\x27\x00\x00\x04\x00" + b"\x22\x00\x0a"),
        Connect(
            protocol_version=5,
            client_id="c1",
            clean_start=False,
            keep_alive_s=10,
            session_expiry_interval_s=60,
            receive_maximum=5,
            maximum_packet_size_bytes=1_024,
            topic_alias_maximum=10,
        ),
    ),
    (
        connect5(0x42, payload=text("ü") + text(b"\xff\x00")),
        Connect(protocol_version=5, client_id="ü", clean_start=True, keep_alive_s=10, password=b"\xff\x00"),
    ),
    (
        will(b"\x18\x00\x00\x00\x05" + b"\x01\x01" + b"\x02\x00\x00\x00\x07"),
        Connect(
            protocol_version=5,
            client_id="c",
            clean_start=True,
            keep_alive_s=10,
            will=Will(topic="w", payload=b"bye", delay_s=5, expiry_interval_s=7, properties=PublishProperties(payload_format=1)),
        ),
    ),
    (publish("a", b"\xff", v5=b""), Publish(topic="a", payload=b"\xff")),
    (publish("a", b"", v5=b"\x01\x00"), Publish(topic="a", payload=b"")),
    (
        publish("ü", b"\xff", first_byte=0x35, packet_id=3, v5=b"\x02\x00\x00\x00\x09" + b"\x23\x00\x02"),
        Publish(topic="ü", payload=b"\xff", qos=QoS.EXACTLY_ONCE, packet_id=3, retain=True, expiry_interval_s=9, topic_alias=2),
    ),
    (publish("\ufeffa", b"", v5=b""), Publish(topic="\ufeffa", payload=b"")),
    (publish("", b"x", v5=b"\x23\x00\x02"), Publish(topic="", payload=b"x", topic_alias=2)),
    (
        publish(
            "a",
            v5=b"\x01\x01"
            + b"\x03"
            + text("text/ü")
            + b"\x08"
            + text("r/t")
            + b"\x09"
            + text(b"\xff\x00")
            + b"\x26"
            + text("k")
            + text("ü")
            + b"\x26"
            + text("k")
            + text(""),
        ),
        Publish(
            topic="a",
            payload=b"",
            properties=PublishProperties(
                payload_format=1,
                content_type="text/ü",
                response_topic="r/t",
                correlation_data=b"\xff\x00",
                user_properties=(("k", "ü"), ("k", "")),
            ),
        ),
    ),
    (bytes.fromhex("40020007"), PubAck(packet_id=7)),
    (bytes.fromhex("4003000797"), PubAck(packet_id=7, reason_code=0x97)),
    (bytes.fromhex("400400071000"), PubAck(packet_id=7, reason_code=0x10)),
    (packet(0x50, b"\x00\x07\x80\x06\x1f", text("nö")), PubRec(packet_id=7, reason_code=0x80, reason="nö")),
    (packet(0x40, b"\x00\x07\x87\x04\x1f", text("n")), PubAck(packet_id=7, reason_code=0x87, reason="n")),
    (packet(0x62, b"\x00\x07\x92\x04\x1f", text("n")), PubRel(packet_id=7, reason_code=0x92)),
    (bytes.fromhex("6203000792"), PubRel(packet_id=7, reason_code=0x92)),
    (bytes.fromhex("7003000792"), PubComp(packet_id=7, reason_code=0x92)),
    (
        packet(0x82, b"\x00\x09", b"\x02\x0b\x05", text("ü/#"), b"\x2d"),
        Subscribe(
            packet_id=9,
            subscriptions=(
                Subscription(
                    topic_filter="ü/#", qos=QoS.AT_LEAST_ONCE, no_local=True, retain_as_published=True, retain_handling=2
                ),
            ),
            subscription_id=5,
        ),
    ),
    (packet(0xA2, b"\x00\x09", NO_PROPERTIES, text("a"), text("b")), Unsubscribe(packet_id=9, topic_filters=("a", "b"))),
    (b"\xc0\x00", PingReq()),
    (b"\xe0\x00", Disconnect()),
    (b"\xe0\x01\x04", Disconnect(reason_code=4)),
    (bytes.fromhex("e00700051100000005"), Disconnect(session_expiry_interval_s=5)),
]


@pytest.mark.parametrize(("data", "expected"), VALID, ids=[data.hex() for data, _ in VALID])
def test_valid_packets_are_read(data: bytes, expected: object) -> None:
    assert decode(data, body_start(data)) == expected


@pytest.mark.parametrize(("data", "reason_code"), V5.values(), ids=V5.keys())
def test_invalid_packets_are_refused_with_their_reason(
    data: bytes, reason_code: ReasonCode, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode(data, body_start(data))
    assert caught.value.reason_code is reason_code
    assert "panicked" not in capfd.readouterr().err, "the library saw what must be kept from it"


WRITTEN = [
    (ConnAck(), "2009 0000 06 2500 2900 2a00"),
    (
        ConnAck(
            session_present=True,
            session_expiry_interval_s=60,
            receive_maximum=100,
            assigned_client_id="x",
            topic_alias_maximum=16,
        ),
        None,
    ),
    (ConnAck(reason_code=ReasonCode.SERVER_UNAVAILABLE), "2003 00 88 00"),
    (Publish(topic="a", payload=b"p"), "3005 000161 00 70"),
    (
        Publish(topic="a", payload=b"p", qos=QoS.EXACTLY_ONCE, packet_id=258, dup=True, retain=True, expiry_interval_s=5),
        "3d0c 000161 0102 05 0200000005 70",
    ),
    (PubAck(packet_id=258), "40020102"),
    (PubRec(packet_id=258), "50020102"),
    (PubRel(packet_id=258), "62020102"),
    (PubRel(packet_id=258, reason_code=0x92), "6203010292"),
    (PubComp(packet_id=258, reason_code=0x92), "7003010292"),
    (SubAck(packet_id=1, reason_codes=(0, 1, 2, 0x8F, 0x9E)), "9008 0001 00 0001028f9e"),
    (UnsubAck(packet_id=1, reason_codes=(0, 0x8F)), "b005 0001 00 008f"),
    (PingResp(), "d000"),
    (Disconnect(reason_code=0x8E), "e0018e"),
]


@pytest.mark.parametrize(("value", "expected"), [(value, expected) for value, expected in WRITTEN if expected])
def test_packets_are_written(value: ServerPacket, expected: str) -> None:
    assert encode(value) == bytes.fromhex(expected)


def test_connack_carries_its_properties() -> None:
    data = encode(WRITTEN[1][0])
    for expected in ("11 0000003c", "21 0064", "12 000178", "22 0010", "29 00", "2a 00"):
        assert bytes.fromhex(expected) in data
    assert data[2:4] == b"\x01\x00"


def test_application_properties_survive_the_way_out_and_in() -> None:
    properties = PublishProperties(
        payload_format=1, content_type="t", response_topic="r", correlation_data=b"\x00", user_properties=(("a", "ü"), ("a", "2"))
    )
    data = encode(Publish(topic="t", payload=b"p", properties=properties))
    assert decode(data, body_start(data)) == Publish(topic="t", payload=b"p", properties=properties)


def test_each_subscription_identifier_is_a_property_in_order() -> None:
    """[MQTT-3.3.4-4]"""
    message = Publish(topic="t", payload=b"p", properties=PublishProperties(payload_format=1))
    data = encode_publish(message, qos=QoS(1), packet_id=258, subscription_ids=(3, 268_435_455, 3, 1))
    ids = b"\x0b\x03" + b"\x0b\xff\xff\xff\x7f" + b"\x0b\x03" + b"\x0b\x01"
    assert ids in data
    assert len(data) == len(encode_publish(message, qos=QoS(1), packet_id=258)) + len(ids)
    plain = encode_publish(Publish(topic="t", payload=b"p"), qos=QoS(0), packet_id=0, subscription_ids=(3, 1))
    assert plain == publish("t", b"p", v5=b"\x0b\x03\x0b\x01")


def test_a_topic_alias_is_written_with_and_without_its_topic() -> None:
    message = Publish(topic="t", payload=b"p")
    first = encode_publish(message, qos=QoS(0), packet_id=0, topic_alias=2)
    assert first == publish("t", b"p", v5=b"\x23\x00\x02")
    later = encode_publish(message, qos=QoS(0), packet_id=0, topic_alias=2, omits_topic=True)
    assert later == publish("", b"p", v5=b"\x23\x00\x02")


@pytest.mark.parametrize("identifier", [0, 268_435_456])
def test_a_subscription_identifier_out_of_range_cannot_be_written(identifier: int) -> None:
    with pytest.raises(ValueError, match=r"(?i)subscription|integer"):
        encode_publish(Publish(topic="t", payload=b""), qos=QoS(0), packet_id=0, subscription_ids=(identifier,))


@pytest.mark.parametrize("topic", ["", "a/#", "x" * 65_536])
def test_a_topic_that_is_none_cannot_be_written(topic: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)topic|65535"):
        encode(Publish(topic=topic, payload=b""))


def test_a_panic_of_the_library_costs_only_the_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def read(_: memoryview) -> object:
        raise PanicException("as pyo3 names it")

    monkeypatch.setattr("sinks.mqtt.codec.v5.mqtt5.read", read)
    with pytest.raises(ProtocolViolation) as caught:
        decode(b"\xc0\x00", 2)
    assert caught.value.reason_code is ReasonCode.MALFORMED_PACKET
