"""Policies: what becomes of the messages that die in a client's queue. docs/protocol.md, section 6.

A policy holds for the clients whose id fits its pattern; where several fit, the one with the highest priority holds, alone: its
keys are not mixed with those of others, as in RabbitMQ. Between equal priorities the first one declared holds.

A policy may have an owner. It is then refused at load unless the owner may read every queue that the pattern can mean and may
write to every exchange that the policy names (`policy_problems`). The exchange that a message names in its headers is not known
then: it counts in these queues only if the owner may write to it (`permitted`).
"""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from state.dead_letters.exchanges import CLIENT_PLACEHOLDER, DEAD_LETTERS, Exchanges
from state.model import DEAD_LETTERED, ClientId, Outcome

_TOKEN: Final = re.compile(r"\[!?+\]?+[^\]]*\]|.", re.DOTALL)
"""As fnmatch reads a pattern: `]` right behind `[` or `[!` belongs to the set, and `[` without its `]` stands for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """clients: shell pattern of client ids (`*`, `?`, `[…]`), as in profiles.

    dead_letter_exchange: where dead letters go. dead_letter_routing_key: stands for the message's own keys, None = they are used;
    `{client}` in it becomes the client whose queue the message dies in.
    dead_letter_reasons: messages that leave for another reason are not dead-lettered; ledger and receipt still say the reason.
    dead_letter_limit: after so many deaths of a message in one queue for one reason the next one goes to `limit_exchange`, under
    the same keys; None = no limit. RabbitMQ leaves the counting to consumers; an MQTT device cannot see the count.
    message_ttl_ms: how long a message may wait in the queue, besides its own time to live; None = no limit.
    owner_writes: patterns of the exchange names that the owner may write to; None = all, as for a policy without an owner.
    """

    name: str = "default"
    clients: str = "*"
    priority: int = 0
    dead_letter_exchange: str = DEAD_LETTERS
    dead_letter_routing_key: str | None = None
    dead_letter_reasons: frozenset[Outcome] = DEAD_LETTERED
    dead_letter_limit: int | None = None
    limit_exchange: str = DEAD_LETTERS
    message_ttl_ms: int | None = None
    owner: str | None = None
    owner_writes: tuple[str, ...] | None = None

    def may_write(self, exchange: str) -> bool:
        """Whether dead letters of these queues may go to an exchange that a message names."""
        return self.owner_writes is None or _fits_any(exchange, self.owner_writes)

    def exchange_after(self, deaths: int) -> str:
        """Where the next death goes, after `deaths` of the same message in the same queue for the same reason."""
        over = self.dead_letter_limit is not None and deaths >= self.dead_letter_limit
        return self.limit_exchange if over else self.dead_letter_exchange

    def routing_key(self, client_id: ClientId) -> str | None:
        """The overriding key for messages that die in this client's queue, None = the message's own."""
        if self.dead_letter_routing_key is None:
            return None
        return self.dead_letter_routing_key.replace(CLIENT_PLACEHOLDER, client_id)


NO_POLICY: Final = Policy()
"""What holds where no policy fits: everything that dies goes to the engine's own dead-letter topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What an owner of policies may do. read: patterns of client ids; write: patterns of exchange names."""

    owner: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


def permitted(policies: Sequence[Policy], permissions: Sequence[Permission]) -> tuple[Policy, ...]:
    """The policies with what their owners may write to, which is nothing for an owner without a permission."""
    writes = {permission.owner: permission.write for permission in permissions}
    return tuple(
        policy if policy.owner is None else replace(policy, owner_writes=writes.get(policy.owner, ())) for policy in policies
    )


class Policies:
    """Answers which policy holds for a client."""

    __slots__ = ("_by_priority",)

    def __init__(self, policies: Sequence[Policy] = ()) -> None:
        ordered = sorted(policies, key=lambda policy: -policy.priority)  # stable: equal priorities stay as declared
        self._by_priority = [(re.compile(fnmatch.translate(policy.clients)), policy) for policy in ordered]

    def of(self, client_id: ClientId) -> Policy:
        return next((policy for pattern, policy in self._by_priority if pattern.match(client_id)), NO_POLICY)


def policy_problems(
    policies: Sequence[Policy], exchanges: Exchanges, permissions: Sequence[Permission] = ()
) -> Iterator[tuple[int, str, str]]:
    """(index of the policy, key, what is wrong and what is allowed) for everything that may not be loaded."""
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
    """Whether every text that fits the shell pattern `narrow` fits `wide`, too. When in doubt (sets in brackets), no."""
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
    reached = {0}  # positions of `wide` that can stand against what has been read of `narrow`
    for part in narrow:
        reached = _past_stars(wide, reached)
        reached = {
            position if wide[position] == "*" else position + 1
            for position in reached
            if position < len(wide) and _takes(wide[position], part)
        }
    return len(wide) in _past_stars(wide, reached)


def _takes(wide: str, part: str) -> bool:
    if wide == "*":
        return True
    if part == "*":
        return False
    if wide == "?":
        return True
    if len(wide) > 1 and len(part) == 1 and part != "?":
        return fnmatch.fnmatchcase(part, wide)
    return wide == part


def _past_stars(wide: list[str], positions: set[int]) -> set[int]:
    reached = set(positions)
    for position in positions:
        following = position
        while following < len(wide) and wide[following] == "*":
            following += 1
            reached.add(following)
    return reached
