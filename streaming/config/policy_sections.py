"""[[exchanges]], [[policies]] and [[permissions]] of the configuration: what becomes of dead letters (docs/dead_letters.md).

Each converts to its pure counterpart (state/dead_letters); `dead_letter_problems` says what may not be loaded.
"""

from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from state.dead_letters.exchanges import DEAD_LETTERS, Binding, Exchange, Exchanges, ExchangeType, parse_destination
from state.dead_letters.policy import Permission, Policy, policy_problems
from state.model import DEAD_LETTERED, DestinationKind, Outcome
from streaming.config.section import DurationMs, KeyPath, Section, key
from streaming.config.sections import TopicsSection
from streaming.config.units import NEVER_MS

_OWN_TOPICS: Final = ("messages", "events", "commands", "uplink", "receipts", "ledger", "throttle")
_RESERVED_TABLES: Final = frozenset({"ledger", "uplink", "receipts", "sessions"})
"""Names that mean something else in `inflight sql`, where case does not matter."""
_DEAD_LETTER_TABLE: Final = "dead_letters"
_REASONS: Final = ", ".join(sorted(DEAD_LETTERED))


def _destination(value: str) -> str:
    parse_destination(value)
    return value


def _reason(value: Outcome) -> Outcome:
    if value not in DEAD_LETTERED:
        raise ValueError(f"nothing dies of that: {_REASONS} are allowed")
    return value


class BindingSection(Section):
    """Sends what the exchange gets under a key to a destination."""

    key: str = Field("", description="routing key (direct), pattern with * and # (topic), without a meaning (fanout)")
    to: Annotated[str, AfterValidator(_destination)] = Field(
        description="topic:NAME (Kafka), client:ID (a queue; {client} in it = whose queue it died in) or table:NAME (Delta)"
    )


class ExchangeSection(Section):
    """A named list of bindings that policies send dead letters to."""

    name: str = Field(min_length=1, max_length=255, description="what policies call it")
    type: ExchangeType = key("when a binding matches: equal key, pattern, or always", ExchangeType.TOPIC)
    bindings: tuple[BindingSection, ...] = key("list of { key = …, to = … }", ())

    def to_exchange(self) -> Exchange:
        bindings = tuple(Binding(key=binding.key, destination=parse_destination(binding.to)) for binding in self.bindings)
        return self.plain(Exchange, bindings=bindings)


class PolicySection(Section):
    """What becomes of messages that die in the queues of some clients; the highest priority holds, alone."""

    name: str = Field(min_length=1, description="for people")
    clients: str = key("pattern of client ids: * any text, ? one character, [ab] one of these", "*", min_length=1)
    priority: int = key("of several policies for a client the highest holds, alone", 0, ge=-1_000_000, le=1_000_000)
    dead_letter_exchange: str = key(
        f"'{DEAD_LETTERS}' = the topic PREFIX.dead-letters, '' = the client that the routing key names", DEAD_LETTERS
    )
    dead_letter_routing_key: str | None = key(
        "stands for the message's own keys (topic, CC, BCC); {client} = whose queue it died in", None, max_length=255
    )
    dead_letter_reasons: tuple[Annotated[Outcome, AfterValidator(_reason)], ...] = key(
        "what dies of another reason is in ledger and receipt only", tuple(sorted(DEAD_LETTERED))
    )
    dead_letter_limit: int | None = key(
        "after so many deaths here for one reason the next one goes to limit_exchange", None, ge=1, le=1_000_000
    )
    limit_exchange: str = key("see dead_letter_limit", DEAD_LETTERS)
    message_ttl: Annotated[DurationMs, Field(ge=0, le=NEVER_MS)] | None = key(
        "how long a message may wait in the queue, besides its own expiration; 0 = not at all", None
    )
    owner: str | None = key("whose policy it is: only what [[permissions]] grant is allowed", None, min_length=1)

    def to_policy(self) -> Policy:
        return self.plain(Policy, dead_letter_reasons=frozenset(self.dead_letter_reasons), message_ttl_ms=self.message_ttl)


class PermissionSection(Section):
    """What an owner of policies may do."""

    owner: str = Field(min_length=1, description="the name that policies give as owner")
    read: tuple[str, ...] = key("patterns of client ids whose queues its policies may cover", ())
    write: tuple[str, ...] = key("patterns of exchange names that its policies may name", ())

    def to_permission(self) -> Permission:
        return self.plain(Permission)


def dead_letter_problems(
    exchanges: tuple[ExchangeSection, ...],
    policies: tuple[PolicySection, ...],
    permissions: tuple[PermissionSection, ...],
    *,
    topics: TopicsSection,
    max_client_id_bytes: int,
) -> Iterator[tuple[KeyPath, str]]:
    """(key path, what is wrong and what is allowed) for all that is well-formed and still must not be loaded."""
    names: set[str] = set()
    own_topics = {getattr(topics, name): name for name in _OWN_TOPICS}
    tables = {_DEAD_LETTER_TABLE: _DEAD_LETTER_TABLE}
    for index, exchange in enumerate(exchanges):
        if exchange.name in names:
            yield ("exchanges", index, "name"), f"{exchange.name!r} is declared twice: put all bindings into one exchange"
        names.add(exchange.name)
        for number, binding in enumerate(exchange.bindings):
            fault = _fault_of_destination(binding.to, own_topics, tables, max_client_id_bytes)
            if fault:
                yield ("exchanges", index, "bindings", number, "to"), fault
    owners: set[str] = set()
    for index, permission in enumerate(permissions):
        if permission.owner in owners:
            yield ("permissions", index, "owner"), f"{permission.owner!r} is listed twice: put all patterns into one entry"
        owners.add(permission.owner)
    declared = Exchanges(declared=tuple(exchange.to_exchange() for exchange in exchanges))
    pure = [policy.to_policy() for policy in policies]
    for index, wrong, message in policy_problems(pure, declared, [permission.to_permission() for permission in permissions]):
        yield ("policies", index, wrong), message


def dead_letter_topics(exchanges: tuple[ExchangeSection, ...]) -> tuple[str, ...]:
    """The Kafka topics that bindings name; they have to exist before the engine starts."""
    found = (parse_destination(binding.to) for exchange in exchanges for binding in exchange.bindings)
    return tuple(dict.fromkeys(destination.name for destination in found if destination.kind is DestinationKind.TOPIC))


def _fault_of_destination(text: str, own_topics: dict[str, str], tables: dict[str, str], max_client_id_bytes: int) -> str:
    """tables: the spelling by the name in lower case, of all tables so far; grows."""
    destination = parse_destination(text)
    if destination.kind is DestinationKind.TOPIC and destination.name in own_topics:
        return (
            f"{text!r} is the topic of {own_topics[destination.name]}, where a dead letter would be taken for something else: "
            "name another topic, or client:ID to give the message to a client"
        )
    if destination.kind is DestinationKind.TABLE:
        if destination.name.lower() in _RESERVED_TABLES:
            return f"{text!r} is a table or view of the archive with other columns: choose another name"
        spelling = tables.setdefault(destination.name.lower(), destination.name)
        if spelling != destination.name:
            return f"{text!r} differs from the table {spelling!r} in case only, which SQL does not see: choose another name"
    if destination.kind is DestinationKind.CLIENT and len(destination.name.encode()) > max_client_id_bytes:
        return f"{text[:40]!r}… is longer than gateway.max_client_id_bytes = {max_client_id_bytes}: choose a shorter id"
    return ""
