"""Which leases live, by what was read from `inflight.leases`. Pure.

Nobody's clock is compared with another's. A lease ages by the time for which the topic has been watched since its last renewal
was read: an engine that stood still, or that Kafka did not answer, has watched nothing meanwhile, and finds the renewals of that
time before it counts on.
"""

from collections.abc import Iterable
from typing import Final

from state.records.leases import Lease

PATIENCE: Final = 1.5
"""In durations. The holder has given up after one, counted from an earlier moment (sinks/host/lease.py)."""


class LeaseTable:
    """All leases that have not been forgotten, expired ones included."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._ages_ms: dict[str, float] = {}
        self._expired: dict[str, None] = {}
        self._ended: list[str] = []

    def read(self, lease_id: str, lease: Lease | None) -> None:
        """A record: a renewal, an end, or (None) that it was forgotten."""
        if lease is None:
            self._forget(lease_id)
        elif lease.ended:
            self._forget(lease_id)
            self._ended.append(lease_id)
        elif lease_id not in self._expired:  # one that has expired never lives again: its connections may have been ended
            self._leases[lease_id] = lease
            self._ages_ms[lease_id] = 0.0

    def watched(self, passed_ms: float) -> None:
        """So long the topic has been watched since the last call. Read up to its present end next, then call `expire`."""
        for lease_id in self._ages_ms:
            self._ages_ms[lease_id] += passed_ms

    def expire(self) -> list[str]:
        """The leases that have expired by that."""
        late = [lease_id for lease_id, age_ms in self._ages_ms.items() if age_ms >= PATIENCE * self._leases[lease_id].duration_ms]
        for lease_id in late:
            del self._ages_ms[lease_id]
            self._expired[lease_id] = None
        return late

    def take_ended(self) -> list[str]:
        """The leases that their holders have ended, since the last call. Nobody has to look for their connections."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def live(self) -> frozenset[str]:
        return frozenset(self._ages_ms)

    @property
    def expired(self) -> tuple[str, ...]:
        """Those that were not forgotten yet."""
        return tuple(self._expired)

    def holders(self, lease_ids: Iterable[str]) -> list[str]:
        """Who held them, for people."""
        return [self._leases[lease_id].holder for lease_id in lease_ids if lease_id in self._leases]

    def _forget(self, lease_id: str) -> None:
        self._ages_ms.pop(lease_id, None)
        self._expired.pop(lease_id, None)
        self._leases.pop(lease_id, None)
