"""Defines the records of `inflight.messages`, a public contract: the Kafka headers of a message and their allowed values.

Key: the client id of the recipient. A record without a key names its recipients in headers (state/records/routing.py). Value: the
payload; null is an empty one.

Both ends use the same reader. The engine reads records with it, and the `Producer` checks its messages with it, so that a message
which the engine would refuse never leaves the backend. A violation raises `BrokenContract`, whose text tells the backend's author
what to change. Text is UTF-8. If a header occurs twice, the last one counts, as in Kafka's own `lastHeader`.

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
| `traceparent` | W3C Trace Context: becomes the user property `traceparent` too |
| `deliver-at` | not before this time: RFC 3339, ms since 1970, or `+30s` after the record's timestamp |
| `collapse-key` | 1…256 bytes: the message replaces those with the same key that wait for the client |
| `cancel-message-id` | instead of `mqtt-topic`: takes back the named message of the client |
| `CC`, `BCC` | JSON arrays of further routing keys of the dead letters, at most `engine.max_routing_keys` together |
| any other | kept unchanged, for dead letters |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar, cast

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.events import CancelRequested, MessageEvent, MessageRefused, MessageSubmitted
from state.model import NO_PROPERTIES, Message, Position, PublishProperties, QoS, Routing
from state.records import properties
from state.records.properties import PROPERTIES, PropertyKind, generated, properties_bytes, property_headers
from state.records.record import HEADER_BYTES, Header, header_bytes
from state.records.routing import decode_routing
from state.records.scheduling import CANCEL, COLLAPSE_KEY, DELIVER_AT, MAX_COLLAPSE_KEY_BYTES, due_at_ms
from state.records.trace_context import TRACEPARENT, with_traceparent
from state.settings import RecordLimits

TOPIC: Final = "mqtt-topic"
QOS: Final = "mqtt-qos"
RETAIN: Final = "mqtt-retain"
MESSAGE_ID: Final = "message-id"
EXPIRATION: Final = "expiration"
PRIORITY: Final = "priority"
PAYLOAD_FORMAT: Final = properties.PAYLOAD_FORMAT.header
CONTENT_TYPE: Final = properties.CONTENT_TYPE.header
RESPONSE_TOPIC: Final = properties.RESPONSE_TOPIC.header
CORRELATION_DATA: Final = properties.CORRELATION_DATA.header
USER_PREFIX: Final = properties.USER_PROPERTIES.header
CC: Final = "CC"
BCC: Final = "BCC"
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY: Final = "x-dead-letter-routing-key"

MAX_STRING_BYTES: Final = 65_535
MAX_MESSAGE_ID_BYTES: Final = 512
MAX_EXPIRATION_MS: Final = 0xFFFF_FFFF * 1_000
"""MQTT's Message Expiry Interval is four bytes of seconds [MQTT-3.3.2.3.3]."""

_T = TypeVar("_T")

_FIELDS: Final = frozenset({TOPIC, QOS, RETAIN, MESSAGE_ID, EXPIRATION, PRIORITY})
_SCHEDULING: Final = frozenset({DELIVER_AT, COLLAPSE_KEY, CANCEL})
_PROPERTY_HEADERS: Final = frozenset(row.header for row in PROPERTIES if row.kind is not PropertyKind.TEXT_PAIRS)
NAMED: Final = _FIELDS | _PROPERTY_HEADERS | _SCHEDULING
"""Headers with a meaning of their own, without those of user properties, CC and BCC."""

_QOS: Final = {b"0": QoS.AT_MOST_ONCE, b"1": QoS.AT_LEAST_ONCE, b"2": QoS.EXACTLY_ONCE}
_BOOL: Final = {b"true": True, b"1": True, b"false": False, b"0": False}


_COPIES: Final = frozenset({CC, BCC})
_ROUTING_BYTES: Final = 40
"""Bytes that a `Routing` takes beside its share and identifiers."""
_encoder: Final = msgspec.msgpack.Encoder()
_keys_decoder: Final = msgspec.json.Decoder(tuple[str, ...])
_format_properties: Final = property_headers(PROPERTIES)


