"""Wills and the ends of sessions: what happened → what of it must not have happened. Pure.

A will is due once when its connection ended other than by DISCONNECT 0x00. Two witnesses say how it ended: the device, and
`inflight.events`. A DISCONNECT that a killed gateway has never read is none, so "no will" is judged by the log; "a will" is
judged by both.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from trials.faults.account.facts import (
    Attempt,
    DeviceFacts,
    End,
    Facts,
    LoggedConnection,
    LoggedEnd,
    Outage,
    SessionRow,
    Step,
    Suffered,
    Violation,
)
from trials.faults.plan.characters import Keeping
from trials.faults.plan.faults import LEASE_S, Kind, Part

PATIENCE = 1.5
"""The engine ends the connections of a gateway that is gone after so many leases (docs/reference/protocol.md, 1)."""
ALLOWANCE_S = 20.0
"""Seconds for everything else: finding the connections, a micro-batch or two, and a machine that has other work."""
WITHIN_S = PATIENCE * LEASE_S + ALLOWANCE_S
DRAIN_S = 2.0
"""Seconds after a network works again in which a device may still read delayed bytes."""


def violations(facts: Facts) -> Iterator[Violation]:
    published = _published(facts)
    logged = {connection.will: connection for connection in facts.connections}
    rows: dict[str, list[SessionRow]] = defaultdict(list)
    for row in facts.sessions:
        rows[row.client_id].append(row)
    for device in facts.devices:
        for attempt in device.attempts:
            yield from _will(device, attempt, logged.get(attempt.will), published[attempt.will], facts)
        yield from _session_present(device, facts.refused, facts.suffered)
        yield from _ends(device, rows[device.client_id], facts)


def deadline_s(begin_s: float, within_s: float, outages: Iterable[Outage]) -> float:
    """Returns the latest time by which an engine must have acted that needs at most `within_s` without a pause.

    After each outage within that time the engine's limit starts anew, as its observation of the leases does.
    """
    deadline = begin_s + within_s
    for outage in sorted(outages, key=lambda outage: outage.began_s):
        if outage.began_s < deadline and outage.ended_s > begin_s:
            deadline = max(deadline, outage.ended_s + within_s)
    return deadline


# --- wills --------------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Published:
    ids: set[str]
    first_s: float


def _published(facts: Facts) -> defaultdict[bytes, _Published]:
    found: defaultdict[bytes, _Published] = defaultdict(lambda: _Published(ids=set(), first_s=float("inf")))
    wills = {attempt.will for device in facts.devices for attempt in device.attempts}
    for record in facts.uplink:
        if record.payload in wills:
            found[record.payload].ids.add(record.inflight_id)
            found[record.payload].first_s = min(found[record.payload].first_s, record.time_s)
    return found


def _will(
    device: DeviceFacts, attempt: Attempt, logged: LoggedConnection | None, published: _Published, facts: Facts
) -> Iterator[Violation]:
    def wrong(what: str) -> Violation:
        return Violation(client_id=device.client_id, what=f"{what}; it ended: {attempt.end}", of=attempt.will)

    count, outages = len(published.ids), facts.pauses
    if count > 1:
        yield wrong(f"a will was published {count} times")
    if logged is None:
        if attempt.accepted_s is not None and attempt.will not in facts.refused:
            yield wrong("a connection was accepted of which the log says nothing")
        if count:
            yield wrong("the will of a connection that no session has accepted was published")
        return
    if logged.end is LoggedEnd.GOODBYE and not logged.closed and count:
        yield wrong("a will was published after DISCONNECT 0x00")
    may_be_cancelled = device.character.will_delay_s > 0 and not _delay_passed(device, logged, outages)
    if logged.end is LoggedEnd.OTHER and not count and not may_be_cancelled:
        yield wrong("a will is missing, says the log")
    ended_by_will = attempt.accepted_s is not None and attempt.end in (End.CUT, End.WITH_WILL, End.CLOSED)
    if ended_by_will and not may_be_cancelled:
        assert attempt.ended_s is not None
        if not count and logged.end is not LoggedEnd.OTHER:
            yield wrong("a will is missing, says the device")
        latest_s = deadline_s(attempt.ended_s, WITHIN_S + device.character.will_delay_s, outages)
        if count and published.first_s > latest_s:
            yield wrong(f"a will came {published.first_s - attempt.ended_s:.0f} s after the end of the connection")


def _delay_passed(device: DeviceFacts, logged: LoggedConnection, outages: list[Outage]) -> bool:
    """The will's delay was surely over before the next connection."""
    if logged.next_s is None:
        return True
    if logged.end_s is None:
        return False
    return logged.next_s > deadline_s(logged.end_s, device.character.will_delay_s + ALLOWANCE_S, outages)


