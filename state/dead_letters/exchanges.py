"""Routes dead letters: an exchange and routing keys determine the destinations, as in RabbitMQ (protocol.md, section 6).

An exchange is a list of bindings, each of a key to a destination. Its type says when a binding matches a routing key:

| type | matches |
|---|---|
| `direct` | the key is equal |
| `topic` | the key matches the pattern of words: `*` is exactly one word, `#` any number of them, including none |
| `fanout` | always |

Words end at `.` and at `/`. RabbitMQ's MQTT plugin turns the `/` of an MQTT topic into the `.` of a routing key. So `a/b` and
`a.b` match the same patterns there and here.

The default exchange, named "", has no bindings: it routes to the client that the routing key names. A destination gets a dead
letter once, however many keys and bindings lead to it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, assert_never

from state.model import ClientId, Destination, DestinationKind
from state.setting import Setting

DEFAULT_EXCHANGE: Final = ""
DEAD_LETTERS: Final = "dead-letters"
"""The exchange that always exists: a fanout to the engine's own dead-letter topic, used unless a policy says otherwise."""

DEAD_LETTER_TOPIC: Final = Destination(kind=DestinationKind.TOPIC, name="")
"""The engine's own dead-letter topic, whatever the configuration calls it."""

CLIENT_PLACEHOLDER: Final = "{client}"
"""Replaced by the client whose queue the message dies in, in names of `client:` destinations and in a policy's routing key."""

_WORD_END: Final = re.compile(r"[./]")
_KAFKA_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MAX_CLIENT_ID_BYTES: Final = 65_535


class ExchangeType(StrEnum):
    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"


def parse_destination(text: str) -> Destination:
    """Parses `topic:NAME` or `client:ID`.

    Raises:
        ValueError: It is no destination; the text says what is allowed.
    """
    prefix, colon, name = text.partition(":")
    if not colon or prefix not in tuple(DestinationKind):
        raise ValueError(f"{text!r} is no destination: write topic:NAME (Kafka) or client:ID (a queue)")
    kind = DestinationKind(prefix)
    if kind is DestinationKind.TOPIC and (name in (".", "..") or not _KAFKA_TOPIC.fullmatch(name)):
        raise ValueError(f"{name!r} is no topic of Kafka: 1…249 letters, digits, '.', '_' and '-' are allowed")
    if kind is DestinationKind.CLIENT and not 1 <= len(name.encode()) <= _MAX_CLIENT_ID_BYTES:
        raise ValueError(f"{name!r} is no client id: 1…{_MAX_CLIENT_ID_BYTES} bytes are allowed")
    return Destination(kind=kind, name=name)


def _read_destination(value: object) -> Destination:
    return parse_destination(str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Sends what the exchange gets under a key to a destination."""

    key: str = Setting("routing key (direct), pattern with * and # (topic), without a meaning (fanout)").default("")
    destination: Destination = field(
        metadata=Setting(
            "topic:NAME (Kafka) or client:ID (a queue; {client} in it = whose queue it died in)",
            key="to",
            read=_read_destination,
        ).metadata
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A named list of bindings that policies send dead letters to."""

    name: str = field(metadata=Setting("what policies call it", min_length=1, max_length=255).metadata)
    type: ExchangeType = Setting("when a binding matches: equal key, pattern, or always").default(ExchangeType.TOPIC)
    bindings: tuple[Binding, ...] = Setting("list of { key = …, to = … }").default(())

    def route(self, keys: Sequence[str]) -> Iterator[Destination]:
        """Yields the destination of every binding that matches one of the keys, in the order of the bindings."""
        match self.type:
            case ExchangeType.DIRECT:
                yield from (binding.destination for binding in self.bindings if binding.key in keys)
            case ExchangeType.TOPIC:
                for binding in self.bindings:
                    if any(topic_matches(binding.key, key) for key in keys):
                        yield binding.destination
            case ExchangeType.FANOUT:
                yield from (binding.destination for binding in self.bindings)
            case _:
                assert_never(self.type)


_BUILT_IN: Final = Exchange(name=DEAD_LETTERS, type=ExchangeType.FANOUT, bindings=(Binding(destination=DEAD_LETTER_TOPIC),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """The exchanges of the installation.

    Attributes:
        declared: All but the default one. A declared `dead-letters` replaces the built-in one.
    """

    declared: tuple[Exchange, ...] = ()

    def find(self, name: str) -> Exchange | None:
        """Returns the exchange; None for an undeclared name and for the default exchange."""
        return next((exchange for exchange in (*self.declared, _BUILT_IN) if exchange.name == name), None)

    def exists(self, name: str) -> bool:
        return name == DEFAULT_EXCHANGE or self.find(name) is not None

    def route(self, name: str, keys: Sequence[str], *, queue: ClientId) -> tuple[Destination, ...]:
        """Returns the destinations of a message with these routing keys, each once; none for an exchange that does not exist.

        Args:
            queue: The client whose queue the message dies in, for `{client}`.
        """
        exchange = self.find(name)
        if name == DEFAULT_EXCHANGE:
            found: Iterable[Destination] = (Destination(kind=DestinationKind.CLIENT, name=key) for key in keys if key)
        elif exchange is None:
            found = ()
        else:
            found = (_expanded(destination, queue) for destination in exchange.route(keys))
        return tuple(dict.fromkeys(found))


NO_EXCHANGES: Final = Exchanges()
"""The exchanges of every installation: the default exchange and `dead-letters`."""


def topic_matches(pattern: str, key: str) -> bool:
    """Returns True if a binding of a `topic` exchange with this pattern matches this routing key."""
    return _fits(_words(pattern), _words(key))


def _expanded(destination: Destination, queue: ClientId) -> Destination:
    if destination.kind is not DestinationKind.CLIENT or CLIENT_PLACEHOLDER not in destination.name:
        return destination
    return Destination(kind=DestinationKind.CLIENT, name=destination.name.replace(CLIENT_PLACEHOLDER, queue))


def _words(key: str) -> list[str]:
    return _WORD_END.split(key) if key else []  # an empty key has no words, as in RabbitMQ


def _fits(pattern: list[str], words: list[str]) -> bool:
    """Returns True if the words match the pattern. It tracks all positions reached, so that no pattern causes backtracking."""
    reached = past_wildcards(pattern, {0}, "#")
    for word in words:
        here = [position for position in reached if position < len(pattern)]
        following = {position for position in here if pattern[position] == "#"}
        following |= {position + 1 for position in here if pattern[position] in ("*", word) and pattern[position] != "#"}
        reached = past_wildcards(pattern, following, "#")
        if not reached:
            return False
    return len(pattern) in reached


def past_wildcards(pattern: list[str], positions: set[int], wildcard: str) -> set[int]:
    """Adds the positions behind each wildcard, which may match nothing."""
    reached = set(positions)
    for position in positions:
        following = position
        while following < len(pattern) and pattern[following] == wildcard:
            following += 1
            reached.add(following)
    return reached