class HeaderLike(Protocol):
    """A Kafka header: a name, and bytes or null."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes | None: ...


class BrokenContract(ValueError):
    """Says what is wrong with a message and what is allowed. The text goes to the dead letter's `x-detail`; the query
    continues."""


def message_event(
    headers: Sequence[HeaderLike],
    value: bytes | None,
    *,
    accepted_ms: int,
    default_message_id: str,
    limits: RecordLimits,
    position: Position | None = None,
    recipient: bytes | None = None,
) -> MessageEvent:
    """Returns the event of a record for its session. `MessageRefused` says what breaks the contract.

    A null value (a tombstone) is an empty payload, which MQTT allows: a backend clears a retained value with it.

    Args:
        accepted_ms, default_message_id: As in `parse_message`.
        position: Of the record.
        recipient: The value of the header that names the client (state/records/routing.py); None = the key names it.
    """
    payload = value or b""
    try:
        _check_sizes(headers, payload, limits)
        message, explicit_id = parse_message(
            headers, payload=payload, accepted_ms=accepted_ms, default_message_id=default_message_id
        )
        routing = None if recipient is None else _routing(recipient)
        if routing is not None:
            message = msgspec.structs.replace(message, routing=routing, qos=min(message.qos, routing.qos), retain=routing.retain)
            explicit_id = routing.is_named
        return MessageSubmitted(message=message, explicit_id=explicit_id, position=position)
    except BrokenContract as refusal:
        if (cancelled := _cancelled_id(headers)) is not None:
            return CancelRequested(message_id=cancelled, position=position)
        message = parse_broken_message(headers, payload=payload, accepted_ms=accepted_ms, default_message_id=default_message_id)
        return MessageRefused(message=message, detail=str(refusal), position=position)


def _routing(recipient: bytes) -> Routing | None:
    try:
        return decode_routing(recipient)
    except UnreadableRecord as error:
        raise BrokenContract(str(error)) from error


def parse_message(
    headers: Sequence[HeaderLike], *, payload: bytes, accepted_ms: int, default_message_id: str
) -> tuple[Message, bool]:
    """Returns the message, and True if the backend set its id.

    Args:
        accepted_ms: `expiration` counts from here.
        default_message_id: The record's position.

    Raises:
        BrokenContract: A header is missing or has a value that is not allowed.
    """
    named: dict[str, bytes] = {}
    raw_properties: dict[str, bytes] = {}
    pairs: list[tuple[str, str]] = []
    others: list[tuple[str, bytes]] = []
    trace = b""
    scheduling: dict[str, bytes] = {}
    for header in headers:
        name, value = header.key, header.value or b""
        if name in _FIELDS:
            named[name] = value
        elif name in _PROPERTY_HEADERS:
            raw_properties[name] = value
        elif name.startswith(USER_PREFIX):
            pairs.append((_mqtt_text(name, name[len(USER_PREFIX) :].encode()), _mqtt_text(name, value)))
        elif name in _SCHEDULING:
            scheduling[name] = value
        else:
            others.append((name, value))
            trace = value if name == TRACEPARENT else trace
    if trace:
        pairs = with_traceparent(pairs, trace)

    raw_topic = named.get(TOPIC)
    if raw_topic is None:
        if CANCEL in scheduling:
            _message_id(scheduling[CANCEL], CANCEL)
        raise BrokenContract(f"header {TOPIC} is missing: every message needs the MQTT topic that the device shall see")
    expiration_ms = _integer(EXPIRATION, named[EXPIRATION], 0, MAX_EXPIRATION_MS) if EXPIRATION in named else None
    if scheduling:
        others += _scheduling_headers(scheduling, accepted_ms, expiration_ms)
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
        properties=_parse_properties(raw_properties, pairs) if raw_properties or pairs else NO_PROPERTIES,
        headers=tuple(others),
    )
    return message, message_id is not None


def parse_broken_message(headers: Sequence[HeaderLike], *, payload: bytes, accepted_ms: int, default_message_id: str) -> Message:
    """Returns a message for the dead letter of a record that breaks the contract. It never raises.

    Headers that no field can hold are kept unchanged, so that the dead letter shows what the backend wrote.
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
    """Returns the headers of a message: those that `parse_message` reads, without the time to live.

    A dead letter must not expire a second time. Whoever sends it again may set `expiration`.
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


def message_bytes(message: Message) -> int:
    """Returns what a message costs while it is stored: payload, topic, properties, headers, death history and routing."""
    size = len(message.payload) + len(message.topic.encode()) + properties_bytes(message.properties)
    if message.headers:
        size += sum([header_bytes(name, value) for name, value in message.headers])
    if message.history is not None:
        size += len(_encoder.encode(message.history))
    if message.routing is not None:
        size += _ROUTING_BYTES + len(message.routing.share) + 5 * len(message.routing.subscription_ids)
        size += sum(map(len, message.routing.tried))
    return size


def _check_sizes(headers: Sequence[HeaderLike], payload: bytes, limits: RecordLimits) -> None:
    if len(payload) > limits.max_payload_bytes:
        raise BrokenContract(
            f"the payload has {len(payload)} bytes: {limits.max_payload_bytes} are allowed (engine.max_payload_bytes)"
        )
    fault = headers_fault(headers, max_bytes=limits.max_headers_bytes, max_routing_keys=limits.max_routing_keys)
    if fault is not None:
        raise BrokenContract(fault)


def headers_fault(headers: Sequence[HeaderLike], *, max_bytes: int, max_routing_keys: int) -> str | None:
    """Returns why these headers are too large for a message; None if they are not.

    Args:
        max_bytes: Names, values and `HEADER_BYTES` for each header.
        max_routing_keys: Keys in CC and BCC together.
    """
    size = sum([header_bytes(header.key, header.value) for header in headers])
    if size > max_bytes:
        return (
            f"the headers have {size} bytes, each one counted with its name, its value and {HEADER_BYTES} bytes, and there are "
            f"{len(headers)}: {max_bytes} bytes are allowed"
        )
    last = {header.key: header.value or b"" for header in headers if header.key in _COPIES}
    if last and (keys := sum(len(keys_in(value)) for value in last.values())) > max_routing_keys:
        return f"{' and '.join(last)} name {keys} routing keys: {max_routing_keys} are allowed (engine.max_routing_keys)"
    return None


def keys_in(value: bytes) -> tuple[str, ...]:
    """Returns the routing keys in CC or BCC; none if the value is invalid."""
    try:
        return _keys_decoder.decode(value)
    except UNDECODABLE:
        return ()


def _message_id(raw: bytes, header: str = MESSAGE_ID) -> str:
    text = _text(header, raw)
    if not 1 <= len(raw) <= MAX_MESSAGE_ID_BYTES:
        raise BrokenContract(f"header {header} has {len(raw)} bytes: 1…{MAX_MESSAGE_ID_BYTES} are allowed")
    return text


def _scheduling_headers(named: Mapping[str, bytes], accepted_ms: int, expiration_ms: int | None) -> Iterator[tuple[str, bytes]]:
    """Yields the headers of a message from state/records/scheduling.py, as the message keeps them."""
    if CANCEL in named:
        raise BrokenContract(f"headers {TOPIC} and {CANCEL}: a record is a message or cancels one, write two records")
    if DELIVER_AT in named:
        try:
            due_ms = due_at_ms(named[DELIVER_AT], accepted_ms)
        except ValueError as error:
            raise BrokenContract(str(error)) from error
        if expiration_ms is not None and due_ms > accepted_ms and due_ms >= accepted_ms + expiration_ms:
            raise BrokenContract(
                f"header {EXPIRATION} is {expiration_ms}, counted from the record's timestamp as {DELIVER_AT} is: "
                f"the message would expire before {DELIVER_AT}, allow it more than {due_ms - accepted_ms} ms"
            )
        yield DELIVER_AT, b"%d" % due_ms
    if COLLAPSE_KEY in named:
        key = named[COLLAPSE_KEY]
        if not 1 <= len(key) <= MAX_COLLAPSE_KEY_BYTES:
            raise BrokenContract(f"header {COLLAPSE_KEY} has {len(key)} bytes: 1…{MAX_COLLAPSE_KEY_BYTES} are allowed")
        yield COLLAPSE_KEY, key


def _cancelled_id(headers: Sequence[HeaderLike]) -> str | None:
    """Returns the id of the message that a record cancels; None if it is no valid cancellation."""
    last = {header.key: header.value or b"" for header in headers}
    if TOPIC in last or CANCEL not in last:
        return None
    try:
        return _message_id(last[CANCEL], CANCEL)
    except BrokenContract:
        return None


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
    # bytes.isdigit() accepts ASCII digits only: no sign, space, underscore or digits of other scripts.
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


def _flag(header: str, raw: bytes) -> int:
    return _integer(header, raw, 0, 1)


_KIND_READERS: Final[dict[PropertyKind, Callable[[str, bytes], object]]] = {
    PropertyKind.FLAG: _flag,
    PropertyKind.TEXT: _mqtt_text,
    PropertyKind.TOPIC_NAME: _topic_name,
    PropertyKind.BINARY: _at_most,
}


def _parsing_lines() -> Iterator[str]:
    """Yields the source of `_parse_properties`."""
    yield "def generated(raw, pairs):"
    yield "    return PublishProperties("
    for row in PROPERTIES:
        read = f"{row.kind.name}({row.header!r}, raw[{row.header!r}]) if {row.header!r} in raw else None"
        yield f"        {row.field}={'tuple(pairs)' if row.kind is PropertyKind.TEXT_PAIRS else read},"
    yield "    )"


_parse_properties: Final = cast(
    Callable[[dict[str, bytes], list[tuple[str, str]]], PublishProperties],
    generated(
        _parsing_lines(),
        PublishProperties=PublishProperties,
        **{kind.name: read for kind, read in _KIND_READERS.items()},
    ),
)
"""Returns the properties in these headers and pairs. Raises BrokenContract."""
