"""Decides which sessions with a due timer are called in this micro-batch, and when the postponed ones are (docs/decisions/0018).

Spark calls every session whose timer is due in the same micro-batch. After a standstill that may be all sessions, for minutes in
which no message passes. So a task, which is a state partition in one micro-batch, calls only a share of them:

1. The work of a session is 1, plus 1 for every `MESSAGES_AS_ONE` messages that it holds.
2. Sessions are called until their work reaches `limit`, in Spark's order.
3. Sessions that are late by about the same time, within a factor of two, share a limit of their own. A session that is postponed
   repeatedly becomes one of the most overdue, of which there are fewer and fewer. So no session waits longer than for the work of
   all others.
4. A postponed session gets a new timer: after `FIRST_MS`, plus `STEP_MS` for each `limit` of work that was postponed before it.
   Postponing costs a quarter of a call, because Spark reads and writes the row. With so long steps most sessions are postponed
   once, and messages have time between two micro-batches. The row stays as it is, and with it how late the session is.
5. Beyond the limit every `CALLED_OF`th session is called nevertheless. On a machine that is too slow for these steps, postponing
   the same sessions repeatedly would take most of the time.
6. A session with records is called in any case, and handles its timers then.

A repeated execution of the micro-batch makes the same choice. It depends on the limit, which belongs to the settings of the
micro-batch; on the rows and the time, which Spark keeps; and on the order of the sessions, which is that of the keys in RocksDB.
"""

from collections import defaultdict
from typing import Final

from pyspark.sql.streaming.state import GroupState

from streaming.engine.operator.state_row import StateRow

MESSAGES_AS_ONE: Final = 8
"""A message that expires, with its receipt and dead letter, costs a quarter of a session's call; a waiting one much less."""
CALLED_OF: Final = 10
FIRST_MS: Final = 1_000
STEP_MS: Final = 5_000


class DueTimers:
    """The due timers of one task. limit: work, see rule 2; 0 = no limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._called: defaultdict[int, int] = defaultdict(int)
        """Work by lateness: the number of binary digits of the milliseconds."""
        self._beyond = 0
        """Sessions beyond the limit."""
        self._postponed = 0
        """Postponed work."""

    def postpone(self, state: GroupState) -> bool:
        """Returns True if this timed-out group is postponed: its timer is set, and its session is not called.

        Call it once for each group that has timed out, in Spark's order.
        """
        if not self._limit or not state.exists:
            return False
        row = StateRow(*state.get)
        now_ms = state.getCurrentProcessingTimeMs()
        lateness = max(0, now_ms - (row.next_deadline_ms or now_ms)).bit_length()
        work = 1 + (row.inflight + row.queued) // MESSAGES_AS_ONE
        if self._called[lateness] < self._limit:
            self._called[lateness] += work
            return False
        self._beyond += 1
        if self._beyond % CALLED_OF == 0:
            return False
        state.setTimeoutDuration(FIRST_MS + STEP_MS * self._postponed // self._limit)
        self._postponed += work
        return True
