"""Chooses the member of a shared subscription that gets a publication.

A member that is online goes first. While none is, publications are spread over all members, so that the group keeps as many as
all their queues together. Two attempts to route the same publication choose the same member, as long as the members and who of
them is online stay the same: the choice depends on nothing else than the publication.
"""

import zlib
from collections.abc import Collection

from sinks.routing.settings import SharedStrategy
from sinks.routing.subscription_table import ClientEntry


def choose_member(members: Collection[ClientEntry], strategy: SharedStrategy, *, stays_with: bytes, number: int) -> ClientEntry:
    """Returns one of the members.

    Args:
        members: At least one.
        stays_with: Publications with the same value go to the same online member with `sticky`. If a member comes or goes, only
            its own share moves (rendezvous hashing).
        number: Counts publications, the same for all copies of one; with `round_robin` the next number is for the next member.
    """
    online = [member for member in members if member.is_online]
    candidates = online or list(members)
    if len(candidates) == 1:
        return candidates[0]
    if strategy == "round_robin" or not online:
        candidates.sort(key=_client_id)
        return candidates[number % len(candidates)]
    seed = zlib.crc32(stays_with)
    return max(candidates, key=lambda member: (_weight(seed, member.client_id), member.client_id))


def _client_id(member: ClientEntry) -> str:
    return member.client_id


def _weight(seed: int, client_id: str) -> int:
    """Returns a number that is as good as random. A CRC alone is linear: two members would keep their order for most seeds."""
    mixed = (zlib.crc32(client_id.encode(), seed) * 0x9E3779B97F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF
    mixed ^= mixed >> 29
    return (mixed * 0xBF58476D1CE4E5B9) & 0xFFFF_FFFF_FFFF_FFFF
