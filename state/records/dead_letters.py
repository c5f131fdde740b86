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
| `x-dead-letter-table` | the archive's table of a binding to `table:NAME` |
| `x-truncated-from-bytes` | the original length of a payload that was cut |
| `x-source-topic`, `x-source-key` | the origin of a record that belongs to no session |
| `x-replay-of`, `x-replays` | the dead letter that the message replays, and how often it was replayed |

A backend may send headers with these names, for example when it sends a dead letter again. A death history among them is kept under
other names (`x-received-death`, `x-received-first-death-reason` …) and never used as the engine's own.
"""  # noqa: E501 - a table

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from state.commands import DeadLetter
from state.model import ClientId, Death, DeathHistory, DestinationKind, Outcome
from state.records.events import returned_record
from state.records.messages import BCC, TOPIC, format_message
from state.records.record import Header, SinkRecord, TimeMs
from state.records.settings import RecordLimits, Topics

DEATHS: Final = "x-death"
FIRST_DEATH: Final = "x-first-death-"
LAST_DEATH: Final = "x-last-death-"
EXCHANGE: Final = "x-exchange"
ROUTING_KEY: Final = "x-routing-key"
DETAIL: Final = "x-detail"
TRUNCATED: Final = "x-truncated-from-bytes"
TABLE: Final = "x-dead-letter-table"
"""The archive's table of a binding to `table:NAME`. Such a dead letter goes through the dead-letter topic."""
SOURCE_TOPIC: Final = "x-source-topic"
SOURCE_KEY: Final = "x-source-key"
REPLAY_OF: Final = "x-replay-of"
REPLAYS: Final = "x-replays"

_RECEIVED: Final = "x-received-"
_ABOUT_THE_DEATH: Final = frozenset(
    {DEATHS, EXCHANGE, ROUTING_KEY, DETAIL, TABLE, TRUNCATED, REPLAY_OF, REPLAYS, SOURCE_TOPIC, SOURCE_KEY}
)
_MAX_KEY_BYTES: Final = 1_024
"""A longer key is not repeated in the record: it is the MQTT topic or a header of the message."""
_SHOWN_KEY_BYTES: Final = 1_024
_SHOWN_HEADERS: Final = 32
_SHOWN_NAME_CHARACTERS: Final = 256
_SHOWN_VALUE_BYTES: Final = 1_024
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
        size = len(to.name.encode())
        if size <= limits.max_client_id_bytes:
            message = msgspec.structs.replace(letter.message, history=fitted(history, limits.max_headers_bytes // 2))
            return returned_record(topics.events, to.name, message)
        detail = f"{letter.detail}; the exchange routed it to a client whose id has {size} bytes, which no client can have"
        letter = msgspec.structs.replace(letter, destination=None, detail=detail.removeprefix("; "))
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


def _record_with_headers(
    letter: DeadLetter, client_id: ClientId, topics: Topics, limits: RecordLimits, extra_headers: Iterable[Header]
) -> SinkRecord:
    """Returns the record of a dead letter for a topic.

    Payloads over `max_payload_bytes` and headers over `max_headers_bytes` are cut, so that no broker refuses the dead letter.
    They never were a valid message, and the original record stays in its topic for the retention time.
    """
    message, to = letter.message, letter.destination
    kept = [*format_message(message), *carried_headers(message.headers)]
    if sum(len(header.key) + len(header.value or b"") for header in kept) > limits.max_headers_bytes:
        kept = [_shortened(header) for header in kept[:_SHOWN_HEADERS]]
    headers = [*kept, *extra_headers]
    if message.history is not None:
        headers += death_headers(fitted(message.history, limits.max_headers_bytes // 2))
    if letter.detail:
        headers.append(Header(DETAIL, letter.detail.encode()))
    if to is not None and to.kind is DestinationKind.TABLE:
        headers.append(Header(TABLE, to.name.encode()))
    payload = message.payload
    if len(payload) > limits.max_payload_bytes:
        headers.append(Header(TRUNCATED, b"%d" % len(payload)))
        payload = payload[: limits.max_payload_bytes]
    topic = to.name if to is not None and to.kind is DestinationKind.TOPIC else ""
    return SinkRecord(topic or topics.dead_letters, client_id.encode(), payload, headers=tuple(headers))


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
