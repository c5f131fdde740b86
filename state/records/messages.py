"""The records of `inflight.messages`, a public contract: what the Kafka headers of a message mean and which values are allowed.

Key: the id of the client that the message is for. Value: the payload; null is an empty one.

One reader for both ends: the engine reads records with it, and the `Producer` reads what it is about to send, so that a message
which the engine would refuse never leaves the backend. What breaks the contract raises `BrokenContract`, whose text tells the
backend's author what to change. Text is UTF-8; a header that occurs twice counts as its last occurrence, as in Kafka's own
`lastHeader`.

| header | meaning |
|---|---|
| `mqtt-topic` | required: a topic name, at most 65,535 bytes, no wildcard, no NUL |
| `mqtt-qos` | 0, 1 (default), 2 |
| `mqtt-retain` | `true`/`1`, `false`/`0` (default) |
| `message-id` | default `topic-partition-offset`, 1…512 bytes |
| `expiration` | time to live in ms, from the record's timestamp; 0 = only if it can be sent at once |
| `priority` | 0 (default)…255 |
| `payload-format`, `content-type`, `response-topic`, `correlation-data` (bytes) | MQTT 5 properties |
| `user-NAME` | MQTT 5 user property NAME, in the order given, repeatable |
| anything else | kept as it is, for dead letters |
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeVar

from state.events import MessageRefused, MessageSubmitted
from state.model import NO_PROPERTIES, Message, Position, PublishProperties, QoS
from state.records.record import Header
from state.records.settings import RecordLimits

TOPIC: Final = "mqtt-topic"
QOS: Final = "mqtt-qos"
RETAIN: Final = "mqtt-retain"
MESSAGE_ID: Final = "message-id"
EXPIRATION: Final = "expiration"
PRIORITY: Final = "priority"
PAYLOAD_FORMAT: Final = "payload-format"
CONTENT_TYPE: Final = "content-type"
RESPONSE_TOPIC: Final = "response-topic"
CORRELATION_DATA: Final = "correlation-data"
USER_PREFIX: Final = "user-"
CC: Final = "CC"
BCC: Final = "BCC"
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY: Final = "x-dead-letter-routing-key"

MAX_STRING_BYTES: Final = 65_535
MAX_MESSAGE_ID_BYTES: Final = 512
MAX_EXPIRATION_MS: Final = 0xFFFF_FFFF * 1_000
"""MQTT's Message Expiry Interval is four bytes of seconds [MQTT-3.3.2.3.3]."""

_T = TypeVar("_T")

NAMED: Final = frozenset(
    {TOPIC, QOS, RETAIN, MESSAGE_ID, EXPIRATION, PRIORITY, PAYLOAD_FORMAT, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA}
)
_QOS: Final = {b"0": QoS.AT_MOST_ONCE, b"1": QoS.AT_LEAST_ONCE, b"2": QoS.EXACTLY_ONCE}
_BOOL: Final = {b"true": True, b"1": True, b"false": False, b"0": False}


class HeaderLike(Protocol):
    """A Kafka header: name, and bytes or null."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes | None: ...


class BrokenContract(ValueError):
    """What is wrong with a message and what is allowed; ends in the dead letter's `x-detail`, never stops the query."""


def message_event(
    headers: Sequence[HeaderLike],
    value: bytes | None,
    *,
    accepted_ms: int,
    default_message_id: str,
    limits: RecordLimits,
    position: Position | None = None,
) -> MessageSubmitted | MessageRefused:
    """The event that a record is for its session; `MessageRefused` says what breaks the contract.

    A null value (a tombstone) is an empty payload, which MQTT allows: it is how a backend clears a retained value.
    accepted_ms, default_message_id: as in `parse_message`. position: of the record.
    """
    payload = value or b""
    try:
        _check_sizes(headers, payload, limits)
        message, explicit_id = parse_message(
            headers, payload=payload, accepted_ms=accepted_ms, default_message_id=default_message_id
        )
        return MessageSubmitted(message=message, explicit_id=explicit_id, position=position)
    except BrokenContract as refusal:
        message = parse_broken_message(headers, payload=payload, accepted_ms=accepted_ms, default_message_id=default_message_id)
        return MessageRefused(message=message, detail=str(refusal), position=position)


