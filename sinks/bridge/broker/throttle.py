"""Computes waits after refusals of the broker (protocol.md, chapter 5). Pure: time is an argument."""

from state.outbound.retry import backoff_wait_ms
from state.settings import BackoffSettings


class BrokerThrottle:
    """The wait after publications were answered with 0x97. Times are seconds of a monotonic clock.

    All refusals between two waits are one step of the backoff.

    Args:
        key: Makes the jitter differ from that of other bridges.
    """

    __slots__ = ("_backoff", "_key", "_rounds", "_until_s")

    def __init__(self, backoff: BackoffSettings, *, key: str) -> None:
        self._backoff = backoff
        self._key = key
        self._rounds = 0
        self._until_s = 0.0

    def is_active(self, now_s: float) -> bool:
        """Returns True while nothing may be published."""
        return now_s < self._until_s

    def refused(self, now_s: float) -> int | None:
        """Counts a 0x97. Returns the wait in ms if a new one begins."""
        if self.is_active(now_s):
            return None
        self._rounds += 1
        wait_ms = backoff_wait_ms(self._rounds, self._backoff, jitter_key=f"{self._key}/{self._rounds}")
        self._until_s = now_s + wait_ms / 1_000
        return wait_ms

    def answered(self, now_s: float) -> None:
        """Resets the backoff after another answer, unless a wait is active: the message is from before the wait."""
        if not self.is_active(now_s):
            self._rounds = 0


class DialBackoff:
    """The wait before the next dial: none after a connection that lasted, unless the broker ended it because of overload.

    Args:
        lasting_ms: Milliseconds after which a connection counts as one that lasted.
        key: Makes the jitter differ from that of other connections.
    """

    __slots__ = ("_backoff", "_failures", "_key", "_lasting_ms")

    def __init__(self, backoff: BackoffSettings, *, lasting_ms: int, key: str) -> None:
        self._backoff = backoff
        self._lasting_ms = lasting_ms
        self._key = key
        self._failures = 0

    def ended(self, lasted_ms: float, *, is_throttled: bool) -> float:
        """Returns the wait in ms from now, after an attempt that lasted so long.

        The wait counts from the start of a failed attempt, and from the end of a connection that lasted.
        """
        has_lasted = lasted_ms > self._lasting_ms
        self._failures = int(is_throttled) if has_lasted else self._failures + 1
        if self._failures == 0:
            return 0.0
        wait_ms = backoff_wait_ms(self._failures, self._backoff, jitter_key=f"{self._key}/{self._failures}")
        return wait_ms if has_lasted else max(0.0, wait_ms - lasted_ms)
