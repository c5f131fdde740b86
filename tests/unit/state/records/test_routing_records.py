"""The records of routing: recipients of a message, lists of subscriptions, publications, what is retained."""

import pytest

from state.commands import AnnounceSubscriptions, EndSubscriptions, ForwardPublication, ReturnToGroup
from state.errors import UnreadableRecord
from state.events import MessageRefused, MessageSubmitted
from state.model import Message, Position, PublishProperties, QoS, Routing, Subscription
from state.records.messages import BrokenContract, message_event
from state.records.publications import (
    SHARE,
    Publication,
    message_headers,
    publication_in,
    retained_record,
    returned_to_group_record,
)
from state.records.record import Header, SinkRecord
from state.records.routing import (
    MAX_RECIPIENTS,
    SourceKind,
    decode_routing,
    encode_routing,
    has_one_message_for_each_mark,
    most_recipients,
    source_number,
)
from state.records.subscriptions import (
    SubscriptionList,
    decode_subscriptions,
    encode_subscriptions,
    ended_connection,
    order_of,
    subscriptions_record,
)
from state.records.uplink import uplink_headers
from state.settings import RecordLimits

ROUTING = Routing(
    source=17, mark=5, connection_id=3, version=2, qos=QoS.AT_LEAST_ONCE, retain=True, subscription_ids=(7,), share="$share/g/a/#"
)
HEADERS = (Header("mqtt-topic", b"a/b"), Header("mqtt-qos", b"2"), Header("message-id", b"m"))


def event_of(recipient: bytes | None) -> MessageSubmitted | MessageRefused:
    return message_event(
        HEADERS,
        b"p",
        accepted_ms=9,
        default_message_id="t-0-1",
        limits=RecordLimits(),
        position=Position(0, 1),
        recipient=recipient,
    )


def test_a_routed_message_has_what_its_recipient_was_granted() -> None:
    event = event_of(encode_routing(ROUTING))
    assert isinstance(event, MessageSubmitted)
    assert (event.message.qos, event.message.retain, event.message.routing) == (QoS.AT_LEAST_ONCE, True, ROUTING)
    assert (event.message.message_id, event.explicit_id) == ("m", False)


@pytest.mark.parametrize("recipient", [None, b""])
def test_a_recipient_named_by_a_backend_gets_a_message_like_any(recipient: bytes | None) -> None:
    event = event_of(recipient)
    assert isinstance(event, MessageSubmitted)
    assert (event.message.qos, event.message.routing, event.explicit_id) == (QoS.EXACTLY_ONCE, None, True)


@pytest.mark.parametrize("recipient", [b"\x02", b"\x01\xc1", b"\x01\x90"])
def test_a_foreign_recipient_breaks_the_contract(recipient: bytes) -> None:
    event = event_of(recipient)
    assert isinstance(event, MessageRefused)
    with pytest.raises(UnreadableRecord):
        decode_routing(recipient)


def test_a_source_is_one_partition_of_one_topic_and_kind() -> None:
    numbers = {
        source_number(kind, partition, topic)
        for kind in SourceKind
        for partition in (0, 1, 9_999)
        for topic in ("id", "other id")
    }
    assert len(numbers) == len(SourceKind) * 3 * 2
    assert max(numbers) < 1 << 63
    single = {kind for kind in SourceKind if has_one_message_for_each_mark(source_number(kind, 3, "id"))}
    assert single == {SourceKind.UPLINK, SourceKind.PUBLICATIONS}


def test_recipients_of_a_large_payload_are_few() -> None:
    assert [most_recipients(size) for size in (0, 1, 262_144, 5 << 20)] == [MAX_RECIPIENTS, MAX_RECIPIENTS, 16, 1]


def test_a_list_of_subscriptions_is_read_as_it_was_written() -> None:
    wanted = SubscriptionList(
        connection_id=4,
        version=2,
        subscriptions=(Subscription(topic_filter="a/#", qos=QoS.EXACTLY_ONCE, identifier=9),),
        wanted=("a/#",),
    )
    assert decode_subscriptions(encode_subscriptions(wanted)) == wanted
    for data in (b"", b"\x01\xc1", b"\x01\x90", b"\x07"):
        with pytest.raises(UnreadableRecord):
            decode_subscriptions(data)


def test_lists_are_ordered_by_connection_version_and_going_offline() -> None:
    places = [(1, 0, True), (1, 0, False), (1, 1, True), (2, 0, True)]
    lists = [SubscriptionList(connection_id=c, version=v, is_online=online) for c, v, online in places]
    assert [order_of(one) for one in lists] == sorted({order_of(one) for one in lists})


def test_the_session_announces_its_list_and_its_end() -> None:
    subscriptions = (Subscription(topic_filter="$share/g/a", qos=QoS.AT_LEAST_ONCE),)
    command = AnnounceSubscriptions(connection_id=4, version=1, subscriptions=subscriptions, is_online=False)
    record = subscriptions_record("subs", "c", command)
    assert (record.topic, record.key) == ("subs", b"c")
    assert decode_subscriptions(record.value or b"") == SubscriptionList(
        connection_id=4, version=1, subscriptions=subscriptions, is_online=False
    )
    ended = subscriptions_record("subs", "c", EndSubscriptions(connection_id=4))
    assert ended == SinkRecord("subs", b"c", None, headers=(Header("ended", b"4"),))
    assert ended_connection([("other", b""), ("ended", b"4")]) == 4
    for value in (None, b"x", b"9" * 21):
        with pytest.raises(UnreadableRecord):
            ended_connection([("ended", value)])