def parse_message(
    headers: Sequence[HeaderLike], *, payload: bytes, accepted_ms: int, default_message_id: str
) -> tuple[Message, bool]:
    """The message, and whether the backend named its id. Raises BrokenContract.

    accepted_ms: from when `expiration` counts. default_message_id: the record's position.
    """
    named: dict[str, bytes] = {}
    user_properties: list[tuple[str, str]] = []
    others: list[tuple[str, bytes]] = []
    for header in headers:
        name, value = header.key, header.value or b""
        if name in NAMED:
            named[name] = value
        elif name.startswith(USER_PREFIX):
            user_properties.append((_mqtt_text(name, name[len(USER_PREFIX) :].encode()), _mqtt_text(name, value)))
        else:
            others.append((name, value))

    raw_topic = named.get(TOPIC)
    if raw_topic is None:
        raise BrokenContract(f"header {TOPIC} is missing: every message needs the MQTT topic that the device shall see")
    expiration_ms = _integer(EXPIRATION, named[EXPIRATION], 0, MAX_EXPIRATION_MS) if EXPIRATION in named else None
    message_id = _message_id(named[MESSAGE_ID]) if MESSAGE_ID in named else None
    message = Message(
        message_id=message_id or default_message_id,
        topic=_topic_name(TOPIC, raw_topic),
        payload=payload,
        qos=_choice(QOS, named[QOS], _QOS) if QOS in named else QoS.AT_LEAST_ONCE,
        retain=_choice(RETAIN, named[RETAIN], _BOOL) if RETAIN in named else False,
        priority=_integer(PRIORITY, named[PRIORITY], 0, 255) if PRIORITY in named else 0,
        accepted_ms=accepted_ms,
        expires_at_ms=None if expiration_ms is None else accepted_ms + expiration_ms,
        expiration_ms=expiration_ms,
        properties=_properties(named, user_properties),
        headers=tuple(others),
    )
    return message, message_id is not None


def parse_broken_message(headers: Sequence[HeaderLike], *, payload: bytes, accepted_ms: int, default_message_id: str) -> Message:
    """What can be said about a message that breaks the contract, for its dead letter; never raises.

    Headers that no field can hold are kept as they came, so that the dead letter shows what the backend wrote.
    """
    last = {header.key: header.value or b"" for header in headers}
    try:
        message_id = _message_id(last[MESSAGE_ID])
    except (KeyError, BrokenContract):
        message_id = default_message_id
    return Message(
        message_id=message_id,
        topic=last.get(TOPIC, b"").decode(errors="replace"),
        payload=payload,
        accepted_ms=accepted_ms,
        headers=tuple((header.key, header.value or b"") for header in headers if header.key not in (TOPIC, MESSAGE_ID)),
    )


def format_message(message: Message) -> list[Header]:
    """The headers that say what `message` is: what `parse_message` reads, without the time to live.

    A dead letter must not expire a second time, so `expiration` is left to whoever sends it again.
    """
    headers = [
        Header(TOPIC, message.topic.encode()),
        Header(QOS, b"%d" % message.qos),
        Header(MESSAGE_ID, message.message_id.encode()),
    ]
    if message.retain:
        headers.append(Header(RETAIN, b"true"))
    if message.priority:
        headers.append(Header(PRIORITY, b"%d" % message.priority))
    if message.properties != NO_PROPERTIES:
        headers += _format_properties(message.properties)
    return headers


