"""Makes the dead letters of a message that leaves a session undelivered (protocol.md, section 6).

docs/guides/dead_letters.md explains dead letters to users. The rules, in the order in which `dead_letter` applies them:

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
 6. A destination that is the queue of a client is dropped if it closes a cycle (`closes_cycle`). The others remain. The engine's
    own dead-letter topic replaces a queue that no record can reach: it is no client id, or the message is too large.
 7. The message has a credit of `session.max_dead_letters` for its life. A dead letter for the queue of a client costs 1. Each
    destination beyond the first costs 10 for every 64 KiB of the message, because the copies are there at once. The queues share
    what is left. Without enough credit the message goes to the engine's own dead-letter topic alone. So a cycle over policies and
    clients ends, with an outcome for each copy.
 8. A record that breaks the contract of messages is no message. Its own headers do not count, and no client's queue gets it: the
    engine's own dead-letter topic does.

The history is a field of the message that only this module writes. An `x-death` header of a backend is never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from state.commands import DeadLetter
from state.dead_letters.exchanges import DEAD_LETTER_TOPIC, Exchanges
from state.dead_letters.policy import Policy
from state.model import DEAD_LETTERED, ClientId, Death, DeathHistory, Destination, DestinationKind, Message, Outcome
from state.records.messages import BCC, CC, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY, keys_in, message_bytes
from state.setting import KIB

_json: Final = msgspec.json.Encoder()
_COPY_COST: Final = 10
"""The cost of one more destination, for every `_COPY_BYTES` of the message."""
_COPY_BYTES: Final = 64 * KIB
_EVENT_BYTES: Final = 8 * KIB
"""Bytes that the event of a dead letter for a queue takes at most beside the message: ids, key, lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettering:
    """The result of dead-lettering a message.

    Attributes:
        letters: One for each destination.
        cycles: Destinations that were dropped because they would close a cycle.
        limit: Why the letter goes to the engine's own topic instead of its destinations, for people; empty if it does not.
        fault: Why there is no letter at all, for people; empty if there is one.
    """

    letters: tuple[DeadLetter, ...] = ()
    cycles: tuple[Destination, ...] = ()
    limit: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathLimits:
    """Limits of the dead letters of a message.

    Attributes:
        max_dead_letters: The credit of a message, see step 7.
        max_client_id_bytes, max_record_bytes: As in RecordLimits; 0 bytes of a record = no limit.
    """

    max_dead_letters: int = 1_000
    max_client_id_bytes: int = 1_024
    max_record_bytes: int = 0


