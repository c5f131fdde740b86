"""state.records.dead_letters: the message, and its death history as Kafka headers."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.commands import DeadLetter
from state.dead_letters.dead_letter import DeathLimits, with_death
from state.dead_letters.dead_letter import dead_letter as make_dead_letters
from state.dead_letters.exchanges import DEAD_LETTER_TOPIC, Binding, Exchange, Exchanges, ExchangeType
from state.dead_letters.policy import Policy
from state.events import MessageRefused, MessageReturned, MessageSubmitted
from state.model import DeathHistory, Destination, DestinationKind, Message, Outcome, PublishProperties, QoS
from state.records.dead_letters import (
    carried_headers,
    dead_letter_record,
    death_headers,
    fitted,
    is_about_the_death,
    parse_death_headers,
    record_bytes,
    source_headers,
)
from state.records.events import decode_events
from state.records.messages import message_event, parse_message
from state.records.record import Header, SinkRecord, header_bytes
from state.settings import RecordLimits, Topics

LIMITS = RecordLimits()
NOW = 1_700_000_000_000


def message() -> Message:
    fresh = Message(message_id="m", topic="t/ü", payload=b"", expiration_ms=5)
    once = with_death(fresh, queue="q", reason=Outcome.EXPIRED, time_ms=7, exchange="x", override="k")
    return with_death(once, queue="r", reason=Outcome.REJECTED, time_ms=9, exchange="y")


def test_the_headers_are_rabbitmqs() -> None:
    assert message().history is not None
    headers = {header.key: (header.value or b"").decode() for header in death_headers(message().history)}
    assert json.loads(headers.pop("x-death")) == [
        {"queue": "r", "reason": "rejected", "count": 1, "time": 9, "exchange": "x", "routing-keys": ["k"]},
        {
            "queue": "q",
            "reason": "expired",
            "count": 1,
            "time": 7,
            "exchange": "",
            "routing-keys": ["t/ü"],
            "original-expiration": "5",
        },
    ]
    assert headers == {
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "r",
        "x-last-death-exchange": "x",
        "x-last-death-time": "9",
        "x-exchange": "y",
        "x-routing-key": "k",
    }


def test_the_history_reads_back_from_its_headers() -> None:
    assert parse_death_headers(death_headers(message().history)) == message().history


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'[{"queue": "q"}]', b"\xff", b"[" * 5_000, b'[{"queue":1}]'])
def test_what_is_no_history_reads_as_none(value: bytes) -> None:
    assert parse_death_headers([Header("x-death", value)]) is None


def test_foreign_histories_are_set_apart_and_replace_older_ones() -> None:
    carried = carried_headers(
        [
            ("x-received-death", b"older"),
            ("x-death", b"newer"),
            ("x-first-death-queue", b"q"),
            ("x-exchange", b"gone"),
            ("BCC", b'["s"]'),
            ("mine", b"1"),
        ]
    )
    assert [(header.key, header.value) for header in carried] == [
        ("x-received-death", b"newer"),
        ("x-received-first-death-queue", b"q"),
        ("mine", b"1"),
    ]


def dead_letter(message: Message, detail: str = "") -> SinkRecord:
    dead = with_death(message, queue="ü", reason=Outcome.EXPIRED, time_ms=NOW, exchange="dead-letters")
    letter = DeadLetter(message=dead, reason=Outcome.EXPIRED, time_ms=NOW, detail=detail)
    return dead_letter_record(letter, client_id="ü", topics=Topics(), limits=LIMITS)


def test_a_dead_letter_has_its_history_and_becomes_the_message_again() -> None:
    properties = PublishProperties(content_type="text/plain", correlation_data=b"\xff", user_properties=(("a", "b"),))
    message = Message(
        message_id="id-1", topic="a/b", payload=b"\x00", qos=QoS.EXACTLY_ONCE, retain=True, priority=7, accepted_ms=5,
        expires_at_ms=15, expiration_ms=10, properties=properties, headers=(("x-other", b"\xff"),),
    )  # fmt: skip
    record = dead_letter(message, "too late")
    headers = {header.key: header.value for header in record.headers or ()}
    assert json.loads(headers["x-death"] or b"") == [
        {
            "queue": "ü", "reason": "expired", "count": 1, "time": NOW, "exchange": "", "routing-keys": ["a/b"],
            "original-expiration": "10",
        }
    ]  # fmt: skip
    assert headers["x-first-death-reason"] == headers["x-last-death-reason"] == b"expired"
    assert headers["x-detail"] == b"too late"
    assert "expiration" not in headers
    again, explicit = parse_message(record.headers or (), payload=record.value, accepted_ms=5, default_message_id="other")
    assert explicit
    assert msgspec.structs.replace(again, headers=()) == msgspec.structs.replace(
        message, headers=(), expires_at_ms=None, expiration_ms=None
    )


def test_what_was_too_large_is_cut_to_a_record_that_kafka_takes() -> None:
    huge = tuple((f"h{number}", b"v" * 9_000) for number in range(90))
    record = dead_letter(Message(message_id="m", topic="t", payload=b"p" * 5_000_000, headers=huge))
    headers = record.headers or ()
    assert Header("x-truncated-from-bytes", b"5000000") in headers
    assert Header("x-truncated-from-headers", b"93") in headers
    assert record_bytes(record) < LIMITS.max_record_bytes


def test_too_many_empty_headers_make_a_dead_letter_that_kafka_takes() -> None:
    given = [Header("mqtt-topic", b"t"), Header("expiration", b"0"), *[Header("", b"")] * 15_000]
    refused = message_event(given, b"p", accepted_ms=1, default_message_id="m-0-7", limits=LIMITS)
    assert isinstance(refused, MessageRefused)
    assert "the headers have 480086 bytes" in refused.detail
    record = dead_letter(refused.message, refused.detail)
    assert record_bytes(record) < 10_000
    assert headers_of(record)["x-truncated-from-headers"] == b"15004"
    assert (headers_of(record)["message-id"], record.value) == (b"m-0-7", b"p")


def test_the_largest_valid_message_leaves_its_dead_letter_whole() -> None:
    """Its headers are as many and as large as they may be, and are renamed, and its detail and history are long."""
    limits = RecordLimits(max_record_bytes=262_144 + 2 * 65_536)
    largest = [
        Header("mqtt-topic", b"t" * 1_000),
        *[Header("x-death", b"1" * 9)] * 1_200,
        Header("CC", b'["%s"]' % (b"k" * 4_000)),
    ]
    largest.append(Header("rest", b"r" * (65_536 - sum(header_bytes(h.key, h.value) for h in largest) - 36)))
    event = message_event(largest, b"p" * 262_144, accepted_ms=1, default_message_id="i" * 270, limits=limits)
    assert isinstance(event, MessageSubmitted)
    message = event.message
    for number in range(300):
        message = with_death(message, queue=f"{number:1000}", reason=Outcome.EXPIRED, time_ms=7, exchange="x" * 255)
    dead = with_death(message, queue="q" * 1_024, reason=Outcome.REJECTED, time_ms=7, exchange="x" * 255)
    letter = DeadLetter(message=dead, reason=Outcome.REJECTED, time_ms=NOW, detail="ü" * 60_000)
    record = dead_letter_record(letter, client_id="q" * 1_024, topics=Topics(), limits=limits)
    assert record_bytes(record) <= limits.max_record_bytes
    assert record.value == b"p" * 262_144
    names = headers_of(record)
    assert names["x-truncated-from-deaths"] == b"301"
    assert {"x-truncated-from-bytes", "x-truncated-from-headers"}.isdisjoint(names)
    assert len((names["x-detail"] or b"").decode()) == 2_048


TEXTS = st.text(max_size=40) | st.integers(0, 70_000).map("ü".__mul__)
BYTES = st.binary(max_size=40) | st.integers(0, 400_000).map(bytes)
KINDS = st.sampled_from(list(DestinationKind))


@given(
    st.integers(16_384, 1_000_000),
    st.builds(
        Message,
        message_id=st.text(max_size=512),
        topic=TEXTS,
        payload=BYTES,
        properties=st.builds(PublishProperties, user_properties=st.lists(st.tuples(TEXTS, TEXTS), max_size=9).map(tuple)),
        headers=st.lists(st.tuples(TEXTS, BYTES), max_size=9).map(tuple)
        | st.integers(0, 60_000).map(lambda count: (("x-death", b""),) * count),
    ),
    st.lists(st.text(max_size=1_000), max_size=20),
    st.none() | st.builds(Destination, kind=KINDS, name=st.text(min_size=1, max_size=249)),
    TEXTS,
)
@pytest.mark.promise("dead-letter-fits")
def test_any_dead_letter_fits_its_topic_whatever_the_topic_takes(
    topic_bytes: int, message: Message, queues: list[str], to: Destination | None, detail: str
) -> None:
    for queue in queues:
        message = with_death(message, queue=queue, reason=Outcome.EXPIRED, time_ms=7, exchange=queue[:255])
    limits = RecordLimits(dead_letter_topic_bytes=topic_bytes)
    bindings = (Binding(destination=to or DEAD_LETTER_TOPIC),)
    (given,) = make_dead_letters(
        message,
        queue="q" * 1_000,
        reason=Outcome.REJECTED,
        time_ms=NOW,
        policy=Policy(dead_letter_exchange="x"),
        exchanges=Exchanges(declared=(Exchange(name="x", type=ExchangeType.FANOUT, bindings=bindings),)),
        detail=detail,
        limits=DeathLimits(max_record_bytes=limits.max_record_bytes),
    ).letters
    to = given.destination
    record = dead_letter_record(
        given, client_id="q" * 1_000, topics=Topics(), limits=limits, extra_headers=source_headers("t", b"k")
    )
    assert record_bytes(record) <= (limits.max_record_bytes if record.topic == "inflight.events" else topic_bytes)
    if record.topic == "inflight.events":
        return
    names = headers_of(record)
    assert ("x-truncated-from-bytes" in names) is (len(record.value or b"") < len(message.payload))
    if message.headers and "x-truncated-from-headers" not in names:
        assert carried_headers(message.headers) is not None
        assert set(carried_headers(message.headers)) <= set(record.headers or ())


def test_a_limit_below_the_facts_of_a_death_leaves_some_of_them() -> None:
    limits = RecordLimits(dead_letter_topic_bytes=600)
    record = dead_letter_record(letter(None, detail="why"), client_id="c", topics=Topics(), limits=limits)
    assert record_bytes(record) <= 600
    assert headers_of(record)["x-detail"] == b"why"


MESSAGE = Message(message_id="m", topic="a/b", payload=b"p", expiration_ms=5_000, expires_at_ms=9_000, accepted_ms=4_000)


def history(message: Message) -> DeathHistory:
    assert message.history is not None
    return message.history


@given(st.integers(0, 5_000), st.lists(st.text(max_size=200), min_size=1, max_size=20))
def test_a_history_can_be_cut_to_a_size_and_keeps_the_newest_death(max_bytes: int, queues: list[str]) -> None:
    message = MESSAGE
    for queue in queues:
        message = with_death(message, queue=queue, reason=Outcome.EXPIRED, time_ms=0, exchange="x", override=queue)
    cut = fitted(history(message), max_bytes)
    assert cut.deaths[0].queue == queues[-1]
    assert cut.first_queue == queues[0]
    sizes = [len(msgspec.json.encode((death.queue, death.exchange, death.routing_keys))) + 160 for death in cut.deaths]
    assert len(sizes) == 1 or sum(sizes) <= max_bytes
    assert fitted(cut, max_bytes) == cut


def test_a_long_history_loses_routing_keys_of_its_oldest_deaths_first() -> None:
    message = MESSAGE
    for queue in "abc":
        message = with_death(message, queue=queue, reason=Outcome.EXPIRED, time_ms=0, exchange="x", override="k" * 100)
    whole = history(message)
    cut = fitted(whole, sum(len(msgspec.json.encode((d.queue, d.exchange, d.routing_keys))) + 160 for d in whole.deaths) - 1)
    assert [death.queue for death in cut.deaths] == ["c", "b", "a"]
    assert [bool(death.routing_keys) for death in cut.deaths] == [True, True, False]


def test_a_long_history_without_routing_keys_loses_its_oldest_deaths() -> None:
    message = MESSAGE
    for number, name in enumerate("abc"):
        message = with_death(message, queue=name * 100, reason=Outcome.EXPIRED, time_ms=1_000 * (number + 1), exchange="x")
    assert [death.queue[0] for death in fitted(history(message), 600).deaths] == ["c", "b"]
    assert [death.queue[0] for death in fitted(history(message), 1).deaths] == ["c"]


def letter(destination: Destination | None, *, dead: Message | None = None, detail: str = "") -> DeadLetter:
    return DeadLetter(message=dead or message(), reason=Outcome.EXPIRED, time_ms=NOW, destination=destination, detail=detail)


def record_of(given: DeadLetter) -> SinkRecord:
    return dead_letter_record(
        given, client_id="c", topics=Topics(), limits=LIMITS, extra_headers=source_headers("t", b"k" * 2_000)
    )


def headers_of(record: SinkRecord) -> dict[str, bytes | None]:
    return {header.key: header.value for header in record.headers or ()}


def test_a_dead_letter_for_a_client_is_an_event_with_its_history() -> None:
    record = record_of(letter(Destination(kind=DestinationKind.CLIENT, name="ü")))
    assert (record.topic, record.key, record.headers) == ("inflight.events", "ü".encode(), None)
    assert decode_events(record.value or b"") == (MessageReturned(message=message()),)


def test_a_dead_letter_goes_to_the_topic_of_its_destination() -> None:
    assert record_of(letter(Destination(kind=DestinationKind.TOPIC, name="elsewhere"))).topic == "elsewhere"
    assert record_of(letter(None)).topic == "inflight.dead-letters"


def test_what_belongs_to_no_session_says_where_it_came_from() -> None:
    fresh = Message(message_id="m", topic="t", payload=b"")
    headers = headers_of(record_of(letter(None, dead=fresh)))
    assert headers["x-source-topic"] == b"t"
    assert headers["x-source-key"] == b"k" * 1_024, "a longer key is cut"
    assert "x-death" not in headers
    assert [header.key for header in source_headers("t", None)] == ["x-source-topic"]


def test_a_routing_key_that_is_as_long_as_a_topic_can_be_is_left_out() -> None:
    long = with_death(
        Message(message_id="m", topic="t", payload=b""),
        queue="q",
        reason=Outcome.EXPIRED,
        time_ms=7,
        exchange="x",
        override="k" * 1_025,
    )
    assert long.history is not None
    assert "x-routing-key" not in {header.key for header in death_headers(long.history)}


@pytest.mark.parametrize(
    ("name", "expected"), [("x-death", True), ("x-first-death-queue", True), ("x-detail", True), ("mqtt-topic", False)]
)
def test_headers_about_the_death_are_told_from_the_messages_own(name: str, expected: bool) -> None:
    assert is_about_the_death(name) is expected
