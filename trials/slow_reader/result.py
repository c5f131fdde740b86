"""Holds what a run has measured, and judges it. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.devices import percentile

MAXLEN: Final = "maxlen"
_BY_POLICY: Final = frozenset((MAXLEN, "delivery_limit"))
"""The outcomes of a device that reads nothing: messages are dropped from a full queue, or were sent as often as they may be."""
MOST_TIMES: Final = 2.0
"""The greatest ratio of the good devices' p99 beside the slow one to the p99 beside one more that reads."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """reading_ms, beside_ms: latencies of the good devices' messages beside one more that reads, and beside the slow one.

    sent, missing: messages to the good devices. lost: their connections that have ended. sent_to_slow: messages. outcomes: final
    receipts of the slow one. is_throttled, is_progressing: by the last record of `inflight.throttle` about it. reconnects: its
    connections after the first one.
    """

    reading_ms: Sequence[float]
    beside_ms: Sequence[float]
    sent: int
    missing: int
    lost: int
    sent_to_slow: int
    outcomes: Counter[str]
    is_throttled: bool
    is_progressing: bool
    reconnects: int

    @property
    def times(self) -> float:
        """Returns the p99 beside the slow one ÷ that beside one more that reads."""
        return percentile(self.beside_ms, 0.99) / max(1e-9, percentile(self.reading_ms, 0.99))


def failures(result: Result) -> list[str]:
    """Returns what must not be."""
    found = []
    if result.missing:
        found.append(f"{result.missing:,} of {result.sent:,} messages to devices that read are missing")
    if result.lost:
        found.append(f"{result.lost} connections of devices that read have ended")
    if result.times > MOST_TIMES:
        found.append(f"the p99 of devices that read is {result.times:.1f} times that beside one more that reads")
    if not result.outcomes[MAXLEN]:
        found.append(f"nothing was dropped for the slow one; its outcomes are {dict(result.outcomes)}")
    if others := {outcome: count for outcome, count in result.outcomes.items() if outcome not in _BY_POLICY}:
        found.append(f"messages of the slow one have other outcomes: {others}")
    if not result.is_throttled:
        found.append("backends were not told to send nothing more to the slow one")
    elif result.is_progressing:
        found.append("backends were told that the slow one catches up")
    return found
