"""Holds the next deadline of each session whose timer is due soon, in the order of time.

Spark's own time-outs would look through the state of all sessions in each micro-batch (docs/decisions/0055).

1. A session's deadline is what its newest call has reported (operator/reported_deadlines.py).
2. A stored deadline fills the index at the start of the engine and periodically. It counts only for sessions that have reported
   nothing since the reading of that state began.
3. Only deadlines of the next `HORIZON_MS` are held. Later ones come by rule 2 when they are nearer.
4. A session that is due is called once. It has no deadline here until it reports its next one.
5. Calls that have not been reported yet have at most `limit` work together. Others wait, the earliest deadline first. So a
   micro-batch after a standstill does not call all sessions at once, and messages pass meanwhile (docs/decisions/0018).

Times are milliseconds since 1970 by the clock of the sessions. A timer is late by at most `SLOT_MS` here, and never early.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from state.model import ClientId
from streaming.engine.operator.reported_deadlines import Timer

HORIZON_MS: Final = 1_800_000
SLOT_MS: Final = 10


class DeadlineIndex:
    """The deadlines of one engine. Not safe for several threads.

    Args:
        limit: See rule 5; 0 = no limit.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._timers: dict[ClientId, Timer] = {}
        self._slots: dict[int, list[ClientId]] = {}
        """Sessions by the number of the slot that has their deadline; also those that have another deadline by now."""
        self._order: list[int] = []
        """The numbers of the slots, as a heap."""
        self._called: dict[ClientId, int] = {}
        """The work of calls that are not reported yet."""
        self._called_work = 0
        self._reported: set[ClientId] = set()
        """Sessions that have reported since `begin_restore`."""

    def __len__(self) -> int:
        return len(self._timers)

    def report(self, reports: Mapping[ClientId, Timer | None], now_ms: int) -> None:
        """Applies what the sessions of a micro-batch have reported."""
        for client_id, timer in reports.items():
            self._called_work -= self._called.pop(client_id, 0)
            self._reported.add(client_id)
            self._set(client_id, timer, now_ms)

    def begin_restore(self) -> None:
        """Call it before the stored deadlines are read."""
        self._reported.clear()

    def restore(self, stored: Iterable[tuple[ClientId, Timer]], now_ms: int) -> None:
        """Applies stored deadlines, of a state that was read after `begin_restore`.

        Calls that were never reported count as lost from here on: the next restored state has the sessions' deadlines.
        """
        for client_id, timer in stored:
            if client_id not in self._reported and client_id not in self._called:
                self._set(client_id, timer, now_ms)
        self._called.clear()
        self._called_work = 0

    def pop_due(self, now_ms: int) -> dict[ClientId, Timer]:
        """Returns the sessions that are to be called now, earliest first. Their calls count as begun (rules 4 and 5)."""
        due: dict[ClientId, Timer] = {}
        while self._order and self._is_due(self._order[0], now_ms):
            slot = self._order[0]
            clients = self._slots[slot]
            while clients:
                if self._limit and self._called_work >= self._limit:
                    return due
                client_id = clients.pop()
                timer = self._timers.get(client_id)
                if timer is None or timer[0] // SLOT_MS != slot:
                    continue
                due[client_id] = self._timers.pop(client_id)
                self._called[client_id] = timer[1]
                self._called_work += timer[1]
            heapq.heappop(self._order)
            del self._slots[slot]
        return due

    def put_back(self, due: Mapping[ClientId, Timer], now_ms: int) -> None:
        """Takes back what `pop_due` has returned: these sessions were not called. One that has reported meanwhile is left out."""
        for client_id, timer in due.items():
            if (work := self._called.pop(client_id, None)) is not None:
                self._called_work -= work
                self._set(client_id, timer, now_ms)

    def next_ms(self) -> int | None:
        """Returns when `pop_due` has something to return; None = never, as far as is known. While rule 5 forbids it: None."""
        if not self._order or (self._limit and self._called_work >= self._limit):
            return None
        return (self._order[0] + 1) * SLOT_MS

    def _is_due(self, slot: int, now_ms: int) -> bool:
        """Returns True when the last deadline of the slot has passed."""
        return (slot + 1) * SLOT_MS <= now_ms

    def _set(self, client_id: ClientId, timer: Timer | None, now_ms: int) -> None:
        before = self._timers.get(client_id)
        if timer is None or timer[0] > now_ms + HORIZON_MS:
            if before is not None:
                del self._timers[client_id]
            return
        self._timers[client_id] = timer
        slot = timer[0] // SLOT_MS
        if before is not None and before[0] // SLOT_MS == slot:
            return
        clients = self._slots.get(slot)
        if clients is None:
            self._slots[slot] = [client_id]
            heapq.heappush(self._order, slot)
        else:
            clients.append(client_id)