def _format_properties(properties: PublishProperties) -> list[Header]:
    headers = []
    if properties.payload_format is not None:
        headers.append(Header(PAYLOAD_FORMAT, b"%d" % properties.payload_format))
    if properties.content_type is not None:
        headers.append(Header(CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append(Header(RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append(Header(CORRELATION_DATA, properties.correlation_data))
    headers += [Header(USER_PREFIX + name, value.encode()) for name, value in properties.user_properties]
    return headers


def _check_sizes(headers: Sequence[HeaderLike], payload: bytes, limits: RecordLimits) -> None:
    if len(payload) > limits.max_payload_bytes:
        raise BrokenContract(
            f"the payload has {len(payload)} bytes: {limits.max_payload_bytes} are allowed (engine.max_payload_bytes)"
        )
    if headers and (size := _headers_bytes(headers)) > limits.max_headers_bytes:
        raise BrokenContract(f"the headers have {size} bytes: {limits.max_headers_bytes} are allowed")


def _headers_bytes(headers: Sequence[HeaderLike]) -> int:
    return sum(len(header.key.encode()) + len(header.value or b"") for header in headers)


def _properties(named: dict[str, bytes], user_properties: list[tuple[str, str]]) -> PublishProperties:
    properties = PublishProperties(
        payload_format=_integer(PAYLOAD_FORMAT, named[PAYLOAD_FORMAT], 0, 1) if PAYLOAD_FORMAT in named else None,
        content_type=_mqtt_text(CONTENT_TYPE, named[CONTENT_TYPE]) if CONTENT_TYPE in named else None,
        response_topic=_topic_name(RESPONSE_TOPIC, named[RESPONSE_TOPIC]) if RESPONSE_TOPIC in named else None,
        correlation_data=_at_most(CORRELATION_DATA, named[CORRELATION_DATA]) if CORRELATION_DATA in named else None,
        user_properties=tuple(user_properties),
    )
    return NO_PROPERTIES if properties == NO_PROPERTIES else properties


def _message_id(raw: bytes) -> str:
    text = _text(MESSAGE_ID, raw)
    if not 1 <= len(raw) <= MAX_MESSAGE_ID_BYTES:
        raise BrokenContract(f"header {MESSAGE_ID} has {len(raw)} bytes: 1…{MAX_MESSAGE_ID_BYTES} are allowed")
    return text


def _topic_name(header: str, raw: bytes) -> str:
    topic = _mqtt_text(header, raw)
    if not topic:
        raise BrokenContract(f"header {header} is empty: a topic name has at least one character [MQTT-4.7.3-1]")
    if "#" in topic or "+" in topic:
        raise BrokenContract(f"header {header} contains a wildcard: a topic name is without # and + [MQTT-3.3.2-2]")
    return topic


def _mqtt_text(header: str, raw: bytes) -> str:
    text = _text(header, _at_most(header, raw))
    if "\x00" in text:
        raise BrokenContract(f"header {header} contains U+0000, which MQTT does not allow in text [MQTT-1.5.4-2]")
    return text


def _at_most(header: str, raw: bytes) -> bytes:
    if len(raw) > MAX_STRING_BYTES:  # [MQTT-4.7.3-3]
        raise BrokenContract(f"header {header} has {len(raw)} bytes: MQTT allows {MAX_STRING_BYTES}")
    return raw


def _text(header: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BrokenContract(f"header {header} is not UTF-8: {error.reason} at byte {error.start}") from error


def _integer(header: str, raw: bytes, minimum: int, maximum: int) -> int:
    # isdigit() on bytes is ASCII only: no sign, no blank, no underscore, no digits of other scripts.
    if not raw.isdigit() or len(raw) > 20 or not minimum <= int(raw) <= maximum:
        raise BrokenContract(f"header {header} is {_shown(raw)}: a whole number {minimum}…{maximum} is allowed")
    return int(raw)


def _choice(header: str, raw: bytes, choices: Mapping[bytes, _T]) -> _T:
    try:
        return choices[raw]
    except KeyError:
        allowed = ", ".join(choice.decode() for choice in choices)
        raise BrokenContract(f"header {header} is {_shown(raw)}: {allowed} are allowed") from None


def _shown(raw: bytes) -> str:
    return repr(raw[:40].decode(errors="replace"))
