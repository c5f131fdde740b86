"""Tells which leases live, from the records of `inflight.leases`. Pure.

No two clocks are compared. A lease ages by the time for which the topic was watched since its last renewal was read. An engine
that stood still, or without an answer from Kafka, watched nothing meanwhile, and reads the renewals of that time before it counts
on.
"""

from collections.abc import Iterable
from typing import Final

from state.records.leases import Lease

PATIENCE: Final = 1.5
"""Durations after which a lease expires. Its holder gives up after one, counted from an earlier moment (sinks/host/lease.py)."""


class LeaseTable:
    """Holds all leases that have not been removed, expired ones included."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._ages_ms: dict[str, float] = {}
        self._expired: dict[str, None] = {}
        self._ended: list[str] = []

    def read(self, lease_id: str, lease: Lease | None) -> None:
        """Applies a record: a renewal, an end, or a tombstone (None)."""
        if lease is None:
            self._forget(lease_id)
        elif lease.ended:
            self._forget(lease_id)
            self._ended.append(lease_id)
        elif lease_id not in self._expired:  # an expired lease never lives again: its connections may have been ended
            self._leases[lease_id] = lease
            self._ages_ms[lease_id] = 0.0

    def watched(self, passed_ms: float) -> None:
        """Adds watched time. Then read the topic to its present end and call `expire`."""
        for lease_id in self._ages_ms:
            self._ages_ms[lease_id] += passed_ms

    def expire(self) -> list[str]:
        """Expires the leases that are too old, and returns them."""
        late = [lease_id for lease_id, age_ms in self._ages_ms.items() if age_ms >= PATIENCE * self._leases[lease_id].duration_ms]
        for lease_id in late:
            del self._ages_ms[lease_id]
            self._expired[lease_id] = None
        return late

    def pop_ended(self) -> list[str]:
        """Returns the leases that their holders have ended since the last call. Their connections are closed already."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def live(self) -> frozenset[str]:
        return frozenset(self._ages_ms)

    @property
    def all_wake(self) -> bool:
        """Returns True if every holder of a live lease sends wake-ups, and there is one."""
        return bool(self._ages_ms) and all(self._leases[lease_id].wakes for lease_id in self._ages_ms)

    @property
    def expired(self) -> tuple[str, ...]:
        """Returns the ids of the expired leases that no end or tombstone has removed."""
        return tuple(self._expired)

    def holders(self, lease_ids: Iterable[str]) -> list[str]:
        """Returns the names of their holders, for people."""
        return [self._leases[lease_id].holder for lease_id in lease_ids if lease_id in self._leases]

    def _forget(self, lease_id: str) -> None:
        self._ages_ms.pop(lease_id, None)
        self._expired.pop(lease_id, None)
        self._leases.pop(lease_id, None)
