"""Turns arguments of `send`, `send_many`, `publish` and `cancel` into records.

The engine's own reader refuses here what the engine would refuse.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from inflight.producer.model import InvalidMessage
from inflight.producer.settings import ProducerSettings
from sinks.kafka.partitioning import partition_of
from sinks.mqtt_topics import is_of_the_server, is_shared
from state.events import MessageRefused
from state.model import ClientId, MessageId
from state.records import messages as contract
from state.records.messages import BrokenContract
from state.records.publications import SHARE
from state.records.record import header_bytes
from state.records.routing import RECIPIENT_PREFIX, most_recipients
from state.records.scheduling import CANCEL, COLLAPSE_KEY, DELIVER_AT
from state.records.uplink import MICRO_BATCH
from state.settings import RecordLimits

_RECORD_OVERHEAD_BYTES: Final = 128
_MAX_RECIPIENTS_BYTES: Final = 65_536
"""Headers that name the recipients of one record, so that it stays far below what a topic takes."""
_OWN_HEADERS: Final = contract.NAMED | {
    contract.CC,
    contract.BCC,
    contract.DEAD_LETTER_EXCHANGE,
    contract.DEAD_LETTER_ROUTING_KEY,
}
_OF_INFLIGHT: Final = {SHARE, MICRO_BATCH}

UserProperties = Mapping[str, str] | Iterable[tuple[str, str]]
DeliverAt = datetime | timedelta | int | str
"""The earliest delivery: a datetime with a time zone, ms since 1970, a timedelta after the record's timestamp, or the header's
text."""
ExtraHeaders = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]]


class _Header(NamedTuple):
    key: str
    value: bytes


class MessageRecord(NamedTuple):
    """A record that the engine or a matcher will accept.

    Attributes:
        client_id: Empty for a publication, and for a record with several recipients.
        key: None = the record names `recipients`, and is for this `partition` of a topic with so many `partitions`.
        headers: Without those of the recipients.
        size_bytes: An upper estimate of its size.
    """

    client_id: ClientId
    message_id: MessageId
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    size_bytes: int
    recipients: tuple[ClientId, ...] = ()
    partition: int = 0
    partitions: int = 0

    @property
    def is_publication(self) -> bool:
        return not (self.client_id or self.recipients)

    @property
    def is_cancellation(self) -> bool:
        """Says that it takes a message back: it is sent to a throttled client too."""
        return self.headers[0][0] == CANCEL

    @property
    def order_key(self) -> str:
        """Records with the same one keep their order: the client id, or the key of a publication. Without recipients only."""
        return self.client_id if self.client_id or self.key is None else self.key.decode(errors="surrogateescape")

    @property
    def all_headers(self) -> list[tuple[str, bytes]]:
        if not self.recipients:
            return self.headers
        return self.headers + [(RECIPIENT_PREFIX + client_id, b"") for client_id in self.recipients]

    def for_one(self, client_id: ClientId) -> "MessageRecord":
        """Returns the same message as a record for one client."""
        return self._replace(client_id=client_id, key=client_id.encode(), recipients=())


def build_message(
    client_id: ClientId, topic: str, payload: bytes | str, *, settings: ProducerSettings, **options: Any
) -> MessageRecord:
    """Builds the record for these arguments, which `Producer.send` explains. Raises InvalidMessage."""
    return build_content(topic, payload, settings=settings, key=_client_key(client_id, settings), **options)._replace(
        client_id=client_id
    )


def build_cancellation(client_id: ClientId, message_id: MessageId, *, settings: ProducerSettings) -> MessageRecord:
    """Builds the record for these arguments, which `Producer.cancel` explains. Raises InvalidMessage."""
    key = _client_key(client_id, settings)
    header = _Header(CANCEL, _encoded("message_id", message_id))
    event = contract.message_event([header], b"", accepted_ms=0, default_message_id="", limits=RecordLimits())
    if isinstance(event, MessageRefused):
        raise InvalidMessage(event.detail)
    size = len(key) + header_bytes(*header) + _RECORD_OVERHEAD_BYTES
    return MessageRecord(client_id, str(uuid.uuid4()), key, b"", [(CANCEL, header.value)], size)


def build_publication(
    topic: str, payload: bytes | str, *, settings: ProducerSettings, key: bytes | str | None = None, **options: Any
) -> MessageRecord:
    """Builds the record for these arguments, which `Producer.publish` explains. Raises InvalidMessage."""
    name = _encoded("topic", topic).decode()
    if is_shared(name):
        raise InvalidMessage(f"topic {topic!r} is the filter of a shared subscription: publish to a topic name")
    if is_of_the_server(name):
        raise InvalidMessage(f"topic {topic!r} is below $SYS, where only Inflight publishes: choose another topic")
    key = topic if key is None else key
    raw = key if isinstance(key, bytes) else _encoded("key", key)
    return build_content(topic, payload, settings=settings, key=raw, **options)


def build_messages(
    client_ids: Sequence[ClientId],
    topic: str,
    payload: bytes | str,
    *,
    settings: ProducerSettings,
    partitions: int | None,
    **options: Any,
) -> Iterator[MessageRecord]:
    """Builds as few records as are needed for a message to many clients: each is for clients of one partition.

    Args:
        client_ids: Different ones, which `check_clients` has seen.
        partitions: Of the topic; None = nobody knows, so each client gets a record of its own.
        options: As `build_message` has them.

    Raises:
        InvalidMessage: Before the first record.
    """
    content = build_content(topic, payload, settings=settings, key=b"", **options)
    if partitions is None:
        yield from map(content.for_one, client_ids)
        return
    by_partition: dict[int, list[ClientId]] = {}
    for client_id in client_ids:
        by_partition.setdefault(partition_of(client_id.encode(), partitions), []).append(client_id)
    most = most_recipients(len(content.value))
    for partition, here in by_partition.items():
        for group, size in _groups(here, most):
            if len(group) == 1:
                yield content.for_one(group[0])
            else:
                size += content.size_bytes
                yield content._replace(key=None, recipients=group, partition=partition, partitions=partitions, size_bytes=size)


def check_clients(client_ids: Iterable[ClientId], settings: ProducerSettings) -> list[ClientId]:
    """Returns the clients of `send_many`. Raises InvalidMessage."""
    if isinstance(client_ids, str):
        raise InvalidMessage("client_ids is text: a list of client ids is allowed; `send` sends to one client")
    found = list(client_ids)
    seen: set[ClientId] = set()
    for client_id in found:
        _client_key(client_id, settings)
        if client_id in seen:
            raise InvalidMessage(f"client_ids has {client_id!r} twice: a client gets a message once, so name each one once")
        seen.add(client_id)
    return found


def _groups(client_ids: list[ClientId], most: int) -> Iterator[tuple[tuple[ClientId, ...], int]]:
    """Yields the recipients of each record, and the bytes of their headers."""
    group: list[ClientId] = []
    group_bytes = 0
    for client_id in client_ids:
        size = header_bytes(RECIPIENT_PREFIX + client_id, b"")
        if group and (len(group) == most or group_bytes + size > _MAX_RECIPIENTS_BYTES):
            yield tuple(group), group_bytes
            group, group_bytes = [], 0
        group.append(client_id)
        group_bytes += size
    if group:
        yield tuple(group), group_bytes


def _client_key(client_id: ClientId, settings: ProducerSettings) -> bytes:
    key = _encoded("client_id", client_id)
    if not 1 <= len(key) <= settings.max_client_id_bytes:
        raise InvalidMessage(f"client_id has {len(key)} bytes: 1…{settings.max_client_id_bytes} are allowed")
    if b"\x00" in key:
        raise InvalidMessage("client_id contains U+0000, which MQTT does not allow in text [MQTT-1.5.4-2]")
    return key


def build_content(
    topic: str,
    payload: bytes | str,
    *,
    settings: ProducerSettings,
    key: bytes,
    qos: int = 1,
    retain: bool = False,
    message_id: MessageId | None = None,
    expiration_ms: int | None = None,
    deliver_at: DeliverAt | None = None,
    collapse_key: bytes | str | None = None,
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
    """Returns a record without a client."""
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
    if deliver_at is not None:
        made.append(_Header(DELIVER_AT, _time(deliver_at)))
    if collapse_key is not None:
        made.append(
            _Header(COLLAPSE_KEY, collapse_key if isinstance(collapse_key, bytes) else _encoded(COLLAPSE_KEY, collapse_key))
        )
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
    return MessageRecord("", message_id, key, value, [(name, text) for name, text in made], size)


def _extra_headers(headers: ExtraHeaders) -> list[_Header]:
    made = []
    for name, value in _pairs(headers):
        if name in _OWN_HEADERS or name.startswith(contract.USER_PREFIX):
            raise InvalidMessage(f"headers contain {name!r}, which `send` has an argument for: use the argument")
        if name in _OF_INFLIGHT or name.startswith(RECIPIENT_PREFIX):
            raise InvalidMessage(f"headers contain {name!r}, which only Inflight writes: choose another name")
        made.append(_Header(name, _encoded(name, value) if isinstance(value, str) else bytes(value)))
    return made


def _check(headers: list[_Header], payload: bytes, settings: ProducerSettings) -> None:
    fault = contract.headers_fault(headers, max_bytes=settings.max_headers_bytes, max_routing_keys=settings.max_routing_keys)
    if fault is not None:
        raise InvalidMessage(fault)
    try:
        contract.parse_message(headers, payload=payload, accepted_ms=time.time_ns() // 1_000_000, default_message_id="")
    except BrokenContract as refusal:
        raise InvalidMessage(str(refusal)) from refusal


def _pairs(
    values: Mapping[str, bytes | str] | Mapping[str, str] | Iterable[tuple[str, bytes | str]] | Iterable[tuple[str, str]],
) -> Iterable[tuple[str, bytes | str]]:
    return values.items() if isinstance(values, Mapping) else values


def _time(deliver_at: DeliverAt) -> bytes:
    """Returns the header for a time."""
    match deliver_at:
        case datetime():
            if deliver_at.tzinfo is None:
                raise InvalidMessage(
                    f"deliver_at is {deliver_at!r}: a datetime with a time zone is allowed, such as datetime.now(UTC)"
                )
            return deliver_at.isoformat().encode()
        case timedelta():
            return b"+%dms" % max(0, deliver_at // timedelta(milliseconds=1))
        case str():
            return _encoded("deliver_at", deliver_at)
        case _:
            return _whole("deliver_at", deliver_at)


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
