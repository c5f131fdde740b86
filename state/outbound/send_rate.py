"""Limits how many messages a second a session sends to its client (`session.max_send_rate`), by a token bucket.

The bucket counts thousandths of a message, so each millisecond adds `per_s` of them, and everything is a whole number. It holds
the messages of one second, and is full at first. Messages that are sent for the first time cost a token. Replays and resends
cost none: the window limits them.
"""

from typing import Final

_MESSAGE: Final = 1_000
"""Tokens that a message costs, in thousandths."""


class SendRate:
    """A token bucket.

    Attributes:
        per_s: Messages a second, at least 1.
        level: Thousandths of a message that were there at `at_ms`.
    """

    __slots__ = ("at_ms", "level", "per_s")

    def __init__(self, per_s: int) -> None:
        self.per_s = per_s
        self.level = per_s * _MESSAGE
        self.at_ms = 0

    def restore(self, level: int, at_ms: int) -> None:
        """Continues with a stored level. The rate may have been another one."""
        self.level, self.at_ms = min(level, self.per_s * _MESSAGE), at_ms

    def tokens(self, now_ms: int) -> int:
        """Returns how many messages may be sent now."""
        return self._level_at(now_ms) // _MESSAGE

    def spend(self, now_ms: int) -> None:
        """Counts a message that is sent now. Call it only while there are tokens."""
        self.level = self._level_at(now_ms) - _MESSAGE
        self.at_ms = now_ms

    def next_ms(self, waiting: int) -> int:
        """Returns when to send again: when there are tokens for all that wait, or for half a second.

        A session that were called for every single token would cost the engine an activation for each message.

        Args:
            waiting: Number of messages, at least 1.
        """
        wanted = _MESSAGE * min(waiting, max(1, self.per_s // 2))
        return self.at_ms - (self.level - wanted) // self.per_s

    def _level_at(self, now_ms: int) -> int:
        return min(self.per_s * _MESSAGE, self.level + self.per_s * (now_ms - self.at_ms))
