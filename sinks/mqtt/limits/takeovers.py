"""Slows down devices that take each other's connection because they have the same client id.

1. The first takeovers are free: a device whose network has changed takes its own connection over, some times if it keeps
   changing.
2. Each further one makes the next CONNECT of this client wait for twice as long after it, up to 8 s. Nobody is refused. So one
   of the devices stays connected for that time, and what waits for the client is delivered once instead of at each takeover.
3. After a quiet minute the count starts again.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from state.model import ClientId

FREE: Final = 10
_FIRST_WAIT_MS: Final = 1_000
_MAX_WAIT_MS: Final = 8_000
_QUIET_MS: Final = 60_000
_MAX_CLIENTS: Final = 10_000


class _Contest(NamedTuple):
    takeovers: int
    last_ms: int

    @property
    def wait_ms(self) -> int:
        over = self.takeovers - FREE
        return 0 if over <= 0 else min(_FIRST_WAIT_MS << min(over - 1, 10), _MAX_WAIT_MS)


class Takeovers:
    """The takeovers that ended connections of this gateway, of the 10,000 clients that were last. Times are milliseconds of a
    monotonic clock."""

    def __init__(self) -> None:
        self._contests: OrderedDict[ClientId, _Contest] = OrderedDict()

    def record(self, client_id: ClientId, now_ms: int) -> int:
        """Counts a takeover. Returns how many there were in a row if the next CONNECT has to wait; else 0."""
        before = self._contests.pop(client_id, None)
        takeovers = 1 if before is None or _is_over(before, now_ms) else before.takeovers + 1
        contest = self._contests[client_id] = _Contest(takeovers, now_ms)
        if len(self._contests) > _MAX_CLIENTS:
            self._contests.popitem(last=False)
        return takeovers if contest.wait_ms else 0

    def wait_ms(self, client_id: ClientId, now_ms: int) -> int:
        """Returns how long a CONNECT of this client has to wait from now on; 0 = it need not."""
        contest = self._contests.get(client_id)
        return 0 if contest is None else max(0, contest.last_ms + contest.wait_ms - now_ms)

    def contested(self, now_ms: int) -> int:
        """Returns the number of clients whose CONNECTs have to wait, and forgets those that are quiet."""
        while self._contests and _is_over(next(iter(self._contests.values())), now_ms):
            self._contests.popitem(last=False)
        return sum(contest.wait_ms > 0 and not _is_over(contest, now_ms) for contest in self._contests.values())


def _is_over(contest: _Contest, now_ms: int) -> bool:
    return now_ms - contest.last_ms > contest.wait_ms + _QUIET_MS
