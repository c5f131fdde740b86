"""Turns arguments of `send` into a record of `inflight.messages`. The engine's own reader refuses here what the engine would
refuse."""

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from inflight.producer.model import InvalidMessage
from inflight.producer.settings import ProducerSettings
from state.model import ClientId, MessageId
from state.records import messages as contract
from state.records.messages import BrokenContract
from state.records.record import header_bytes

_RECORD_OVERHEAD_BYTES: Final = 128
_OWN_HEADERS: Final = contract.NAMED | {
    contract.CC,
    contract.BCC,
    contract.DEAD_LETTER_EXCHANGE,
    contract.DEAD_LETTER_ROUTING_KEY,
}

UserProperties = Mapping[str, str] | Iterable[tuple[str, str]]
ExtraHeaders = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]]


class _Header(NamedTuple):
    key: str
    value: bytes


class MessageRecord(NamedTuple):
    """A record that the engine will accept. size_bytes: an upper estimate of its size."""

    client_id: ClientId
    message_id: MessageId
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    size_bytes: int


def build_message(
    client_id: ClientId,
    topic: str,
    payload: bytes | str,
    *,
    settings: ProducerSettings,
    qos: int = 1,
    retain: bool = False,
    message_id: MessageId | None = None,
    expiration_ms: int | None = None,
    priority: int | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    content_type: str | None = None,
    payload_format: int | None = None,
    user_properties: UserProperties = (),
    cc: Iterable[str] = (),
    bcc: Iterable[str] = (),
    dead_letter_exchange: str | None = None,
    dead_letter_routing_key: str | None = None,
    headers: ExtraHeaders = (),
) -> MessageRecord:
    """Builds the record for these arguments, which `Producer.send` explains. Raises InvalidMessage."""
    key = _encoded("client_id", client_id)
    if not 1 <= len(key) <= settings.max_client_id_bytes:
        raise InvalidMessage(f"client_id has {len(key)} bytes: 1…{settings.max_client_id_bytes} are allowed")
    value = _encoded("payload", payload) if isinstance(payload, str) else payload
    if not isinstance(value, bytes):
        raise InvalidMessage(f"payload is {type(payload).__name__}: bytes, or text that is sent as UTF-8, are allowed")
    if len(value) > settings.max_payload_bytes:
        raise InvalidMessage(f"payload has {len(value)} bytes: {settings.max_payload_bytes} are allowed (max_payload_bytes)")
    if message_id is None:
        message_id = str(uuid.uuid4())
    made = [
        _Header(contract.TOPIC, _encoded("topic", topic)),
        _Header(contract.QOS, _whole(contract.QOS, qos)),
        _Header(contract.MESSAGE_ID, _encoded("message_id", message_id)),
    ]
    if retain:
        made.append(_Header(contract.RETAIN, b"true"))
    numbers = (
        (contract.EXPIRATION, expiration_ms),
        (contract.PRIORITY, priority),
        (contract.PAYLOAD_FORMAT, payload_format),
    )
    made += [_Header(name, _whole(name, number)) for name, number in numbers if number is not None]
    texts = (
        (contract.RESPONSE_TOPIC, response_topic),
        (contract.CONTENT_TYPE, content_type),
        (contract.DEAD_LETTER_EXCHANGE, dead_letter_exchange),
        (contract.DEAD_LETTER_ROUTING_KEY, dead_letter_routing_key),
    )
    made += [_Header(name, _encoded(name, text)) for name, text in texts if text is not None]
    if correlation_data is not None:
        made.append(_Header(contract.CORRELATION_DATA, bytes(correlation_data)))
    made += [
        _Header(name, json.dumps(list(addresses), ensure_ascii=False).encode())
        for name, addresses in ((contract.CC, cc), (contract.BCC, bcc))
        if addresses
    ]
    if user_properties:
        made += [_Header(contract.USER_PREFIX + name, _encoded(name, text)) for name, text in _pairs(user_properties)]
    if headers:
        made += _extra_headers(headers)
    _check(made, value, settings)
    size = len(key) + len(value) + sum(header_bytes(*header) for header in made) + _RECORD_OVERHEAD_BYTES
    return MessageRecord(client_id, message_id, key, value, [(name, text) for name, text in made], size)


def _extra_headers(headers: ExtraHeaders) -> list[_Header]:
    made = []
    for name, value in _pairs(headers):
        if name in _OWN_HEADERS or name.startswith(contract.USER_PREFIX):
            raise InvalidMessage(f"headers contain {name!r}, which `send` has an argument for: use the argument")
        made.append(_Header(name, _encoded(name, value) if isinstance(value, str) else bytes(value)))
    return made


def _check(headers: list[_Header], payload: bytes, settings: ProducerSettings) -> None:
    fault = contract.headers_fault(headers, max_bytes=settings.max_headers_bytes, max_routing_keys=settings.max_routing_keys)
    if fault is not None:
        raise InvalidMessage(fault)
    try:
        contract.parse_message(headers, payload=payload, accepted_ms=0, default_message_id="")
    except BrokenContract as refusal:
        raise InvalidMessage(str(refusal)) from refusal


def _pairs(
    values: Mapping[str, bytes | str] | Mapping[str, str] | Iterable[tuple[str, bytes | str]] | Iterable[tuple[str, str]],
) -> Iterable[tuple[str, bytes | str]]:
    return values.items() if isinstance(values, Mapping) else values


def _whole(name: str, number: object) -> bytes:
    if not isinstance(number, int):
        raise InvalidMessage(f"{name} is {number!r}: a whole number is allowed")
    return b"%d" % number


def _encoded(name: str, text: str | bytes) -> bytes:
    if not isinstance(text, str):
        raise InvalidMessage(f"{name} is {type(text).__name__}: text is allowed")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{name} is not Unicode that UTF-8 can carry: {error.reason} at character {error.start}") from error
