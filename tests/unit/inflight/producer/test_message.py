from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.producer.message import MessageRecord, build_message
from inflight.producer.model import InvalidMessage
from inflight.producer.settings import ProducerSettings
from state.model import QoS
from state.records.messages import parse_message
from state.records.record import Header

SETTINGS = ProducerSettings()


def build(client_id: str = "client", topic: str = "a/b", payload: Any = b"x", **options: Any) -> MessageRecord:
    return build_message(client_id, topic, payload, settings=SETTINGS, **options)


def read(message: MessageRecord) -> Any:
    """Parses the message as the engine does."""
    headers = tuple(Header(name, value) for name, value in message.headers)
    return parse_message(headers, payload=message.value, accepted_ms=1_000, default_message_id="position")[0]


def test_every_argument_arrives_at_the_engine() -> None:
    message = build(
        qos=2,
        retain=True,
        message_id="order-7",
        expiration_ms=5_000,
        priority=9,
        response_topic="answers",
        correlation_data=b"\x00\xff",
        content_type="text/plain",
        payload_format=1,
        user_properties=[("unit", "K"), ("unit", "°C")],
        cc=["copy"],
        bcc=["blind"],
        dead_letter_exchange="unanswered",
        dead_letter_routing_key="late",
        headers={"trace": b"\x01", "tenant": "ö"},
    )
    received = read(message)
    assert message.key == b"client"
    assert (received.message_id, received.topic, received.payload, received.qos) == ("order-7", "a/b", b"x", QoS.EXACTLY_ONCE)
    assert (received.retain, received.priority, received.expires_at_ms, received.expiration_ms) == (True, 9, 6_000, 5_000)
    properties = received.properties
    assert (properties.response_topic, properties.correlation_data) == ("answers", b"\x00\xff")
    assert properties.content_type == "text/plain"
    assert properties.payload_format == 1
    assert properties.user_properties == (("unit", "K"), ("unit", "°C"))
    others = dict(message.headers)
    assert others["CC"] == b'["copy"]'
    assert others["BCC"] == b'["blind"]'
    assert others["x-dead-letter-exchange"] == b"unanswered"
    assert others["x-dead-letter-routing-key"] == b"late"
    assert others["trace"] == b"\x01"
    assert others["tenant"] == "ö".encode()


def test_a_message_without_an_id_gets_one_of_its_own() -> None:
    first, second = build(), build()
    assert first.message_id != second.message_id
    assert read(first).message_id == first.message_id


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"client_id": ""}, "client_id has 0 bytes"),
        ({"client_id": "x" * 2_000}, "client_id has 2000 bytes"),
        ({"client_id": "\ud800"}, "client_id is not Unicode"),
        ({"topic": ""}, "empty"),
        ({"topic": "a/#"}, "wildcard"),
        ({"topic": "a\x00"}, "U\\+0000"),
        ({"qos": 3}, "mqtt-qos"),
        ({"priority": 256}, "priority"),
        ({"priority": 1.5}, "priority is 1.5: a whole number"),
        ({"message_id": 7}, "message_id is int"),
        ({"expiration_ms": -1}, "expiration"),
        ({"message_id": ""}, "message-id"),
        ({"message_id": "x" * 600}, "message-id"),
        ({"response_topic": "a/+"}, "response-topic"),
        ({"payload": b"x" * 300_000}, "payload has 300000 bytes"),
        ({"payload": 7}, "payload is int"),
        ({"headers": {"mqtt-qos": b"2"}}, "use the argument"),
        ({"headers": {"user-unit": b"K"}}, "use the argument"),
        ({"headers": {"large": b"x" * 70_000}}, "the headers have"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_with_a_reason(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        build(**options)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(-1, 4), st.text(max_size=10))
def test_whatever_is_built_can_be_read_by_the_engine(client_id: str, topic: str, qos: int, message_id: str) -> None:
    try:
        message = build(client_id, topic, b"", qos=qos, message_id=message_id)
    except InvalidMessage:
        return
    assert read(message).message_id == message_id
