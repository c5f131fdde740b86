"""state.records.messages: what a backend may write, and what it is told when it writes something else."""

from dataclasses import dataclass

import pytest

from state.events import MessageRefused
from state.model import NO_PROPERTIES, Message, PublishProperties, QoS
from state.records.messages import (
    MAX_EXPIRATION_MS,
    BrokenContract,
    format_message,
    message_event,
    parse_broken_message,
    parse_message,
)
from state.settings import RecordLimits

TOPIC = ("mqtt-topic", b"cmd")


@dataclass(frozen=True)
class Header:
    key: str
    value: bytes | None


def read(*headers: tuple[str, bytes | None]) -> tuple[Message, bool]:
    given = [Header(name, value) for name, value in headers]
    return parse_message(given, payload=b"p", accepted_ms=1_000, default_message_id="messages-0-7")


def test_only_the_topic_is_required() -> None:
    message, explicit = read(TOPIC)
    assert message == Message(message_id="messages-0-7", topic="cmd", payload=b"p", qos=QoS.AT_LEAST_ONCE, accepted_ms=1_000)
    assert message.properties is NO_PROPERTIES
    assert not explicit


def test_every_header_has_its_field() -> None:
    message, explicit = read(
        TOPIC,
        ("mqtt-qos", b"2"),
        ("mqtt-retain", b"true"),
        ("message-id", "jöb".encode()),
        ("expiration", b"60000"),
        ("priority", b"255"),
        ("payload-format", b"1"),
        ("content-type", b"text/plain"),
        ("response-topic", b"answers"),
        ("correlation-data", b"\xff\x00"),
        ("user-colour", "grün".encode()),
        ("user-colour", b"red"),
        ("x-mine", b"kept"),
        ("x-null", None),
    )
    assert explicit
    assert message == Message(
        message_id="jöb",
        topic="cmd",
        payload=b"p",
        qos=QoS.EXACTLY_ONCE,
        retain=True,
        priority=255,
        accepted_ms=1_000,
        expires_at_ms=61_000,
        expiration_ms=60_000,
        properties=PublishProperties(
            payload_format=1,
            content_type="text/plain",
            response_topic="answers",
            correlation_data=b"\xff\x00",
            user_properties=(("colour", "grün"), ("colour", "red")),
        ),
        headers=(("x-mine", b"kept"), ("x-null", b"")),
    )


def test_of_a_header_that_occurs_twice_the_last_one_counts() -> None:
    assert read(("mqtt-topic", b"first"), ("mqtt-topic", b"last"))[0].topic == "last"


@pytest.mark.parametrize(("written", "retain"), [(b"true", True), (b"1", True), (b"false", False), (b"0", False)])
def test_a_flag_can_be_written_in_two_ways(written: bytes, retain: bool) -> None:
    assert read(TOPIC, ("mqtt-retain", written))[0].retain is retain


def test_the_limits_themselves_are_allowed() -> None:
    topic = "ü" * 32_767 + "x"
    message, _ = read(
        ("mqtt-topic", topic.encode()),
        ("message-id", b"i" * 512),
        ("expiration", b"%d" % MAX_EXPIRATION_MS),
        ("priority", b"0"),
        ("correlation-data", bytes(65_535)),
    )
    assert (message.topic, len(message.message_id), message.expiration_ms) == (topic, 512, MAX_EXPIRATION_MS)
    assert message.properties.correlation_data == bytes(65_535)


BROKEN = {
    "no topic": ([], "header mqtt-topic is missing"),
    "an empty topic": ([("mqtt-topic", b"")], "at least one character [MQTT-4.7.3-1]"),
    "a topic without a value": ([("mqtt-topic", None)], "at least one character [MQTT-4.7.3-1]"),
    "a wildcard": ([("mqtt-topic", b"a/#")], "contains a wildcard"),
    "another wildcard": ([("mqtt-topic", b"+/a")], "contains a wildcard"),
    "U+0000 in a topic": ([("mqtt-topic", b"a\0")], "contains U+0000"),
    "a topic that is not UTF-8": ([("mqtt-topic", b"a\xff")], "not UTF-8: invalid start byte at byte 1"),
    "a topic that is too long": ([("mqtt-topic", b"x" * 65_536)], "has 65536 bytes: MQTT allows 65535"),
    "QoS 3": ([TOPIC, ("mqtt-qos", b"3")], "header mqtt-qos is '3': 0, 1, 2 are allowed"),
    "a flag that is neither": ([TOPIC, ("mqtt-retain", b"yes")], "true, 1, false, 0 are allowed"),
    "an empty message id": ([TOPIC, ("message-id", b"")], "has 0 bytes: 1…512 are allowed"),
    "a message id that is too long": ([TOPIC, ("message-id", b"i" * 513)], "has 513 bytes: 1…512 are allowed"),
    "a message id that is not UTF-8": ([TOPIC, ("message-id", b"\xc0")], "header message-id is not UTF-8"),
    "an expiration below 0": ([TOPIC, ("expiration", b"-1")], "a whole number 0…"),
    "an expiration with a blank": ([TOPIC, ("expiration", b" 1")], "a whole number 0…"),
    "an expiration in other digits": ([TOPIC, ("expiration", "١".encode())], "a whole number 0…"),
    "an expiration beyond four bytes of seconds": ([TOPIC, ("expiration", b"%d" % (MAX_EXPIRATION_MS + 1))], "a whole number"),
    "an expiration without end": ([TOPIC, ("expiration", b"9" * 5_000)], "a whole number"),
    "priority 256": ([TOPIC, ("priority", b"256")], "a whole number 0…255 is allowed"),
    "payload format 2": ([TOPIC, ("payload-format", b"2")], "a whole number 0…1 is allowed"),
    "a content type with U+0000": ([TOPIC, ("content-type", b"\0")], "header content-type contains U+0000"),
    "a response topic with a wildcard": ([TOPIC, ("response-topic", b"r/+")], "header response-topic contains a wildcard"),
    "correlation data that is too long": ([TOPIC, ("correlation-data", bytes(65_536))], "header correlation-data has 65536"),
    "a user property that is not UTF-8": ([TOPIC, ("user-x", b"\xff")], "header user-x is not UTF-8"),
    "a user property whose name has U+0000": ([TOPIC, ("user-\0", b"v")], "contains U+0000"),
}


