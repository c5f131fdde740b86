"""Presence: what `inflight.presence` said, and when → what of it was not true. Pure.

1. For each micro-batch in which the ledger says something of the client's connections it says the same, and for no other one.
   A refused CONNECT may be announced, too: its connection id is the newest one.
2. A client is online from some time after its connection was accepted to the connection's end, and is not online from some time
   after that to its next CONNECT. "Some time" is WITHIN_S, which begins anew after each outage of the engine.
3. When all devices have left, a kept session is offline, and any other one is gone.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf

from trials.faults.account.account_of_sessions import WITHIN_S, deadline_s, said_s
from trials.faults.account.facts import DeviceFacts, Facts, SaidPresence, SessionRow, Status, Step, Violation
from trials.faults.plan.characters import Keeping

_AFTER = {Step.CONNECTED: Status.ONLINE, Step.DISCONNECTED: Status.OFFLINE, Step.SESSION_ENDED: Status.GONE}


def violations(facts: Facts) -> Iterator[Violation]:
    records: dict[str, list[SaidPresence]] = defaultdict(list)
    rows: dict[str, list[SessionRow]] = defaultdict(list)
    for record in facts.presence:
        records[record.client_id].append(record)
    for row in facts.sessions:
        rows[row.client_id].append(row)
    refused_s: dict[str, set[float]] = defaultdict(set)
    for row in facts.refusals:
        refused_s[row.client_id].add(row.time_s)
    for device in facts.devices:
        if any(attempt.accepted_s is not None for attempt in device.attempts):
            seen = _Seen(records[device.client_id])
            found = (
                _beside_ledger(seen, rows[device.client_id], refused_s[device.client_id]),
                _in_time(seen, device, facts),
                _at_the_end(seen, device),
            )
            yield from (Violation(client_id=device.client_id, what=what) for each in found for what in each)


class _Seen:
    """A reader's view of one client, as docs/guides/presence.md says: the highest record counts, and a session that has ended
    leaves nothing behind that later ones could be compared with.

    since_s: the times of the micro-batches that have written records that count.
    """

    def __init__(self, records: Iterable[SaidPresence]) -> None:
        self._at_s: list[float] = []
        self.since_s: list[float] = []
        self._status = [Status.GONE]
        for highest in _highest(records):
            self._at_s.append(highest.time_s)
            self.since_s.append(highest.since_s)
            self._status.append(highest.status)

    @property
    def last(self) -> Status | None:
        """Returns the last word; None = there was none."""
        return self._status[-1] if self._at_s else None

    def of_micro_batch(self, time_s: float) -> Status:
        """Returns what is said by the micro-batch of this time, or was before and still holds."""
        return self._status[bisect_right(self.since_s, time_s)]

    def has_record_of(self, time_s: float) -> bool:
        """Says that the micro-batch of this time has written a record that counts."""
        return time_s in self.since_s

    def between(self, begin_s: float, end_s: float) -> list[Status]:
        """Returns what can be read in this time."""
        return self._status[bisect_right(self._at_s, begin_s) : bisect_right(self._at_s, end_s) + 1]


def _highest(records: Iterable[SaidPresence]) -> Iterator[SaidPresence]:
    """Yields the records that count, without copies."""
    known: SaidPresence | None = None
    for record in records:
        is_lower = known is not None and _order(record) < _order(known)
        if known is None or (known.status is Status.GONE and record.since_s > known.since_s) or not is_lower:
            known = record
            yield record


def _order(record: SaidPresence) -> tuple[int, int]:
    return record.connection_id, list(Status).index(record.status)


def online(records: Iterable[SaidPresence]) -> set[str]:
    """Returns the clients that are online by these records."""
    by_client: dict[str, list[SaidPresence]] = defaultdict(list)
    for record in records:
        by_client[record.client_id].append(record)
    return {client_id for client_id, each in by_client.items() if _Seen(each).last is Status.ONLINE}


def _beside_ledger(seen: _Seen, rows: list[SessionRow], refused_s: set[float]) -> Iterator[str]:
    known = {row.time_s: row.step for row in rows}
    for time_s, step in known.items():
        said, due = seen.of_micro_batch(time_s), _AFTER[step]
        if said is not due:
            yield f"its presence is {said} after a micro-batch, and {due} by the ledger ({time_s:.3f})"
        elif not seen.has_record_of(time_s) and due is not Status.GONE:
            yield f"its presence has no record of a micro-batch after which it is {due} by the ledger ({time_s:.3f})"
    for time_s in seen.since_s:
        if time_s not in known and time_s not in refused_s:
            yield f"its presence has a record of a micro-batch of which the ledger says nothing ({time_s:.3f})"


def _in_time(seen: _Seen, device: DeviceFacts, facts: Facts) -> Iterator[str]:
    for attempt in device.attempts:
        if attempt.accepted_s is None or attempt.will in facts.refused:
            continue
        due_s, end_s = deadline_s(attempt.accepted_s, WITHIN_S, facts.pauses), said_s(attempt, facts.suffered)
        if due_s < end_s and set(seen.between(due_s, end_s)) != {Status.ONLINE}:
            yield f"not online {due_s - attempt.accepted_s:.0f} s after CONNACK and later ({attempt.accepted_s:.3f})"
    for before, following in pairwise([*device.attempts, None]):
        assert before is not None
        assert before.ended_s is not None
        due_s, end_s = deadline_s(before.ended_s, WITHIN_S, facts.pauses), following.began_s if following else inf
        if due_s < end_s and Status.ONLINE in seen.between(due_s, end_s):
            yield f"online {due_s - before.ended_s:.0f} s after the end of its connection ({before.ended_s:.3f})"


def _at_the_end(seen: _Seen, device: DeviceFacts) -> Iterator[str]:
    due = Status.OFFLINE if device.character.keeping is Keeping.KEPT else Status.GONE
    if seen.last is None:
        yield "its presence was never announced"
    elif seen.last is not due:
        yield f"its presence is {seen.last} at the end of the run, and it is {due}"
