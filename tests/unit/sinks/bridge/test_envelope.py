"""A device's answers are read strictly; what it receives keeps the backend's properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.bridge.envelope import Acknowledged, UnreadableAcknowledgement, properties_for_device, read_acknowledgement
from state.commands import SendPublish
from state.model import PublishProperties, QoS


@pytest.mark.parametrize(
    ("payload", "correlation_data", "expected"),
    [
        (b"", b"m-1", Acknowledged("m-1")),
        (b"{}", b"m-1", Acknowledged("m-1")),
        (b'{"id": "m-1"}', None, Acknowledged("m-1")),
        (b'{"id": "m-1", "reason_code": 151}', None, Acknowledged("m-1", 151)),
        (b'{"reason_code": 135, "why": "unknown keys are ignored"}', "ü".encode(), Acknowledged("ü", 135)),
    ],
)
def test_an_answer_is_read(payload: bytes, correlation_data: bytes | None, expected: Acknowledged) -> None:
    assert read_acknowledgement(payload, correlation_data) == expected


@given(payload=st.binary(), correlation_data=st.none() | st.binary())
def test_any_bytes_are_an_answer_or_are_refused(payload: bytes, correlation_data: bytes | None) -> None:
    try:
        answer = read_acknowledgement(payload, correlation_data)
    except UnreadableAcknowledgement:
        pass
    else:
        assert answer.message_id
        assert 0 <= answer.reason_code <= 255


@pytest.mark.parametrize(
    "payload", [b"", b"ok", b'{"id": ""}', b'{"id": "m", "reason_code": 256}', b'{"id": "m", "reason_code": -1}']
)
def test_an_answer_that_names_no_message_or_no_code_is_refused(payload: bytes) -> None:
    with pytest.raises(UnreadableAcknowledgement):
        read_acknowledgement(payload, None)


def publish(*, qos: int = 1, **properties: object) -> SendPublish:
    return SendPublish(
        connection_id=1,
        partition=0,
        sequence=1,
        packet_id=1,
        topic="t",
        payload=b"",
        qos=QoS(qos),
        message_id="m-1",
        properties=PublishProperties(**properties),  # type: ignore[arg-type]
    )


def test_in_broker_mode_request_properties_of_backends_stay() -> None:
    sent = properties_for_device(
        publish(response_topic="r", correlation_data=b"c", user_properties=(("a", "b"),)), None, bridge="b-1"
    )
    assert (sent.response_topic, sent.correlation_data) == ("r", b"c")
    assert sent.user_properties == (("a", "b"), ("inflight-message-id", "m-1"), ("inflight-bridge", "b-1"))


def test_in_device_mode_the_backends_own_are_user_properties() -> None:
    sent = properties_for_device(publish(response_topic="r", correlation_data=b"c", content_type="x"), "acks", bridge="b-1")
    assert (sent.response_topic, sent.correlation_data, sent.content_type) == ("acks", b"m-1", "x")
    assert dict(sent.user_properties) == {
        "inflight-message-id": "m-1",
        "inflight-bridge": "b-1",
        "inflight-response-topic": "r",
        "inflight-correlation-data": "Yw==",
    }


def test_in_device_mode_qos_0_has_no_response_topic() -> None:
    sent = properties_for_device(publish(qos=0, response_topic="r", correlation_data=b"c"), "acks", bridge="b-1")
    assert (sent.response_topic, sent.correlation_data) == (None, None)
    assert dict(sent.user_properties)["inflight-response-topic"] == "r"
