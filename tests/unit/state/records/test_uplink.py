import pytest

from state.commands import ForwardPublication
from state.model import PublishProperties, QoS
from state.records.publications import publication_in
from state.records.record import Header, SinkRecord
from state.records.uplink import connection_header, uplink_headers, uplink_record


def test_the_least_that_an_uplink_record_says() -> None:
    assert uplink_headers(client_id="ü", inflight_id="ü:1:1", topic="t/ü", qos=QoS.AT_MOST_ONCE) == [
        ("mqtt-topic", "t/ü".encode()),
        ("mqtt-qos", b"0"),
        ("mqtt-retain", b"false"),
        ("client-id", "ü".encode()),
        ("inflight-id", "ü:1:1".encode()),
    ]


def test_everything_that_an_uplink_record_can_say() -> None:
    properties = PublishProperties(
        payload_format=1,
        content_type="application/json",
        response_topic="r/t",
        correlation_data=b"\xff\x00",
        user_properties=(("k", "1"), ("k", "2")),
    )
    headers = uplink_headers(
        client_id="c", inflight_id="i", topic="t", qos=QoS.EXACTLY_ONCE, retain=True, expiry_interval_s=0, properties=properties
    )
    assert headers[1:3] == [("mqtt-qos", b"2"), ("mqtt-retain", b"true")]
    assert headers[5:] == [
        ("message-expiry", b"0"),
        ("content-type", b"application/json"),
        ("response-topic", b"r/t"),
        ("correlation-data", b"\xff\x00"),
        ("payload-format", b"1"),
        ("user-k", b"1"),
        ("user-k", b"2"),
    ]


@pytest.mark.parametrize(
    ("properties", "header"),
    [
        (PublishProperties(content_type="text/plain"), ("content-type", b"text/plain")),
        (PublishProperties(response_topic="r/t"), ("response-topic", b"r/t")),
        (PublishProperties(correlation_data=b""), ("correlation-data", b"")),
        (PublishProperties(payload_format=0), ("payload-format", b"0")),
    ],
)
def test_a_property_that_is_not_given_has_no_header(properties: PublishProperties, header: tuple[str, bytes]) -> None:
    headers = uplink_headers(client_id="c", inflight_id="i", topic="t", qos=QoS.AT_LEAST_ONCE, properties=properties)
    assert headers[5:] == [header]


def test_the_engine_writes_payload_key_and_the_same_headers() -> None:
    publication = ForwardPublication(publication_id="events-0-1", topic="t", payload=b"p", qos=QoS.EXACTLY_ONCE, retain=True)
    headers = uplink_headers(client_id="ü", inflight_id="events-0-1", topic="t", qos=QoS.EXACTLY_ONCE, retain=True)
    headers.append(("micro-batch", b"7"))
    assert uplink_record("up", "ü", publication, 7) == SinkRecord(
        "up", "ü".encode(), b"p", headers=tuple(Header(name, value) for name, value in headers)
    )


def test_a_record_that_may_be_a_copy_says_since_when() -> None:
    publication = ForwardPublication(
        publication_id="i", topic="t", payload=b"", qos=QoS.EXACTLY_ONCE, username="ada", may_be_copy_since_ms=6
    )
    headers = uplink_record("up", "c", publication, 7).headers
    assert headers[5:] == (Header("username", b"ada"), Header("micro-batch", b"7"), Header("may-be-copy-since", b"6"))
    assert connection_header(9) == ("connection-id", b"9")
    read = publication_in([*headers, Header("connection-id", b"9")], b"", accepted_ms=1, default_message_id="", is_uplink=True)
    assert read.message.headers == ()


def test_who_had_logged_in_has_a_header_of_its_own() -> None:
    headers = uplink_headers(client_id="c", inflight_id="i", topic="t", qos=QoS.AT_LEAST_ONCE, username="ädä")
    assert headers[5:] == [("username", "ädä".encode())]
    publication = ForwardPublication(publication_id="i", topic="t", payload=b"", qos=QoS.AT_LEAST_ONCE, username="ädä")
    assert uplink_record("up", "c", publication, 7).headers[5:6] == (Header("username", "ädä".encode()),)
