"""Records of Kafka → events: records become events, whatever is in them."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.errors import UnreadableRecord
from state.events import (
    Acknowledgement,
    ClientConnected,
    FastSent,
    MessageRefused,
    MessageSubmitted,
    PubAckReceived,
    PubCompReceived,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
)
from state.model import Message, Position, QoS
from state.records.events import encode_event, joined
from state.records.record import Header
from state.settings import RecordLimits
from streaming.engine.operator.cells import EVENTS, MESSAGES, SourceRecord
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.to_events import to_events

SETTINGS = PipelineSettings(commands_partitions=4)
NOW = 1_700_000_000_000
SENT = NOW - 5_000
TOPIC = ("mqtt-topic", b"a/b")


def message_record(*headers: tuple[str, bytes | None], value: bytes | None = b"p", timestamp_ms: int = SENT) -> SourceRecord:
    pairs = tuple(Header(name, content) for name, content in headers)
    return SourceRecord(source=MESSAGES, partition=2, offset=7, timestamp_ms=timestamp_ms, headers=pairs, value=value)


def event_record(value: bytes | None, *, timestamp_ms: int = SENT) -> SourceRecord:
    return SourceRecord(source=EVENTS, partition=1, offset=5, timestamp_ms=timestamp_ms, value=value)


def submitted(*headers: tuple[str, bytes | None], **fields) -> Message:
    (event,) = to_events(message_record(*headers, **fields), SETTINGS, now_ms=NOW)
    assert isinstance(event, MessageSubmitted), event
    return event.message


def refused(*headers: tuple[str, bytes | None], settings: PipelineSettings = SETTINGS, **fields) -> MessageRefused:
    (event,) = to_events(message_record(*headers, **fields), settings, now_ms=NOW)
    assert isinstance(event, MessageRefused), event
    return event


def test_a_topic_is_all_that_a_message_needs() -> None:
    (event,) = to_events(message_record(TOPIC), SETTINGS, now_ms=NOW)
    message = Message(message_id="inflight.messages-2-7", topic="a/b", payload=b"p", accepted_ms=SENT)
    assert event == MessageSubmitted(message=message, explicit_id=False, position=Position(2, 7))


def test_headers_of_recipients_are_none_of_a_message_that_names_several() -> None:
    headers = ("recipient-a", b""), TOPIC, ("recipient-b", b"\x01"), ("x", b"1")
    record = msgspec.structs.replace(message_record(*headers), recipient=b"")
    (event,) = to_events(record, SETTINGS, now_ms=NOW)
    assert isinstance(event, MessageSubmitted)
    assert event.message.headers == (("x", b"1"),)
    assert ("recipient-a", b"") in submitted(*headers).headers, "its key names the client"


def test_a_tombstone_is_an_empty_payload() -> None:
    assert submitted(TOPIC, value=None).payload == b""


@pytest.mark.parametrize("timestamp_ms", [-1, 0, NOW + 1, NOW + 10**9])
def test_an_impossible_timestamp_becomes_the_micro_batch_time(timestamp_ms: int) -> None:
    message = submitted(TOPIC, ("expiration", b"10"), timestamp_ms=timestamp_ms)
    assert (message.accepted_ms, message.expires_at_ms) == (NOW, NOW + 10)


def test_the_payload_limit_of_the_settings_holds() -> None:
    limits = RecordLimits(max_payload_bytes=100)
    settings = PipelineSettings(commands_partitions=4, limits=limits)
    assert "101 bytes" in refused(TOPIC, value=b"p" * 101, settings=settings).detail


def test_a_refused_message_has_what_the_backend_wrote_and_a_reason() -> None:
    event = refused(TOPIC, ("message-id", b"mine"), ("mqtt-qos", b"7"), ("foreign", b"\xff"))
    assert event.detail == "header mqtt-qos is '7': 0, 1, 2 are allowed"
    message = event.message
    assert (message.message_id, message.topic, message.payload, message.accepted_ms) == ("mine", "a/b", b"p", SENT)
    assert message.headers == (("mqtt-qos", b"7"), ("foreign", b"\xff"))


_NAMES = ["mqtt-topic", "mqtt-qos", "message-id", "expiration", "priority", "user-x", "response-topic"]
names = st.sampled_from(_NAMES) | st.text()


@given(
    headers=st.lists(st.tuples(names, st.none() | st.binary() | st.sampled_from([b"0", b"1", b"a"])), max_size=6),
    value=st.none() | st.binary(),
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
)
def test_any_record_of_messages_is_an_event(headers, value: bytes | None, timestamp_ms: int) -> None:
    record = message_record(*headers, value=value, timestamp_ms=timestamp_ms)
    (event,) = to_events(record, SETTINGS, now_ms=NOW)
    assert isinstance(event, MessageSubmitted | MessageRefused)
    assert (event,) == tuple(to_events(record, SETTINGS, now_ms=NOW))


@pytest.mark.parametrize("kind", [PubAckReceived, PubRecReceived, PubCompReceived, PubRelReceived])
@pytest.mark.parametrize(("timestamp_ms", "logged_ms"), [(SENT, SENT), (-1, NOW), (NOW + 1, NOW)])
def test_an_answer_has_the_time_of_its_record_but_never_a_later_one(
    kind: type[Acknowledgement], timestamp_ms: int, logged_ms: int
) -> None:
    record = event_record(encode_event(kind(connection_id=3, packet_id=9)), timestamp_ms=timestamp_ms)
    assert to_events(record, SETTINGS, now_ms=NOW) == [kind(connection_id=3, packet_id=9, logged_ms=logged_ms)]


def test_a_fast_send_has_the_time_of_its_record_and_that_of_its_message() -> None:
    message = Message(message_id="m", topic="t", payload=b"p", accepted_ms=SENT - 2)
    event = FastSent(connection_id=3, position=Position(0, 1), previous=0, packet_id=0, qos=QoS(0), message=message, sent_ms=SENT)
    (decoded,) = to_events(event_record(encode_event(event)), SETTINGS, now_ms=NOW)
    assert decoded == msgspec.structs.replace(event, logged_ms=SENT)


def test_a_record_with_several_acknowledgements_is_as_many_events() -> None:
    events = [PubRecReceived(connection_id=3, packet_id=9, pubrel_sent=True), PubAckReceived(connection_id=3, packet_id=8)]
    record = event_record(joined([encode_event(event) for event in events]))
    assert to_events(record, SETTINGS, now_ms=NOW) == [msgspec.structs.replace(event, logged_ms=SENT) for event in events]


def test_a_publication_gets_its_id_from_its_position() -> None:
    event = PublishReceived(connection_id=3, packet_id=9, topic="t", payload=b"p")
    (decoded,) = to_events(event_record(encode_event(event)), SETTINGS, now_ms=NOW)
    assert decoded == msgspec.structs.replace(event, publication_id="inflight.events-1-5")


@pytest.mark.parametrize("partition", [-1, 4, 2**40])
def test_a_connection_that_names_a_missing_partition_is_unreadable(partition: int) -> None:
    value = encode_event(ClientConnected(connection_id=1, commands_partition=partition))
    with pytest.raises(UnreadableRecord, match="restart the engine"):
        to_events(event_record(value), SETTINGS, now_ms=NOW)


@given(st.none() | st.binary() | st.binary().map(lambda noise: b"\x01" + noise))
def test_any_other_record_of_events_is_unreadable_and_nothing_else(value: bytes | None) -> None:
    with contextlib.suppress(UnreadableRecord):
        to_events(event_record(value), SETTINGS, now_ms=NOW)


def test_a_message_whose_bytes_were_left_out_is_refused_at_its_position() -> None:
    record = SourceRecord(source=MESSAGES, partition=2, offset=7, timestamp_ms=SENT, bytes_left_out=5_000_000)
    (event,) = to_events(record, SETTINGS, now_ms=NOW)
    assert isinstance(event, MessageRefused)
    assert event.position == Position(2, 7)
    assert event.message == Message(message_id="inflight.messages-2-7", topic="", payload=b"", accepted_ms=SENT)
    assert "offset 7 in partition 2 of inflight.messages has 5000000 bytes" in event.detail
    assert "at most 900000 " in event.detail


def test_an_event_whose_bytes_were_left_out_is_unreadable() -> None:
    record = SourceRecord(source=EVENTS, partition=1, offset=5, timestamp_ms=SENT, bytes_left_out=5_000_000)
    with pytest.raises(
        UnreadableRecord, match=r"offset 5 in partition 1 of inflight.events has 5000000 bytes .* at most 3600000 "
    ):
        to_events(record, SETTINGS, now_ms=NOW)
