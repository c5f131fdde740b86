"""Computes how long devices waited for messages after a fault. Pure.

A message is late when its device waited for it longer than LATE_S: from when the backend sent it, or from when the device came
back after an absence of its own choice, to its arrival. Only kept sessions count: they get everything. The device that stops
reading at times does not count.

Recovery after a fault lasts from the end of the fault to the first moment after which no message that is sent within QUIET_S is
late. The fault ends when the process runs again or was killed, or the connections or the disk are as before. 0 = nobody waited
longer than LATE_S at that time. A fault that begins before the recovery from another one has finished prolongs that recovery;
two faults of one incident have one recovery.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trials.faults.account.facts import DeviceFacts, End, Facts, Suffered
from trials.faults.plan.busy import DEAF
from trials.faults.plan.characters import Keeping

LATE_S = 3.0
"""A few micro-batches of a busy machine, and a device's reconnect."""
QUIET_S = 2.0
_BY_ITSELF = (End.CUT, End.GOODBYE, End.WITH_WILL)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """recovered_s: after the fault's end. longest_s: that a message was waited for which was under way during the fault or
    until then; 0 = none was late.
    """

    suffered: Suffered
    recovered_s: float
    longest_s: float


@dataclass(frozen=True, order=True)
class Wait:
    began_s: float
    ended_s: float


def recoveries(facts: Facts) -> list[Recovery]:
    """Returns a recovery for each fault, in their order."""
    waits = late_waits(facts)
    return [_recovery(suffered, waits) for suffered in facts.suffered]


def late_waits(facts: Facts) -> list[Wait]:
    """Returns the waits of late messages, in the order of time."""
    kept = [device for device in facts.devices if device.character.keeping is Keeping.KEPT]
    devices = {device.client_id: device for device in kept if device.client_id != DEAF}
    returns = {client_id: _returns(device) for client_id, device in devices.items()}
    found = []
    for sent in facts.sent:
        if sent.client_id not in devices or sent.due_s is not None or sent.campaign:
            continue
        arrived_s = devices[sent.client_id].first_s.get(sent.payload)
        if arrived_s is None:
            continue  # lost, says the account
        came_back = returns[sent.client_id]
        last = bisect_right(came_back, arrived_s)
        wait = Wait(max(sent.sent_s, came_back[last - 1] if last else 0.0), arrived_s)
        if wait.ended_s - wait.began_s > LATE_S:
            found.append(wait)
    return sorted(found)


def _returns(device: DeviceFacts) -> list[float]:
    """Returns the times of the first CONNECT and of each one after an absence that the device chose while all was well."""
    first = [device.attempts[0].began_s] if device.attempts else []
    return first + [
        following.began_s
        for attempt, following in pairwise(device.attempts)
        if attempt.accepted_s is not None
        and attempt.end in _BY_ITSELF
        and attempt.ended_s is not None
        and attempt.ended_s - attempt.heard_s < device.character.patience_s
    ]


def _recovery(suffered: Suffered, waits: Sequence[Wait]) -> Recovery:
    until_s, longest_s = suffered.ended_s, 0.0
    for wait in waits:
        if wait.began_s > until_s + QUIET_S:
            break
        if wait.ended_s > suffered.began_s:
            until_s = max(until_s, wait.ended_s)
            longest_s = max(longest_s, wait.ended_s - wait.began_s)
    return Recovery(suffered=suffered, recovered_s=until_s - suffered.ended_s, longest_s=longest_s)


def spread(seconds: Iterable[float]) -> tuple[float, float]:
    """Median and most; of none 0."""
    ordered = sorted(seconds) or [0.0]
    return ordered[len(ordered) // 2], ordered[-1]
