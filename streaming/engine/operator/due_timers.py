"""Which sessions whose timer is due are called in this micro-batch, and when those are that are put off (docs/decisions/0018).

Spark calls every session whose timer is due in the same micro-batch. After a standstill that may be all of them, for minutes in
which no message of anybody goes through. So a task, that is a state partition in one micro-batch, works off a share:

1. The work of a session is one, and one more for every `MESSAGES_AS_ONE` messages that it holds.
2. Sessions are called until `limit` is reached, in the order in which Spark comes to them.
3. Those that are late by about the same time, within a factor of two, share a limit of their own. Who is put off again and again
   comes to be among the most overdue, of whom there are fewer and fewer: nobody waits longer than for the work of all the others.
4. Who is put off gets a timer anew: after `FIRST_MS`, and `STEP_MS` for each `limit` of work that was put off before it. Putting
   off costs a quarter of a call, because Spark reads and writes the row, so the places are far apart: most are put off once, and
   between two micro-batches there is time for messages. The row, and so how late a session is, stays as it is.
5. Of those beyond the limit every `CALLED_OF`th is called nevertheless. On a machine that is too slow for the places, putting off
   the same sessions again and again would take most of the time.
6. A session that has records is called, whatever this says, and sees to its timers then.

Executed again, the micro-batch makes the same choice: it depends on the limit, which is among the settings of the micro-batch; on
the rows and the time, which Spark keeps; and on the order of the sessions, which is that of the keys in RocksDB.
"""

from collections import defaultdict
from typing import Final

from pyspark.sql.streaming.state import GroupState

from streaming.engine.operator.state_row import StateRow

MESSAGES_AS_ONE: Final = 8
"""A message that expires, with its receipt and dead letter, costs a quarter of what a session does, one that waits much less."""
CALLED_OF: Final = 10
FIRST_MS: Final = 1_000
STEP_MS: Final = 5_000


class DueTimers:
    """Of one task. limit: work, see above; 0 = no limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._called: defaultdict[int, int] = defaultdict(int)
        """Work, by how late the sessions are: the number of binary digits of the milliseconds."""
        self._beyond = 0
        """Sessions."""
        self._put_off = 0
        """Work."""

    def put_off(self, state: GroupState) -> bool:
        """True = this group, which was called because of its timer, is put off: its timer is set, and nothing is to be done.

        To be asked once for each group that has timed out, in Spark's order.
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
        state.setTimeoutDuration(FIRST_MS + STEP_MS * self._put_off // self._limit)
        self._put_off += work
        return True
