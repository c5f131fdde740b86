"""Selects the policy for a client's queue: what happens to messages that die in it (protocol.md, section 6).

A policy applies to the clients whose id matches its pattern. If several match, the one with the highest priority applies alone,
as in RabbitMQ: keys of several policies are not combined. Among equal priorities the first declared one applies.

A policy may have an owner. The owner must be allowed to read every queue that the pattern can match, and to write to every
exchange that the policy names. Otherwise the policy is refused at load (`policy_problems`). An exchange that a message names in
a header is not known at load: the header is ignored if the owner may not write to that exchange (`permitted`).
"""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from state.dead_letters.exchanges import CLIENT_PLACEHOLDER, DEAD_LETTERS, DEFAULT_EXCHANGE, Exchanges, past_wildcards
from state.model import DEAD_LETTERED, ClientId, Outcome
from state.setting import NEVER_MS, Setting

_TOKEN: Final = re.compile(r"\[!?+\]?+[^\]]*\]|.", re.DOTALL)
"""Splits a pattern as fnmatch does: `]` directly after `[` or `[!` belongs to the set, and `[` without `]` is literal."""


def _check_reason(outcome: str) -> None:
    if outcome not in DEAD_LETTERED:
        raise ValueError(f"nothing dies of that: {', '.join(sorted(DEAD_LETTERED))} are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Decides what becomes of messages that die in the queues of some clients; the highest priority holds, alone."""

    name: str = Setting("for people", min_length=1, is_required=True).default("default")
    clients: str = Setting("pattern of client ids: * any text, ? one character, [ab] one of these", min_length=1).default("*")
    priority: int = Setting("of a client's policies the highest holds, alone", (-1_000_000, 1_000_000)).default(0)
    dead_letter_exchange: str = Setting(
        f"{DEAD_LETTERS!r} = the topic PREFIX.dead-letters, {DEFAULT_EXCHANGE!r} = the client that the routing key names"
    ).default(DEAD_LETTERS)
    dead_letter_routing_key: str | None = Setting(
        f"replaces the message's own keys (topic, CC, BCC); {CLIENT_PLACEHOLDER} = whose queue it died in", max_length=255
    ).default(None)
    dead_letter_reasons: frozenset[Outcome] = Setting(
        "what dies of another reason is in ledger and receipt only", check=_check_reason
    ).default(DEAD_LETTERED)
    # RabbitMQ leaves the counting to consumers; an MQTT device cannot see the count.
    dead_letter_limit: int | None = Setting(
        "after so many deaths here for one reason the next one goes to limit_exchange", (1, 1_000_000)
    ).default(None)
    limit_exchange: str = Setting("see dead_letter_limit; the routing keys stay the same").default(DEAD_LETTERS)
    message_ttl_ms: int | None = Setting(
        "how long a message may wait in the queue, besides its own expiration; 0 = not at all", (0, NEVER_MS), key="message_ttl"
    ).default(None)
    owner: str | None = Setting("whose policy it is: only what [[permissions]] grant is allowed", min_length=1).default(None)
    owner_writes: tuple[str, ...] | None = None
    """Patterns of the exchange names that the owner may write to; None = all, as for a policy without an owner."""

    def may_write(self, exchange: str) -> bool:
        """Returns True if dead letters of these queues may go to an exchange that a message names."""
        return self.owner_writes is None or _fits_any(exchange, self.owner_writes)

    def exchange_after(self, deaths: int) -> str:
        """Returns the exchange for the next death, after `deaths` in the same queue for the same reason."""
        over = self.dead_letter_limit is not None and deaths >= self.dead_letter_limit
        return self.limit_exchange if over else self.dead_letter_exchange

    def routing_key(self, client_id: ClientId) -> str | None:
        """Returns the overriding key for messages that die in this client's queue; None = the message's own keys."""
        if self.dead_letter_routing_key is None:
            return None
        return self.dead_letter_routing_key.replace(CLIENT_PLACEHOLDER, client_id)


NO_POLICY: Final = Policy()
"""Applies if no policy matches: all dead letters go to the engine's own dead-letter topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """The permissions of an owner of policies."""

    owner: str = field(metadata=Setting("the name that policies give as owner", min_length=1).metadata)
    read: tuple[str, ...] = Setting("patterns of client ids whose queues its policies may cover").default(())
    write: tuple[str, ...] = Setting("patterns of exchange names that its policies may name").default(())


def permitted(policies: Sequence[Policy], permissions: Sequence[Permission]) -> tuple[Policy, ...]:
    """Returns the policies with their owners' rights. An owner without a permission may write to no exchange."""
    writes = {permission.owner: permission.write for permission in permissions}
    return tuple(
        policy if policy.owner is None else replace(policy, owner_writes=writes.get(policy.owner, ())) for policy in policies
    )


class Policies:
    """Finds the policy of a client."""

    __slots__ = ("_by_priority",)

    def __init__(self, policies: Sequence[Policy] = ()) -> None:
        ordered = sorted(policies, key=lambda policy: -policy.priority)  # stable: equal priorities stay as declared
        self._by_priority = [(re.compile(fnmatch.translate(policy.clients)), policy) for policy in ordered]

    def of(self, client_id: ClientId) -> Policy:
        return next((policy for pattern, policy in self._by_priority if pattern.match(client_id)), NO_POLICY)


def policy_problems(
    policies: Sequence[Policy], exchanges: Exchanges, permissions: Sequence[Permission] = ()
) -> Iterator[tuple[int, str, str]]:
    """Yields (index of the policy, key, what is wrong and what is allowed) for everything that must not be loaded."""
    allowed = {permission.owner: permission for permission in permissions}
    names: set[str] = set()
    for index, policy in enumerate(policies):
        if policy.name in names:
            yield index, "name", f"{policy.name!r} is the name of an earlier policy, too: give each its own"
        names.add(policy.name)
        for key, exchange in (("dead_letter_exchange", policy.dead_letter_exchange), ("limit_exchange", policy.limit_exchange)):
            if not exchanges.exists(exchange):
                yield index, key, f"{exchange!r} is declared nowhere: {_choices(exchanges)}"
        if policy.limit_exchange != DEAD_LETTERS and policy.dead_letter_limit is None:
            yield index, "limit_exchange", "has no meaning without dead_letter_limit: set that, too"
        if policy.owner is not None:
            for key, message in _not_permitted(policy, policy.owner, allowed.get(policy.owner)):
                yield index, key, message


def covers(wide: str, narrow: str) -> bool:
    """Returns True if every text that matches the shell pattern `narrow` matches `wide` too. In doubt (sets in brackets) it is
    False."""
    return _covers(_TOKEN.findall(wide), _TOKEN.findall(narrow))


def _not_permitted(policy: Policy, owner: str, permission: Permission | None) -> Iterator[tuple[str, str]]:
    if permission is None:
        yield "owner", f"{owner!r} has no [[permissions]]: declare what this owner may read and write"
        return
    if not any(covers(pattern, policy.clients) for pattern in permission.read):
        yield "clients", f"{policy.clients!r} is more than {owner!r} may read: {_listed(permission.read)}"
    named = [("dead_letter_exchange", policy.dead_letter_exchange)]
    if policy.dead_letter_limit is not None:
        named.append(("limit_exchange", policy.limit_exchange))
    for key, exchange in named:
        if not _fits_any(exchange, permission.write):
            yield key, f"{exchange!r} is nothing that {owner!r} may write to: {_listed(permission.write)}"


def _fits_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _choices(exchanges: Exchanges) -> str:
    names = ", ".join(repr(exchange.name) for exchange in exchanges.declared if exchange.name != DEAD_LETTERS)
    others = f", {names}" if names else ""
    return f"declare it in [[exchanges]], or name one of {DEAD_LETTERS!r}, '' (the default exchange){others}"


def _listed(patterns: tuple[str, ...]) -> str:
    return f"allowed: {', '.join(patterns)}" if patterns else "nothing is allowed"


def _covers(wide: list[str], narrow: list[str]) -> bool:
    reached = {0}  # positions of `wide` that the read part of `narrow` can have reached
    for part in narrow:
        reached = past_wildcards(wide, reached, "*")
        reached = {
            position if wide[position] == "*" else position + 1
            for position in reached
            if position < len(wide) and _matches_part(wide[position], part)
        }
    return len(wide) in past_wildcards(wide, reached, "*")


def _matches_part(wide: str, part: str) -> bool:
    if wide == "*":
        return True
    if part == "*":
        return False
    if wide == "?":
        return True
    if len(wide) > 1 and len(part) == 1 and part != "?":
        return fnmatch.fnmatchcase(part, wide)
    return wide == part
