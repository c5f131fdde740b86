"""Holds publications with RETAIN that wait for their `deliver-at`, as `inflight.retained` has them."""

from collections.abc import Collection
from heapq import heappop, heappush

from state.records.delayed import DelayedPublication


class DelayedTable:
    """Holds one publication for each key of its record. It is used by one thread.

    Attributes:
        size_bytes: The sum of the sizes given to `put`.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._waiting: dict[bytes, tuple[DelayedPublication, int]] = {}
        self._times: list[tuple[int, bytes]] = []
        """A heap of (due_ms, key). It may have times of publications that were replaced or ended."""
        self._due: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting

    def put(self, key: bytes, delayed: DelayedPublication, size_bytes: int) -> None:
        """Replaces the one with this key."""
        self.delete(key)
        self._waiting[key] = delayed, size_bytes
        self.size_bytes += size_bytes
        heappush(self._times, (delayed.due_ms, key))

    def delete(self, key: bytes) -> None:
        """Forgets the one with this key, if there is one."""
        self._due.discard(key)
        former = self._waiting.pop(key, None)
        if former is not None:
            self.size_bytes -= former[1]

    def has_due(self, now_ms: int) -> bool:
        """Returns True if `due` may return one. It needs no lock."""
        return bool(self._due or (self._times and self._times[0][0] <= now_ms))

    def due(self, now_ms: int, partitions: Collection[int]) -> list[tuple[bytes, DelayedPublication]]:
        """Returns those whose time has come, with their keys, the earliest first. They stay until they are deleted.

        Args:
            partitions: Of `inflight.publications`; only the publications of these are returned.
        """
        while self._times and self._times[0][0] <= now_ms:
            due_ms, key = heappop(self._times)
            if (waiting := self._waiting.get(key)) is not None and waiting[0].due_ms == due_ms:
                self._due.add(key)
        found = [(key, delayed) for key in self._due if (delayed := self._waiting[key][0]).partition in partitions]
        return sorted(found, key=lambda one: (one[1].due_ms, one[0]))
