"""A broker that has said 0x97: how long to leave it alone (PROTOCOL, chapter 5). Pure: the time comes in as an argument."""

from state.retry import backoff_wait_ms
from state.settings import BackoffSettings


class BrokerThrottle:
    """One round of refusals is one step of the backoff, however many messages are refused in it. Times are seconds, monotonic."""

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