@pytest.mark.parametrize(("headers", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_what_breaks_the_contract_is_told_to_the_backend(headers: list[tuple[str, bytes | None]], words: str) -> None:
    with pytest.raises(BrokenContract) as caught:
        read(*headers)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300, "whatever the backend wrote"


def test_what_can_be_said_about_a_broken_message_is_said() -> None:
    given = [Header("mqtt-topic", b"a\xff/#"), Header("message-id", b"job"), Header("mqtt-qos", b"9"), Header("x", None)]
    message = parse_broken_message(given, payload=b"p", accepted_ms=5, default_message_id="messages-0-7")
    assert (message.message_id, message.topic, message.payload, message.accepted_ms) == ("job", "a\ufffd/#", b"p", 5)
    assert message.headers == (("mqtt-qos", b"9"), ("x", b""))


@pytest.mark.parametrize("headers", [[], [Header("message-id", b"\xff")], [Header("message-id", None)]])
def test_a_broken_message_without_a_usable_id_is_called_by_its_position(headers: list[Header]) -> None:
    message = parse_broken_message(headers, payload=b"", accepted_ms=5, default_message_id="messages-0-7")
    assert (message.message_id, message.topic) == ("messages-0-7", "")


@pytest.mark.parametrize(
    ("headers", "payload", "words"),
    [
        ((TOPIC,), b"p" * 101, "the payload has 101 bytes: 100 are allowed"),
        ((TOPIC, ("x", b"y" * 50)), b"", "and there are 2: 50 bytes are allowed"),
        ((TOPIC, ("", b"")), b"", "the headers have 77 bytes"),
    ],
)
def test_a_message_that_is_too_large_is_told_so_with_its_size(
    headers: tuple[tuple[str, bytes], ...], payload: bytes, words: str
) -> None:
    limits = RecordLimits(max_payload_bytes=100, max_headers_bytes=50, max_record_bytes=1_000)
    given = [Header(name, value) for name, value in headers]
    refused = message_event(given, payload, accepted_ms=1_000, default_message_id="messages-0-7", limits=limits)
    assert isinstance(refused, MessageRefused)
    assert words in refused.detail


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ((("CC", b'["a", "b"]'), ("BCC", b'["c"]')), ""),
        ((("CC", b'["a", "b", "c", "d"]'), ("CC", b'["a"]')), ""),
        ((("CC", b"[1, 2, 3, 4]"),), ""),
        ((("CC", b'["a", "b"]'), ("BCC", b'["c", "d"]')), "CC and BCC name 4 routing keys: 3 are allowed"),
        ((("BCC", b'["", "", "", ""]'),), "BCC name 4 routing keys: 3 are allowed (engine.max_routing_keys)"),
    ],
)
def test_a_message_with_too_many_routing_keys_is_refused(headers: tuple[tuple[str, bytes], ...], words: str) -> None:
    given = [Header(name, value) for name, value in (TOPIC, *headers)]
    made = message_event(given, b"", accepted_ms=1, default_message_id="m", limits=RecordLimits(max_routing_keys=3))
    assert isinstance(made, MessageRefused) is bool(words)
    assert not isinstance(made, MessageRefused) or words in made.detail


def test_a_written_message_is_read_back_but_for_its_time_to_live() -> None:
    properties = PublishProperties(
        payload_format=1,
        content_type="text",
        response_topic="r",
        correlation_data=b"\x00",
        user_properties=(("a", "1"), ("a", "2")),
    )
    message = Message(
        message_id="m",
        topic="t",
        payload=b"p",
        qos=QoS.EXACTLY_ONCE,
        retain=True,
        priority=9,
        accepted_ms=5,
        properties=properties,
    )
    read_again, explicit = parse_message(format_message(message), payload=b"p", accepted_ms=5, default_message_id="d")
    assert (read_again, explicit) == (message, True)
