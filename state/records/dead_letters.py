"""Defines the records of `inflight.dead-letters`, and of the other topics to which exchanges send dead letters.

Key: the client in whose queue the message died. Value: its payload. Headers: those of the message without the time to live
(state/records/messages.py), so that an unchanged copy sent to `inflight.messages` is the same message again; the message's other
headers; and headers about its death, with RabbitMQ's names where it has one:

| header | value |
|---|---|
| `x-death` | JSON array, newest first: `queue`, `reason`, `count`, `time` (of the first, ms), `exchange`, `routing-keys`, and `original-expiration` where the message had a time to live and the reason is `expired` |
| `x-first-death-reason`, `-queue`, `-exchange` | of the first death ever |
| `x-last-death-reason`, `-queue`, `-exchange`, `-time` | of the newest death |
| `x-exchange`, `x-routing-key` | what the dead letter was published with |
| `x-detail` | what was wrong, for people |
| `x-truncated-from-bytes`, `-headers`, `-deaths` | what a dead letter that had to be cut had before: bytes of payload, headers of the message, elements of `x-death` |
| `x-source-topic`, `x-source-key` | the origin of a record that belongs to no session |
| `x-replay-of`, `x-replays` | the dead letter that the message replays, and how often it was replayed |

A backend may send headers with these names, for example when it sends a dead letter again. A death history among them is kept under
other names (`x-received-death`, `x-received-first-death-reason` …) and never used as the engine's own.
"""  # noqa: E501 - a table

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from state.commands import DeadLetter
from state.model import ClientId, Death, DeathHistory, DestinationKind, Message, Outcome
from state.records.events import returned_record
from state.records.messages import BCC, TOPIC, format_message
from state.records.record import Header, SinkRecord, TimeMs
from state.settings import RecordLimits, Topics

DEATHS: Final = "x-death"
FIRST_DEATH: Final = "x-first-death-"
LAST_DEATH: Final = "x-last-death-"
EXCHANGE: Final = "x-exchange"
ROUTING_KEY: Final = "x-routing-key"
DETAIL: Final = "x-detail"
TRUNCATED: Final = "x-truncated-from-bytes"
TRUNCATED_HEADERS: Final = "x-truncated-from-headers"
TRUNCATED_DEATHS: Final = "x-truncated-from-deaths"
SOURCE_TOPIC: Final = "x-source-topic"
SOURCE_KEY: Final = "x-source-key"
REPLAY_OF: Final = "x-replay-of"
REPLAYS: Final = "x-replays"

_RECEIVED: Final = "x-received-"
_ABOUT_THE_DEATH: Final = frozenset(
    {
        DEATHS,
        EXCHANGE,
        ROUTING_KEY,
        DETAIL,
        TRUNCATED,
        TRUNCATED_HEADERS,
        TRUNCATED_DEATHS,
        REPLAY_OF,
        REPLAYS,
        SOURCE_TOPIC,
        SOURCE_KEY,
    }
)
_MAX_KEY_BYTES: Final = 1_024
"""A longer key is not repeated in the record: it is the MQTT topic or a header of the message."""
_SHOWN_KEY_BYTES: Final = 1_024
_SHOWN_HEADERS: Final = 32
_SHOWN_NAME_CHARACTERS: Final = 256
_SHOWN_VALUE_BYTES: Final = 1_024
_MAX_DETAIL_BYTES: Final = 4_096
"""A client's reason string alone may have 64 KiB."""
_OWN_HEADERS_BYTES: Final = 1_024
"""Bytes of a valid message beyond `max_headers_bytes`: its position as id, and the longer names of a foreign history."""
_MARKERS_BYTES: Final = 256
_RECORD_BYTES: Final = 128
"""Bytes that a record and its batch take at most beside key, value and headers."""
_KAFKA_HEADER_BYTES: Final = 10
"""Bytes that a header takes at most beside name and value."""
_PART: Final = 4
"""The message's headers, and its history, get at most this part of a record that is too small for all."""
_DEATH_OVERHEAD_BYTES: Final = 160
"""The length of one death as JSON without its texts, at least."""
_FACTS: Final = ("reason", "queue", "exchange")


