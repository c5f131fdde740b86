from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.producer.message import (
    MessageRecord,
    build_cancellation,
    build_message,
    build_messages,
    build_publication,
    check_clients,
)
from inflight.producer.model import InvalidMessage
from inflight.producer.settings import ProducerSettings
from sinks.kafka.partitioning import partition_of
from state.model import QoS
from state.records.messages import parse_message
from state.records.publications import publication_in
from state.records.record import Header
from state.records.routing import MAX_EXPANDED_BYTES

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
        ({"headers": {"recipient-a": b""}}, "only Inflight writes"),
        ({"headers": {"mqtt-share": b"$share/g/a"}}, "only Inflight writes"),
        ({"deliver_at": "tomorrow"}, "header deliver-at is 'tomorrow'"),
        ({"deliver_at": datetime(2030, 1, 1)}, "a datetime with a time zone is allowed"),  # noqa: DTZ001
        ({"deliver_at": 1.5}, "deliver_at is 1.5: a whole number"),
        ({"deliver_at": 1_800_000_000}, "header deliver-at is '1800000000'"),
        ({"deliver_at": timedelta(days=366)}, "at most 365 days ahead"),
        ({"deliver_at": timedelta(seconds=9), "expiration_ms": 9_000}, "would expire before deliver-at"),
        ({"collapse_key": ""}, "header collapse-key has 0 bytes"),
        ({"collapse_key": 7}, "collapse-key is int"),
        ({"headers": {"deliver-at": b"+1s"}}, "use the argument"),
        ({"headers": {"cancel-message-id": b"m"}}, "use the argument"),
        ({"client_id": "a\x00b"}, "client_id contains"),
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


@pytest.mark.parametrize(
    ("deliver_at", "header"),
    [
        (timedelta(hours=2), b"+7200000ms"),
        (timedelta(hours=-2), b"+0ms"),
        ("+2h", b"+2h"),
        (1_700_000_000_000, b"1700000000000"),
        (datetime(2024, 1, 31, 8, tzinfo=UTC), b"2024-01-31T08:00:00+00:00"),
        (datetime(2024, 1, 31, 8, 0, 0, 7, tzinfo=timezone(timedelta(hours=-2))), b"2024-01-31T08:00:00.000007-02:00"),
    ],
)
def test_a_time_is_given_in_pythons_way_or_in_that_of_the_header(deliver_at: Any, header: bytes) -> None:
    assert dict(build(deliver_at=deliver_at).headers)["deliver-at"] == header


@pytest.mark.parametrize("key", ["target", b"target"])
def test_a_collapse_key_is_text_or_bytes(key: Any) -> None:
    assert dict(build(collapse_key=key).headers)["collapse-key"] == b"target"


def test_a_cancellation_names_the_message_and_is_no_message() -> None:
    first, second = (build_cancellation("client", "order-7", settings=SETTINGS) for _ in range(2))
    assert (first.key, first.value, first.headers) == (b"client", b"", [("cancel-message-id", b"order-7")])
    assert (first.order_key, first.is_cancellation, build().is_cancellation) == ("client", True, False)
    assert first.message_id != second.message_id, "two of them are two records"


@pytest.mark.parametrize(
    ("client_id", "message_id", "complaint"),
    [("", "m", "client_id has 0 bytes"), ("c", "", "cancel-message-id has 0 bytes"), ("c", "m" * 513, "has 513 bytes")],
)
def test_a_cancellation_of_nothing_is_refused(client_id: str, message_id: str, complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        build_cancellation(client_id, message_id, settings=SETTINGS)


def test_a_publication_has_its_topic_as_its_key() -> None:
    message = build_publication("plant/1", b"x", settings=SETTINGS, qos=2, retain=True, message_id="m", expiration_ms=1_000)
    headers = tuple(Header(name, value) for name, value in message.headers)
    read = publication_in(headers, message.value, accepted_ms=5, default_message_id="position", is_uplink=False)
    assert (message.key, read.is_named, read.publisher, read.share) == (b"plant/1", True, "", "")
    assert (read.message.message_id, read.message.topic, read.message.retain) == ("m", "plant/1", True)
    assert (read.message.qos, read.message.expires_at_ms) == (QoS.EXACTLY_ONCE, 1_005)


def test_publications_with_one_key_have_one_order() -> None:
    keys: list[Any] = ["line-2", b"line-2", b"\xff"]
    built = [build_publication("a", b"x", settings=SETTINGS, key=key) for key in keys]
    assert [message.key for message in built] == [b"line-2", b"line-2", b"\xff"]
    assert built[0].order_key == built[1].order_key != built[2].order_key
    assert all(message.is_publication for message in built)
    with pytest.raises(InvalidMessage, match="key is int"):
        build_publication("a", b"x", settings=SETTINGS, key=7)  # type: ignore[arg-type]


def build_many(clients: list[str], payload: bytes = b"x", partitions: int | None = 4) -> list[MessageRecord]:
    return list(build_messages(clients, "a/b", payload, settings=SETTINGS, partitions=partitions, message_id="m"))


def test_many_clients_share_a_record_with_those_of_their_partition() -> None:
    clients = [f"device-{number}" for number in range(1_000)]
    records = build_many(clients)
    assert len(records) == 4
    assert Counter(client for record in records for client in record.recipients) == Counter(clients)
    for record in records:
        assert record.key is None
        assert {partition_of(client.encode(), 4) for client in record.recipients} == {record.partition}
        assert record.all_headers[len(record.headers) :] == [(f"recipient-{client}", b"") for client in record.recipients]


def test_a_record_is_limited_in_clients_and_in_bytes() -> None:
    clients = [f"device-{number}" for number in range(1_200)]
    assert [len(record.recipients) for record in build_many(clients, partitions=1)] == [500, 500, 200]
    large = build_many(clients, payload=b"x" * 262_144, partitions=1)
    assert max(len(record.recipients) for record in large) == MAX_EXPANDED_BYTES // 262_144
    long_ids = [f"{number:01000}" for number in range(200)]
    assert all(record.size_bytes < 80_000 for record in build_many(long_ids, partitions=1))


def test_a_client_alone_in_its_partition_gets_a_record_with_its_key() -> None:
    (record,) = build_many(["device-7"])
    assert (record.client_id, record.key, record.recipients) == ("device-7", b"device-7", ())
    assert [record.key for record in build_many(["a", "b"], partitions=None)] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("clients", "complaint"),
    [
        (["a", "b", "a"], "client_ids has 'a' twice"),
        ("device-7", "client_ids is text"),
        (["a", ""], "client_id has 0 bytes"),
        (["a", b"b"], "client_id is bytes"),
    ],
)
def test_a_wrong_list_of_clients_is_refused_with_a_reason(clients: Any, complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        check_clients(clients, SETTINGS)


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [("$share/g/a", "shared subscription"), ("$SYS/x", "only Inflight publishes"), ("$SYS", "only Inflight publishes")],
)
def test_a_topic_on_which_no_device_may_publish_is_refused(topic: str, complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        build_publication(topic, b"", settings=SETTINGS)


@pytest.mark.parametrize("topic", ["$shared/g/a", "$SYSTEM/x", "a/$share/b", "$other/x"])
def test_other_topics_with_a_dollar_sign_are_anybodys(topic: str) -> None:
    assert build_publication(topic, b"", settings=SETTINGS).headers[0] == ("mqtt-topic", topic.encode())
