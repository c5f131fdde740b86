"""A line in the log for each of many events, as long as they are not too many."""

from collections.abc import Callable
from typing import Any, Final

_WINDOW_MS: Final = 1_000
_MAX_LINES: Final = 10


class LimitedLog:
    """At most ten lines a second, then one that says how many are missing. say: a method of a structlog logger.

    event: the name of the lines, more: that of the one behind them. Times: milliseconds of a monotonic clock.
    """

    def __init__(self, say: Callable[..., Any], event: str, more: str) -> None:
        self._say = say
        self._event = event
        self._more = more
        self._window_ms = 0
        self._lines = 0

    def line(self, now_ms: int, **fields: object) -> None:
        self.catch_up(now_ms)
        self._lines += 1
        if self._lines <= _MAX_LINES:
            self._say(self._event, **fields)

    def catch_up(self, now_ms: int) -> None:
        """Call it now and then, so that the last line of a flood is not the last word."""
        if now_ms - self._window_ms < _WINDOW_MS:
            return
        if self._lines > _MAX_LINES:
            self._say(self._more, count=self._lines - _MAX_LINES)
        self._window_ms, self._lines = now_ms, 0
