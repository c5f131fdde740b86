"""Makes the dead letters of a message that leaves a session undelivered (docs/protocol.md, section 6).

docs/dead_letters.md explains dead letters to users. The rules, in the order in which `dead_letter` applies them:

 1. The exchange is the one that the message names (`x-dead-letter-exchange`), else the policy's. The message's own headers count
    only in the queue that it was first sent to, as RabbitMQ's arguments count only in the queue that they declare. If the policy
    has an owner, an exchange that the owner may not write to does not count either.
 2. With an overriding key (`x-dead-letter-routing-key`, else the policy's) that is the only key, and the message loses CC and
     BCC.
    Otherwise the keys are the message's own: the one that it was last published with (at first its MQTT topic), CC and BCC.
 3. The death enters the history. There is one entry for each queue and reason, newest first: a repetition raises `count` and
    changes nothing else.
 4. The time to live is removed, because a dead letter must not expire a second time. The history keeps it if the message expired.
 5. The exchange determines the destinations, each once.
 6. A destination that is the queue of a client is dropped if it closes a cycle (`closes_cycle`). The others remain.
 7. A record that breaks the contract of messages is no message. Its own headers do not count, and no client's queue gets it: the
    engine's own dead-letter topic does.

The history is a field of the message that only this module writes. An `x-death` header of a backend is never read.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from state.commands import DeadLetter
from state.dead_letters.exchanges import DEAD_LETTER_TOPIC, Exchanges
from state.dead_letters.policy import Policy
from state.errors import UNDECODABLE
from state.model import DEAD_LETTERED, ClientId, Death, DeathHistory, Destination, DestinationKind, Message, Outcome
from state.records.messages import BCC, CC, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY

_keys_decoder: Final = msgspec.json.Decoder(tuple[str, ...])
_json: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettering:
    """The result of dead-lettering a message.

    Attributes:
        letters: One for each destination.
        cycles: Destinations that were dropped because they would close a cycle.
        fault: Why there is no letter at all, for people; empty if there is one.
    """

    letters: tuple[DeadLetter, ...] = ()
    cycles: tuple[Destination, ...] = ()
    fault: str = ""


NOT_DEAD: Final = DeadLettering()
"""The result for a message that is not dead-lettered."""


def wants_dead_letter(message: Message, *, queue: ClientId, reason: Outcome, policy: Policy) -> bool:
    """Returns True if a message that leaves `queue` for `reason` is dead-lettered."""
    if reason in policy.dead_letter_reasons:
        return True
    return (
        reason in DEAD_LETTERED
        and reason is not Outcome.INVALID
        and (named := _own_header(message, DEAD_LETTER_EXCHANGE, queue)) is not None
        and policy.may_write(named)
    )


def dead_letter(
    message: Message, *, queue: ClientId, reason: Outcome, time_ms: int, policy: Policy, exchanges: Exchanges, detail: str = ""
) -> DeadLettering:
    """Returns the dead letters of a message that has just died in the queue of a client.

    Args:
        policy: The policy of that client.
    """
    valid = reason is not Outcome.INVALID
    exchange = _own_header(message, DEAD_LETTER_EXCHANGE, queue) if valid else None  # step 1
    if exchange is not None and not policy.may_write(exchange):
        ignored = f"{DEAD_LETTER_EXCHANGE} {exchange[:100]!r} does not count: {policy.owner!r} may not write to it"
        detail = f"{detail}; {ignored}" if detail else ignored
        exchange = None
    if exchange is None or _over_limit(message, queue, reason, policy):
        exchange = policy.exchange_after(death_count(message, queue=queue, reason=reason))
    if not exchanges.exists(exchange):
        return DeadLettering(fault=f"the exchange {exchange!r} is declared nowhere")
    override = _own_header(message, DEAD_LETTER_ROUTING_KEY, queue) if valid else None
    if override is None:
        override = policy.routing_key(queue)
    keys = routing_keys(message, bcc=True) if override is None else (override,)  # step 2
    dead = with_death(message, queue=queue, reason=reason, time_ms=time_ms, exchange=exchange, override=override)  # steps 3, 4
    found = exchanges.route(exchange, keys, queue=queue)  # step 5
    if reason is Outcome.INVALID:  # step 7
        found = tuple(dict.fromkeys(DEAD_LETTER_TOPIC if to.kind is DestinationKind.CLIENT else to for to in found))
    if not found:
        return DeadLettering(fault=f"the exchange {exchange!r} has no binding for {_shown(keys)}")
    assert dead.history is not None
    deaths = dead.history.deaths
    cycles = tuple(destination for destination in found if closes_cycle(destination, deaths))  # step 6
    letters = tuple(
        DeadLetter(message=dead, reason=reason, time_ms=time_ms, detail=detail, destination=destination)
        for destination in found
        if destination not in cycles
    )
    return DeadLettering(letters=letters, cycles=cycles, fault="" if letters else "every destination would close a cycle")


def with_death(
    message: Message, *, queue: ClientId, reason: Outcome, time_ms: int, exchange: str, override: str | None = None
) -> Message:
    """Returns the message as a dead letter.

    Args:
        exchange: The exchange to which it is published now.
        override: The key that replaces its own keys.
    """
    history = message.history
    published_to = "" if history is None else history.exchange
    death = Death(
        queue=queue,
        reason=reason,
        time_ms=time_ms,
        exchange=published_to,
        routing_keys=routing_keys(message, bcc=False),
        original_expiration_ms=message.expiration_ms if reason is Outcome.EXPIRED else None,
    )
    before = () if history is None else history.deaths
    known = next((earlier for earlier in before if (earlier.queue, earlier.reason) == (queue, reason)), None)
    if known is not None:
        death = msgspec.structs.replace(known, count=known.count + 1)
    return msgspec.structs.replace(
        message,
        expires_at_ms=None,
        expiration_ms=None,
        headers=message.headers if override is None else _without_copies(message.headers),
        history=DeathHistory(
            deaths=(death, *(earlier for earlier in before if earlier is not known)),
            first_reason=reason if history is None else history.first_reason,
            first_queue=queue if history is None else history.first_queue,
            first_exchange=published_to if history is None else history.first_exchange,
            last_exchange=published_to,
            last_time_ms=time_ms,
            exchange=exchange,
            routing_key=_key(message) if override is None else override,
        ),
    )


def closes_cycle(destination: Destination, deaths: tuple[Death, ...]) -> bool:
    """Returns True if the message has died in this queue before and no client has rejected it since.

    A rejection shows that a client decides on each round. Without one, nothing would end the cycle.

    Args:
        deaths: Newest first, the present one included.
    """
    if destination.kind is not DestinationKind.CLIENT:
        return False
    for death in deaths:
        if death.reason is Outcome.REJECTED:
            return False
        if death.queue == destination.name:
            return True
    return False


def routing_keys(message: Message, *, bcc: bool) -> tuple[str, ...]:
    """Returns the message's own keys: the one that it was last published with, CC, and optionally BCC."""
    keys = [_key(message), *_keys_of(message, CC)]
    return (*keys, *_keys_of(message, BCC)) if bcc else tuple(keys)


