"""Says which messages may be dropped: those of a busy client that was away for longer than `progress_timeout`. Pure.

The queues of all other devices have no limits, so nothing may be dropped for them.
"""

from collections.abc import Iterator
from itertools import pairwise

from trials.faults.account.facts import DeviceFacts, Sent
from trials.faults.plan.busy import BUSY

MAXLEN = "maxlen"
PROGRESS_TIMEOUT_S = 30.0
"""The product's default."""
_QUEUED_S = 30.0
"""Messages that old may still wait when the client goes away."""


class Absences:
    """The times in which a busy device had no connection for longer than `progress_timeout`."""

    def __init__(self, device: DeviceFacts) -> None:
        self._found = list(_absences(device)) if device.client_id.startswith(BUSY) else []

    def may_be_dropped(self, message: Sent) -> bool:
        return any(began_s - _QUEUED_S <= message.sent_s <= ended_s for began_s, ended_s in self._found)


def _absences(device: DeviceFacts) -> Iterator[tuple[float, float]]:
    accepted = [attempt for attempt in device.attempts if attempt.accepted_s is not None]
    for before, following in pairwise(accepted):
        assert following.accepted_s is not None
        if following.accepted_s - before.heard_s > PROGRESS_TIMEOUT_S:
            yield before.heard_s, following.accepted_s
