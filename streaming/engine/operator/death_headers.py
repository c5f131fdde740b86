"""The death history of a message as Kafka headers, in RabbitMQ's words, and back.

| header | value |
|---|---|
| `x-death` | JSON array, newest first: `queue`, `reason`, `count`, `time` (of the first, ms), `exchange`, `routing-keys`, and `original-expiration` where there was a time to live |
| `x-first-death-reason`, `-queue`, `-exchange` | of the first death ever |
| `x-last-death-reason`, `-queue`, `-exchange`, `-time` | of the newest death |
| `x-exchange`, `x-routing-key` | what the dead letter was published with |

A backend may send headers of these names, for example when it sends a dead letter again. They are kept under other names
(`x-received-death`, `x-received-first-death-reason` …) and are never taken for a history of ours.
"""  # noqa: E501 - a table

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from state.model import Death, DeathHistory, Outcome
from state.records.messages import BCC, TOPIC
from streaming.engine.operator.cells import Header

DEATHS: Final = "x-death"
FIRST_DEATH: Final = "x-first-death-"
LAST_DEATH: Final = "x-last-death-"
EXCHANGE: Final = "x-exchange"
ROUTING_KEY: Final = "x-routing-key"
_RECEIVED: Final = "x-received-"
_MAX_KEY_BYTES: Final = 1_024
"""A longer key is the MQTT topic or a header of the message, and a record must not hold it twice."""
_FACTS: Final = ("reason", "queue", "exchange")


class DeathJson(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """One element of `x-death`. The name of each field is RabbitMQ's."""

    queue: str
    reason: str
    count: int
    time: int
    exchange: str
    routing_keys: tuple[str, ...]
    original_expiration: str | None = None


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(tuple[DeathJson, ...])


def death_headers(history: DeathHistory) -> Iterator[Header]:
    """What a dead letter says about its deaths."""
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


def carried_headers(headers: Iterable[tuple[str, bytes]]) -> Iterator[Header]:
    """The message's own headers as a dead letter shows them: BCC is for nobody's eyes, and foreign histories are set apart."""
    headers = tuple(headers)
    renamed = {_set_apart(name) for name, _ in headers}
    for name, value in headers:
        if name in (BCC, EXCHANGE, ROUTING_KEY):
            continue
        apart = _set_apart(name)
        if apart is not None:
            yield Header(apart, value)
        elif name not in renamed:  # what was set apart the time before gives way to what came this time
            yield Header(name, value)


def parse_death_headers(headers: Iterable[Header]) -> DeathHistory | None:
    """The history that `death_headers` wrote; None for what it did not write.

    Whoever calls this vouches for the headers: `inflight replay` may, because it reads what the engine wrote.
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


def _set_apart(name: str) -> str | None:
    if name == DEATHS or name.startswith((FIRST_DEATH, LAST_DEATH)):
        return _RECEIVED + name.removeprefix("x-")
    return None


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