# --- sessions -----------------------------------------------------------------------------------------------------------------


def _session_present(device: DeviceFacts, refused: frozenset[bytes], suffered: list[Suffered]) -> Iterator[Violation]:
    """Checks what CONNACK says: 0 after a clean start, and 1 when the session cannot have expired.

    Expiry counts from when a gateway last spoke to the device. A connection after one that the session has refused is not
    judged: the session has heard nothing of the device then.
    """
    expiry_s, was_refused, before = device.character.expiry_s, False, None
    for attempt in device.attempts:
        if attempt.accepted_s is None:
            continue
        if attempt.clean and attempt.session_present:
            yield Violation(client_id=device.client_id, what="session present after a clean start", of=attempt.will)
        must_be = not attempt.clean and attempt.absent_since_s is not None and device.character.keeping is not Keeping.CLEAN
        if must_be and not attempt.session_present and not was_refused:
            assert before is not None
            if expiry_s is None or attempt.accepted_s - said_s(before, suffered) < expiry_s:
                yield Violation(client_id=device.client_id, what="its session was gone before its time", of=attempt.will)
        was_refused, before = attempt.will in refused, attempt


def said_s(attempt: Attempt, suffered: list[Suffered]) -> float:
    """Returns the earliest time at which the gateway may have sent the last bytes that the device read.

    The network between them may have delayed the bytes, while the gateway has long ended the connection.
    """
    earliest_s = attempt.heard_s
    for one in suffered:
        fault = one.fault
        if fault.part is not Part.DEVICES or fault.victim != attempt.gateway:
            continue
        if fault.kind is Kind.STALL and one.began_s <= attempt.heard_s <= one.ended_s + DRAIN_S:
            earliest_s = min(earliest_s, one.began_s)
        elif fault.kind is Kind.DELAY and one.began_s <= attempt.heard_s <= one.ended_s + fault.by_s + DRAIN_S:
            earliest_s = min(earliest_s, attempt.heard_s - fault.by_s)
    return earliest_s


def _was_away(device: DeviceFacts, since_s: float, until_s: float, for_s: float, suffered: list[Suffered]) -> bool:
    """Returns True if a device had no connection for so long. Its session then ends by the claim of its next CONNECT.

    The engine may have read both ends of that time in one micro-batch (docs/decisions/0056). A gateway may have ended a
    connection before the device learns of it.

    since_s: the latest time by which the engine had certainly not read that CONNECT.
    """
    accepted = [attempt for attempt in device.attempts if attempt.accepted_s is not None and attempt.accepted_s <= until_s]
    for attempt, following in pairwise([*accepted, None]):
        assert attempt is not None
        back_s = until_s if following is None or following.accepted_s is None else following.accepted_s
        if back_s >= since_s and back_s - said_s(attempt, suffered) >= for_s:
            return True
    return False


def _ends(device: DeviceFacts, rows: list[SessionRow], facts: Facts) -> Iterator[Violation]:
    """Checks by the ledger that a session that can end does so in time after its connection, or the client is back by then."""

    def wrong(what: str) -> Violation:
        return Violation(client_id=device.client_id, what=what)

    steps = Counter(row.step for row in rows)
    if device.character.keeping is Keeping.KEPT:
        if steps[Step.SESSION_ENDED]:
            yield wrong("a session that is kept has ended")
        return
    expiry_s = device.character.expiry_s or 0
    if any(attempt.accepted_s is not None for attempt in device.attempts) and not rows:
        yield wrong("the ledger says nothing of its connections")
    if rows and rows[-1].step is not Step.SESSION_ENDED:
        yield wrong(f"its session has not ended: the last thing known is {rows[-1].step}")
    for row, following in pairwise(rows):
        if row.step is not Step.DISCONNECTED:
            continue
        latest_s = deadline_s(row.time_s, expiry_s + ALLOWANCE_S, facts.pauses)
        if following.time_s > latest_s:
            yield wrong(f"its session went on for {following.time_s - row.time_s:.0f} s; {expiry_s} s were asked for")
        by_itself = following.step is Step.SESSION_ENDED and "clean start" not in following.detail
        is_early = following.time_s < row.time_s + expiry_s - 0.001
        since_s = max((other.time_s for other in rows if other.time_s < row.time_s), default=0.0) - WITHIN_S
        if by_itself and is_early and not _was_away(device, since_s, following.time_s, expiry_s, facts.suffered):
            yield wrong(f"its session ended after {following.time_s - row.time_s:.1f} s; {expiry_s} s were asked for")