class DeathJson(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """One element of `x-death`. The field names are RabbitMQ's."""

    queue: str
    reason: str
    count: int
    time: TimeMs
    exchange: str
    routing_keys: tuple[str, ...]
    original_expiration: str | None = None


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(tuple[DeathJson, ...])


def dead_letter_record(
    letter: DeadLetter, *, client_id: ClientId, topics: Topics, limits: RecordLimits, extra_headers: Iterable[Header] = ()
) -> SinkRecord:
    """Returns the record of a dead letter: an event if the destination is the queue of a client, else a record with headers.

    Args:
        extra_headers: `source_headers`, for a record that belongs to no session.
    """
    to, history = letter.destination, letter.message.history
    if to is not None and to.kind is DestinationKind.CLIENT and history is not None:
        message = msgspec.structs.replace(letter.message, history=fitted(history, limits.max_headers_bytes // 2))
        return returned_record(topics.events, to.name, message)
    return _record_with_headers(letter, client_id, topics, limits, extra_headers)


def source_headers(topic: str, key: bytes | None) -> Iterator[Header]:
    """Yields headers that say where a record came from that belongs to no session.

    Args:
        key: The record's key if it is no client id.
    """
    yield Header(SOURCE_TOPIC, topic.encode())
    if key is not None:
        yield Header(SOURCE_KEY, key[:_SHOWN_KEY_BYTES])


def death_headers(history: DeathHistory) -> Iterator[Header]:
    """Yields the headers about the deaths of a message."""
    newest = history.deaths[0]
    yield Header(DEATHS, _encoder.encode([_to_json(death) for death in history.deaths]))
    for name, value in zip(_FACTS, (history.first_reason.value, history.first_queue, history.first_exchange), strict=True):
        yield Header(FIRST_DEATH + name, value.encode())
    for name, value in zip(_FACTS, (newest.reason.value, newest.queue, history.last_exchange), strict=True):
        yield Header(LAST_DEATH + name, value.encode())
    yield Header(LAST_DEATH + "time", b"%d" % history.last_time_ms)
    yield Header(EXCHANGE, history.exchange.encode())
    key = history.routing_key.encode()
    if len(key) <= _MAX_KEY_BYTES:
        yield Header(ROUTING_KEY, key)


def parse_death_headers(headers: Iterable[Header]) -> DeathHistory | None:
    """Returns the history that `death_headers` wrote; None if it did not write these headers.

    The caller must trust the headers. `inflight replay` may, because it reads what the engine wrote.
    """
    found = {header.key: header.value or b"" for header in headers}
    try:
        deaths = tuple(_from_json(death) for death in _decoder.decode(found[DEATHS]))
        first = [found[FIRST_DEATH + name].decode() for name in _FACTS]
        return DeathHistory(
            deaths=deaths,
            first_reason=Outcome(first[0]),
            first_queue=first[1],
            first_exchange=first[2],
            last_exchange=found[LAST_DEATH + "exchange"].decode(),
            last_time_ms=int(found.get(LAST_DEATH + "time", b"0")),
            exchange=found[EXCHANGE].decode(),
            routing_key=found.get(ROUTING_KEY, found.get(TOPIC, b"")).decode(),
        )
    except (KeyError, ValueError, RecursionError):
        return None


def carried_headers(headers: Iterable[tuple[str, bytes]]) -> Iterator[Header]:
    """Yields the message's own headers for a dead letter: without BCC, which stays secret, and with foreign histories renamed."""
    headers = tuple(headers)
    renamed = {_received_name(name) for name, _ in headers}
    for name, value in headers:
        if name in (BCC, EXCHANGE, ROUTING_KEY):
            continue
        received = _received_name(name)
        if received is not None:
            yield Header(received, value)
        elif name not in renamed:  # a name from an earlier renaming yields to the present one
            yield Header(name, value)


def is_about_the_death(name: str) -> bool:
    """Returns True if a header describes the death; other headers are the message's own."""
    return name in _ABOUT_THE_DEATH or name.startswith((FIRST_DEATH, LAST_DEATH))


def fitted(history: DeathHistory, max_bytes: int) -> DeathHistory:
    """Cuts the history to about `max_bytes` of JSON, so that no record grows too large for Kafka.

    Routing keys are removed first, then whole deaths, both from the oldest on. The counts of remaining deaths stay true.
    """
    if _size(history.deaths) <= max_bytes:
        return history
    deaths = list(history.deaths)
    for index in range(len(deaths) - 1, -1, -1):
        deaths[index] = msgspec.structs.replace(deaths[index], routing_keys=())
        if _size(deaths) <= max_bytes:
            break
    while len(deaths) > 1 and _size(deaths) > max_bytes:
        deaths.pop()
    return msgspec.structs.replace(history, deaths=tuple(deaths))


def record_bytes(record: SinkRecord) -> int:
    """Returns the largest size that the record can have in Kafka, without compression."""
    return _RECORD_BYTES + len(record.key) + len(record.value or b"") + _kafka_bytes(record.headers or ())


def _record_with_headers(
    letter: DeadLetter, client_id: ClientId, topics: Topics, limits: RecordLimits, extra_headers: Iterable[Header]
) -> SinkRecord:
    """Returns the record of a dead letter for a topic, cut so that no broker refuses it.

    The dead letter of a valid message is whole, unless the topics take less than a message of the largest size. Otherwise headers
    and history of the message have limits, and the payload has what they leave. Markers say how much there was; the original
    record stays in its topic for the retention time. If not even the facts of the death have room, those that have are written.
    """
    message, to, key = letter.message, letter.destination, client_id.encode()
    room = max(0, limits.max_dead_letter_bytes - _RECORD_BYTES - len(key) - _MARKERS_BYTES)
    own, markers = _own_headers(message, min(limits.max_headers_bytes + _OWN_HEADERS_BYTES, room // _PART))
    facts: list[Header] = []
    if letter.detail:
        facts.append(Header(DETAIL, letter.detail.encode()[:_MAX_DETAIL_BYTES].decode(errors="ignore").encode()))
    facts += extra_headers
    if message.history is not None:
        history = fitted(message.history, min(limits.max_headers_bytes // 2, room // _PART))
        deaths, *others = death_headers(history)
        facts += (*others, deaths)
        if history is not message.history:
            markers.append(Header(TRUNCATED_DEATHS, b"%d" % len(message.history.deaths)))
    room -= _kafka_bytes(own)
    facts = _that_fit(facts, room)
    payload, room = message.payload, min(limits.max_payload_bytes, room - _kafka_bytes(facts))
    if len(payload) > room:
        markers.append(Header(TRUNCATED, b"%d" % len(payload)))
        payload = payload[:room]
    topic = to.name if to is not None and to.kind is DestinationKind.TOPIC else ""
    return SinkRecord(topic or topics.dead_letters, key, payload, headers=(*own, *facts, *markers))


def _own_headers(message: Message, max_bytes: int) -> tuple[list[Header], list[Header]]:
    """Returns the message's own headers, at most `max_bytes`, and a marker if they had to be cut."""
    own = format_message(message)
    if len(message.headers) * _KAFKA_HEADER_BYTES <= max_bytes:  # a million headers are not even looked at
        whole = [*own, *carried_headers(message.headers)]
        if _kafka_bytes(whole) <= max_bytes:
            return whole, []
    shown = [*own, *carried_headers(message.headers[:_SHOWN_HEADERS])][:_SHOWN_HEADERS]
    marker = Header(TRUNCATED_HEADERS, b"%d" % (len(own) + len(message.headers)))
    return _that_fit([_shortened(header) for header in shown], max_bytes), [marker]


def _that_fit(headers: Iterable[Header], room: int) -> list[Header]:
    """Returns the headers for which there is room after those before them."""
    fitting = []
    for header in headers:
        size = _kafka_bytes((header,))
        if size <= room:
            fitting.append(header)
            room -= size
    return fitting


def _kafka_bytes(headers: Iterable[Header]) -> int:
    return sum([_KAFKA_HEADER_BYTES + len(header.key.encode()) + len(header.value or b"") for header in headers])


def _shortened(header: Header) -> Header:
    return Header(header.key[:_SHOWN_NAME_CHARACTERS], (header.value or b"")[:_SHOWN_VALUE_BYTES])


def _received_name(name: str) -> str | None:
    """Returns the new name of a header of a death history; None for other headers."""
    if name == DEATHS or name.startswith((FIRST_DEATH, LAST_DEATH)):
        return _RECEIVED + name.removeprefix("x-")
    return None


def _size(deaths: Sequence[Death]) -> int:
    return sum(
        _DEATH_OVERHEAD_BYTES + len(_encoder.encode((death.queue, death.exchange, death.routing_keys))) for death in deaths
    )


def _to_json(death: Death) -> DeathJson:
    expiration_ms = death.original_expiration_ms
    return DeathJson(
        queue=death.queue,
        reason=death.reason.value,
        count=death.count,
        time=death.time_ms,
        exchange=death.exchange,
        routing_keys=death.routing_keys,
        original_expiration=None if expiration_ms is None else str(expiration_ms),
    )


def _from_json(death: DeathJson) -> Death:
    return Death(
        queue=death.queue,
        reason=Outcome(death.reason),
        count=death.count,
        time_ms=death.time,
        exchange=death.exchange,
        routing_keys=death.routing_keys,
        original_expiration_ms=None if death.original_expiration is None else int(death.original_expiration),
    )