DEFAULT_LIMITS: Final = DeathLimits()
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
    message: Message,
    *,
    queue: ClientId,
    reason: Outcome,
    time_ms: int,
    policy: Policy,
    exchanges: Exchanges,
    detail: str = "",
    limits: DeathLimits = DEFAULT_LIMITS,
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
        return DeadLettering(fault=f"the exchange {exchange[:100]!r} is declared nowhere")
    override = _own_header(message, DEAD_LETTER_ROUTING_KEY, queue) if valid else None
    if override is None:
        override = policy.routing_key(queue)
    own_keys = routing_keys(message, bcc=True) if valid else (_key(message),)
    keys = own_keys if override is None else (override,)  # step 2
    dead = with_death(message, queue=queue, reason=reason, time_ms=time_ms, exchange=exchange, override=override)  # steps 3, 4
    found = exchanges.route(exchange, keys, queue=queue)  # step 5
    if not valid:  # step 8
        found = tuple(dict.fromkeys(DEAD_LETTER_TOPIC if to.kind is DestinationKind.CLIENT else to for to in found))
    if not found:
        return DeadLettering(fault=f"the exchange {exchange!r} has no binding for {_shown(keys)}")
    assert dead.history is not None
    deaths = dead.history.deaths
    cycles = frozenset(destination for destination in found if closes_cycle(destination, deaths))  # step 6
    open_ = tuple(destination for destination in found if destination not in cycles)
    open_, unreachable = _reachable(open_, dead, limits)
    dead, too_many = _charged(dead, open_, exchange, limits.max_dead_letters)  # step 7
    if too_many:
        open_ = (DEAD_LETTER_TOPIC,)
    limit = "; ".join(filter(None, (unreachable, too_many)))
    detail = "; ".join(filter(None, (detail, limit)))
    return DeadLettering(
        letters=tuple(
            DeadLetter(message=dead, reason=reason, time_ms=time_ms, detail=detail, destination=destination)
            for destination in open_
        ),
        cycles=tuple(destination for destination in found if destination in cycles),
        limit=limit,
        fault="" if open_ else "every destination would close a cycle",
    )


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
        routing_keys=(_key(message),) if reason is Outcome.INVALID else routing_keys(message, bcc=False),
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
        routing=None,  # it says why the message came to this client
        history=DeathHistory(
            deaths=(death, *(earlier for earlier in before if earlier is not known)),
            first_reason=reason if history is None else history.first_reason,
            first_queue=queue if history is None else history.first_queue,
            first_exchange=published_to if history is None else history.first_exchange,
            last_exchange=published_to,
            last_time_ms=time_ms,
            exchange=exchange,
            routing_key=_key(message) if override is None else override,
            credit=None if history is None else history.credit,
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


def _reachable(destinations: tuple[Destination, ...], dead: Message, limits: DeathLimits) -> tuple[tuple[Destination, ...], str]:
    """Replaces queues that no record can reach by the engine's own topic. Returns the destinations, and why, for people."""
    queues = [destination for destination in destinations if destination.kind is DestinationKind.CLIENT]
    if not queues:
        return destinations, ""
    if 0 < limits.max_record_bytes < (size := message_bytes(dead) + _EVENT_BYTES):
        unreachable = frozenset(queues)
        fault = (
            f"no queue can get it: it may take {size} bytes, and {limits.max_record_bytes} are allowed (engine.max_record_bytes)"
        )
    else:
        unreachable = frozenset(queue for queue in queues if not _is_client_id(queue.name, limits.max_client_id_bytes))
        fault = (
            f"{len(unreachable)} of {len(destinations)} destinations are no client ids: "
            f"{limits.max_client_id_bytes} bytes without U+0000 are allowed (gateway.max_client_id_bytes)"
        )
    if not unreachable:
        return destinations, ""
    reached = dict.fromkeys(DEAD_LETTER_TOPIC if destination in unreachable else destination for destination in destinations)
    return tuple(reached), fault


def _is_client_id(name: str, max_bytes: int) -> bool:
    return len(name.encode()) <= max_bytes and "\x00" not in name  # [MQTT-1.5.4-2]


def _charged(dead: Message, destinations: Sequence[Destination], exchange: str, max_dead_letters: int) -> tuple[Message, str]:
    """Returns the message with the credit that each copy has left, and why it has too little; then it must not be copied."""
    history = dead.history
    assert history is not None
    queues = sum(destination.kind is DestinationKind.CLIENT for destination in destinations)
    copies = max(0, len(destinations) - 1)
    cost = (1 if queues else 0) + (copies * _COPY_COST * (1 + message_bytes(dead) // _COPY_BYTES) if copies else 0)
    credit = max_dead_letters if history.credit is None else min(history.credit, max_dead_letters)
    if cost > credit:
        most = f"{credit} of {max_dead_letters} dead letters are left to it (session.max_dead_letters)"
        return (
            dead,
            f"the exchange {exchange!r} routes the message to {len(destinations)} destinations, which count as {cost}; {most}",
        )
    left = msgspec.structs.replace(history, credit=(credit - cost) // max(1, queues))
    return msgspec.structs.replace(dead, history=left), ""


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
    """Returns the keys in CC or BCC."""
    value = _header(message, name)
    return () if value is None else keys_in(value)


def _without_copies(headers: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value) for name, value in headers if name not in (CC, BCC))


def _shown(keys: tuple[str, ...]) -> str:
    return ", ".join(repr(key[:100]) for key in keys[:4]) + (", …" if len(keys) > 4 else "")