def read(headers: list[Header], *, is_uplink: bool) -> Publication:
    return publication_in(headers, b"p", accepted_ms=1_000, default_message_id="t-0-1", is_uplink=is_uplink)


def test_a_publication_of_a_device_is_read_from_its_uplink_record() -> None:
    headers = uplink_headers(
        client_id="dev",
        inflight_id="dev:1:1",
        topic="a/b",
        qos=QoS.EXACTLY_ONCE,
        retain=True,
        expiry_interval_s=3,
        properties=PublishProperties(content_type="c"),
        username="u",
    )
    publication = read([Header(*pair) for pair in headers], is_uplink=True)
    message = publication.message
    assert (publication.publisher, publication.is_named, publication.share, publication.batch_ms) == ("dev", False, "", None)
    assert (message.message_id, message.topic, message.qos, message.retain) == ("dev:1:1", "a/b", QoS.EXACTLY_ONCE, True)
    assert (message.expires_at_ms, message.properties.content_type, message.headers) == (4_000, "c", ())


def test_a_publication_of_a_backend_keeps_its_headers_and_its_id() -> None:
    publication = read([*HEADERS, Header("x", b"1"), Header(SHARE, b"$share/g/a"), Header("micro-batch", b"7")], is_uplink=False)
    assert (publication.is_named, publication.share, publication.batch_ms) == (True, "$share/g/a", 7)
    assert publication.message.headers == (("x", b"1"),)
    assert read([Header("mqtt-topic", b"t")], is_uplink=False).message.message_id == "t-0-1"
    assert read([Header("mqtt-topic", b"t")], is_uplink=True).message.message_id == "t-0-1"


@pytest.mark.parametrize("headers", [[], [Header("mqtt-topic", b"t"), Header("micro-batch", b"x")]])
def test_a_publication_without_a_topic_or_of_a_strange_time_is_refused(headers: list[Header]) -> None:
    with pytest.raises(BrokenContract):
        read(headers, is_uplink=False)


def test_what_is_passed_on_has_the_time_to_live_that_is_left() -> None:
    message = Message(
        message_id="m", topic="t", payload=b"", expires_at_ms=5_000, expiration_ms=4_000, retain=True, headers=(("x", b"1"),)
    )
    headers = {header.key: header.value for header in message_headers(message, now_ms=1_500)}
    assert (headers["expiration"], headers["x"], "mqtt-retain" in headers) == (b"3500", b"1", False)
    assert {header.key: header.value for header in message_headers(message, now_ms=9_000)}["expiration"] == b"0"
    assert "expiration" not in {
        header.key for header in message_headers(Message(message_id="m", topic="t", payload=b""), now_ms=0)
    }


def test_a_message_goes_back_to_its_group_with_the_time_of_its_batch() -> None:
    message = Message(message_id="m", topic="t", payload=b"p", routing=ROUTING)
    record = returned_to_group_record("pubs", "c", ReturnToGroup(message=message, time_ms=7))
    publication = publication_in(record.headers or (), record.value, accepted_ms=0, default_message_id="", is_uplink=False)
    assert (record.topic, record.key, record.value) == ("pubs", b"c", b"p")
    assert (publication.share, publication.batch_ms, publication.message.message_id) == ("$share/g/a/#", 7, "m")


def test_a_message_goes_back_with_the_members_for_which_it_was_too_large() -> None:
    routing = Routing(**{name: getattr(ROUTING, name) for name in ROUTING.__struct_fields__ if name != "tried"}, tried=("ü", '"'))
    message = Message(message_id="m", topic="t", payload=b"p", routing=routing)
    record = returned_to_group_record("pubs", "c", ReturnToGroup(message=message, time_ms=7))
    publication = publication_in(record.headers or (), record.value, accepted_ms=0, default_message_id="", is_uplink=False)
    assert publication.tried == ("ü", '"')
    assert publication.message.headers == ()


def test_members_that_no_engine_has_written_are_refused() -> None:
    with pytest.raises(BrokenContract, match="mqtt-share-tried"):
        read([Header("mqtt-topic", b"t"), Header("mqtt-share-tried", b"m1")], is_uplink=False)


@pytest.mark.parametrize(("payload", "value"), [(b"gone", b"gone"), (b"", None)])
def test_a_retained_will_is_kept_under_its_topic(payload: bytes, value: bytes | None) -> None:
    will = ForwardPublication(publication_id="i", topic="a/ü", payload=payload, qos=QoS.AT_LEAST_ONCE, retain=True, will=True)
    record = retained_record("kept", "c", will, 7)
    assert (record.topic, record.key, record.value) == ("kept", "a/ü".encode(), value)
    assert record.headers is not None
