"""How long to leave a broker alone that has refused something (docs/protocol.md, chapter 5). Pure: time is an argument."""

from state.outbound.retry import backoff_wait_ms
from state.settings import BackoffSettings


class BrokerThrottle:
    """A broker that answers publications with 0x97. One round of refusals is one step of the backoff, however many messages are
    refused in it. Times are seconds, monotonic."""

    __slots__ = ("_backoff", "_key", "_rounds", "_until_s")

    def __init__(self, backoff: BackoffSettings, *, key: str) -> None:
        """key: what makes these waits differ from those of other bridges."""
        self._backoff = backoff
        self._key = key
        self._rounds = 0
        self._until_s = 0.0

    def holds(self, now_s: float) -> bool:
        """Nothing may be published yet."""
        return now_s < self._until_s

    def refused(self, now_s: float) -> int | None:
        """The broker has said 0x97. Returns the wait in ms if a new one begins."""
        if self.holds(now_s):
            return None
        self._rounds += 1
        wait_ms = backoff_wait_ms(self._rounds, self._backoff, jitter_key=f"{self._key}/{self._rounds}")
        self._until_s = now_s + wait_ms / 1_000
        return wait_ms

    def answered(self, now_s: float) -> None:
        """The broker has answered anything else; an answer to a message from before the wait says nothing about after it."""
        if not self.holds(now_s):
            self._rounds = 0


class DialBackoff:
    """When to dial again: after a connection that lasted at once, unless the broker ended it because it has too much to do."""

    __slots__ = ("_backoff", "_failures", "_key", "_lasting_ms")

    def __init__(self, backoff: BackoffSettings, *, lasting_ms: int, key: str) -> None:
        """lasting_ms: a longer connection was a good one. key: what makes these waits differ from those of other connections."""
        self._backoff = backoff
        self._lasting_ms = lasting_ms
        self._key = key
        self._failures = 0

    def ended(self, lasted_ms: float, *, is_throttled: bool) -> float:
        """An attempt ended after that long, refused or not. Returns the wait in ms from now; it counts from the start of the
        attempt, or from its end when that was the refusal."""
        was_good = lasted_ms > self._lasting_ms
        self._failures = int(is_throttled) if was_good else self._failures + 1
        if self._failures == 0:
            return 0.0
        wait_ms = backoff_wait_ms(self._failures, self._backoff, jitter_key=f"{self._key}/{self._failures}")
        return wait_ms if was_good else max(0.0, wait_ms - lasted_ms)
