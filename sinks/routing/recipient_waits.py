"""Decides when a partition of publications waits for clients that are connected and behind. One thread calls all methods.

1. A publication waits for each recipient whose throttle says that it catches up (`is_progressing`). A client that is away or
   stands still holds up nobody. A throttle of all clients that says so counts as a client that is a recipient of every
   publication with recipients. A throttle of all clients for another reason holds up nobody.
2. A client is waited for during `max_wait_ms`, by all partitions together, from when the first of them began. Then it is not
   waited for until its throttle has ended.
3. A publication waits no longer than `max_wait_ms`, whoever it waits for. A partition whose wait has ended by a limit waits for
   nobody for as long. So clients that fall behind one after the other cost the others a half of their speed at most.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sinks.routing.log_ends import Partition
from sinks.routing.metrics import MatcherCounters
from state.model import ClientId
from state.records.throttle import EVERYBODY, Throttle

_MOST_REMEMBERED: Final = 1_000


class ProgressingClients(Protocol):
    """Knows which clients are connected and behind (sinks/kafka/throttles.py)."""

    @property
    def is_anybody_progressing(self) -> bool: ...

    def progressing(self, client_id: ClientId) -> Throttle | None:
        """Returns the throttle of a client, or of EVERYBODY, that catches up; None = there is no such throttle."""


@dataclass(frozen=True, slots=True)
class ClientWait:
    """The wait for one client.

    Attributes:
        since_ms: Names its throttle.
        until_s: Time at which the wait ends.
    """

    since_ms: int
    until_s: float


class RecipientWaits:
    """Keeps the waits of a matcher's partitions. Times are seconds of a monotonic clock.

    Args:
        max_wait_s: 0 = nobody is waited for.
    """

    def __init__(self, throttles: ProgressingClients, counters: MatcherCounters, *, max_wait_s: float) -> None:
        self._throttles = throttles
        self._counters = counters
        self._max_wait_s = max_wait_s
        self._clients: dict[ClientId, ClientWait] = {}
        self._waiting: dict[Partition, float] = {}
        self._passes_until: dict[Partition, float] = {}

    @property
    def is_needed(self) -> bool:
        """Returns False if `must_wait` is False for everybody."""
        return bool(self._max_wait_s) and self._throttles.is_anybody_progressing

    @property
    def waiting(self) -> Mapping[Partition, float]:
        """By partition that waits, when that began."""
        return self._waiting

    def must_wait(self, partition: Partition, client_ids: Iterable[ClientId], now_s: float) -> bool:
        """Returns True if the partition's next publication has to wait for one of its recipients.

        Call it again until it returns False. Then the publication goes.
        """
        began_s = self._waiting.get(partition)
        if began_s is None and now_s < self._passes_until.get(partition, now_s):
            return False
        is_behind, is_given_up = self._behind(client_ids, now_s)
        if is_behind and (began_s is None or now_s < began_s + self._max_wait_s):
            self._waiting.setdefault(partition, now_s)
            return True
        if began_s is not None:
            self.forget((partition,), now_s)
            if is_behind or is_given_up:
                self._counters.waits_given_up += 1
                self._passes_until[partition] = now_s + self._max_wait_s
        return False

    def forget(self, partitions: Iterable[Partition], now_s: float) -> None:
        """Ends the waits of partitions: their publications go, or another matcher has the partitions."""
        for partition in partitions:
            if (began_s := self._waiting.pop(partition, None)) is not None:
                self._counters.waited_ms += round(1_000 * (now_s - began_s))

    def _behind(self, client_ids: Iterable[ClientId], now_s: float) -> tuple[bool, bool]:
        """Says whether one of the clients is waited for, and whether one of them is not waited for any more."""
        is_behind = is_given_up = False
        names = tuple(client_ids)
        for client_id in (EVERYBODY, *names) if names else ():
            throttle = self._throttles.progressing(client_id)
            if throttle is None:
                continue
            wait = self._clients.get(client_id)
            if wait is None or wait.since_ms != throttle.since_ms:
                wait = self._clients[client_id] = ClientWait(throttle.since_ms, now_s + self._max_wait_s)
            if now_s < wait.until_s:
                is_behind = True
            else:
                is_given_up = True
        if len(self._clients) > _MOST_REMEMBERED:
            known = self._throttles.progressing
            self._clients = {each: wait for each, wait in self._clients.items() if known(each) is not None}
        return is_behind, is_given_up
