"""Log lines for events that can come in floods."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

_WINDOW_S: Final = 60.0
_MAX_LINES: Final = 10
_MAX_TEXT: Final = 200


class LogThrottle:
    """Writes at most ten lines a minute, then one with the number of lines that were left out.

    So a device that goes on for a day adds about 8 MB to a log.

    Args:
        log: A method of a structlog logger.
        event: Names the lines.
        more_event: Names the line with the number.
        max_lines: A minute, instead of ten.
    """

    def __init__(
        self,
        log: Callable[..., Any],
        event: str,
        more_event: str,
        *,
        max_lines: int = _MAX_LINES,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._event = event
        self._more_event = more_event
        self._max_lines = max_lines
        self._clock_s = clock_s
        self._window_s = -_WINDOW_S
        self._lines = 0

    def line(self, **fields: object) -> None:
        """Writes a line, with texts cut to 200 characters, or counts it as left out."""
        self.flush()
        self._lines += 1
        if self._lines <= self._max_lines:
            self._log(
                self._event, **{name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
            )

    def flush(self) -> None:
        """Writes the number that is due. Call it about once a second: after a flood there may be no further line."""
        now_s = self._clock_s()
        if now_s - self._window_s < _WINDOW_S:
            return
        if self._lines > self._max_lines:
            self._log(self._more_event, count=self._lines - self._max_lines)
        self._window_s, self._lines = now_s, 0


class RefusalLog(LogThrottle):
    """Counts every refusal by its kind, and logs as LogThrottle does.

    Args:
        counter: The values of a metric by kind; each refusal adds one.
        label: The field of the log line that names the kind.
    """

    def __init__(
        self,
        counter: Counter[str],
        log: Callable[..., Any],
        event: str,
        more_event: str,
        *,
        label: str,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(log, event, more_event, clock_s=clock_s)
        self._counter = counter
        self._label = label

    def refused(self, kind: str, address: str = "", **fields: object) -> None:
        """Counts a refusal, and logs it or counts it as left out.

        Args:
            kind: The reason of the refusal.
            address: The address of the peer. Empty if it is unknown, or if the refusal concerns all devices together.
            fields: More fields of the log line.
        """
        self._counter[kind] += 1
        self.line(**{self._label: str(kind)}, address=address, **fields)
