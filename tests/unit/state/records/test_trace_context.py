"""The trace of a message: from a Kafka header to the device, and back in uplink and receipts."""

import pytest

from state.dead_letters.message_end import properties_for_receipt
from state.model import PublishProperties, QoS
from state.records.messages import format_message, parse_message
from state.records.publications import publication_in
from state.records.record import Header
from state.records.trace_context import is_traceparent, traceparent_of
from state.records.uplink import uplink_headers

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"
TOPIC = Header("mqtt-topic", b"cmd")


def user_properties(*headers: Header) -> tuple[tuple[str, str], ...]:
    message, _ = parse_message([TOPIC, *headers], payload=b"", accepted_ms=0, default_message_id="m")
    return message.properties.user_properties


@pytest.mark.parametrize(
    ("text", "is_trace"),
    [
        (TRACE, True),
        (TRACE.replace("00-", "01-", 1) + "-more", True),
        (TRACE.replace("00-", "ff-", 1), False),
        (TRACE.upper(), False),
        ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01", False),
        (TRACE + "\n", False),
        ("", False),
    ],
)
def test_a_trace_has_the_form_of_the_standard(text: str, is_trace: bool) -> None:
    assert is_traceparent(text) == is_trace


def test_the_header_of_a_record_becomes_a_user_property() -> None:
    assert user_properties(Header("traceparent", TRACE.encode())) == (("traceparent", TRACE),)
    assert user_properties(Header("user-a", b"1"), Header("traceparent", TRACE.encode())) == (("a", "1"), ("traceparent", TRACE))


def test_a_property_that_the_backend_has_set_counts_more() -> None:
    headers = Header("traceparent", TRACE.encode()), Header("user-traceparent", OTHER.encode())
    assert user_properties(*headers) == (("traceparent", OTHER),)


@pytest.mark.parametrize("value", [b"", b"\xff", b"00-1-2-3"])
def test_a_header_of_another_form_stays_a_header(value: bytes) -> None:
    message, _ = parse_message([TOPIC, Header("traceparent", value)], payload=b"", accepted_ms=0, default_message_id="m")
    assert (message.headers, message.properties.user_properties) == ((("traceparent", value),), ())


def test_a_dead_letter_that_is_sent_again_has_its_trace_once() -> None:
    message, _ = parse_message([TOPIC, Header("traceparent", TRACE.encode())], payload=b"", accepted_ms=0, default_message_id="m")
    again = [*format_message(message), *(Header(name, value) for name, value in message.headers)]
    assert parse_message(again, payload=b"", accepted_ms=0, default_message_id="m")[0] == message


def test_uplink_has_the_trace_of_the_device_as_a_header() -> None:
    properties = PublishProperties(user_properties=(("traceparent", TRACE), ("a", "1")))
    headers = uplink_headers(client_id="c", inflight_id="i", topic="t", qos=QoS.AT_MOST_ONCE, properties=properties)
    assert ("traceparent", TRACE.encode()) in headers
    assert ("user-traceparent", TRACE.encode()) in headers
    read = publication_in([Header(*pair) for pair in headers], b"", accepted_ms=0, default_message_id="m", is_uplink=True)
    assert read.message.properties == properties


def test_the_last_trace_of_a_message_counts() -> None:
    assert traceparent_of([("traceparent", OTHER), ("traceparent", TRACE), ("traceparent", "none")]) == TRACE
    assert traceparent_of([("a", TRACE)]) is None


def test_the_receipt_of_a_received_message_keeps_its_trace() -> None:
    kept = (("traceparent", TRACE),)
    everything = PublishProperties(content_type="x", user_properties=(("a", "1"), *kept))
    assert properties_for_receipt(everything) == PublishProperties(user_properties=kept)
    answered = PublishProperties(response_topic="client:app", user_properties=kept)
    assert properties_for_receipt(answered) == answered