def death_count(message: Message, *, queue: ClientId | None = None, reason: Outcome | None = None) -> int:
    """Returns how often the message has died; if given, only in this queue and for this reason."""
    if message.history is None:
        return 0
    return sum(
        death.count
        for death in message.history.deaths
        if (queue is None or death.queue == queue) and (reason is None or death.reason is reason)
    )


def return_id(message: Message) -> str:
    """Returns an id that is equal for copies of one dead letter and different for all other dead letters of the message."""
    deaths = () if message.history is None else message.history.deaths
    return f"{message.message_id}\0{_json.encode(deaths).decode()}"


def _over_limit(message: Message, queue: ClientId, reason: Outcome, policy: Policy) -> bool:
    limit = policy.dead_letter_limit
    return limit is not None and death_count(message, queue=queue, reason=reason) >= limit


def _key(message: Message) -> str:
    return message.topic if message.history is None else message.history.routing_key


def _own_header(message: Message, name: str, queue: ClientId) -> str | None:
    """Returns a header that replaces an argument of the queue to which the message was first sent."""
    if message.history is not None and message.history.first_queue != queue:
        return None
    value = _header(message, name)
    return None if value is None else value.decode(errors="replace")


def _header(message: Message, name: str) -> bytes | None:
    """Returns the last value of this name, as Kafka clients do."""
    return next((value for known, value in reversed(message.headers) if known == name), None)


def _keys_of(message: Message, name: str) -> tuple[str, ...]:
    """Returns the keys in CC or BCC; none if the value is invalid, because messages that break the contract die too."""
    value = _header(message, name)
    if value is None:
        return ()
    try:
        return _keys_decoder.decode(value)
    except UNDECODABLE:
        return ()


def _without_copies(headers: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value) for name, value in headers if name not in (CC, BCC))


def _shown(keys: tuple[str, ...]) -> str:
    return ", ".join(repr(key[:100]) for key in keys[:4]) + (", …" if len(keys) > 4 else "")
