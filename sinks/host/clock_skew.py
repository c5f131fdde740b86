"""Watches how far the clock of this machine is from that of Kafka's brokers."""

import time
from collections.abc import Callable
from typing import Any, Final

import structlog

_log: Final = structlog.get_logger(__name__)
SKEW_LIMIT_S: Final = 5.0
"""A larger difference is reported. Tokens, times to live and certificates are judged by clocks; NTP keeps them within 0.1 s."""
_AGAIN_S: Final = 3_600.0


class ClockSkew:
    """Logs a clock that is off when it is first seen, once an hour while it is, and when it is right again.

    Attributes:
        seconds: This machine's clock minus the brokers'; 0 = not measured yet.
    """

    def __init__(
        self,
        *,
        on_measured: Callable[[float], None] = lambda seconds: None,
        log: Any = _log,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = 0.0
        self._on_measured = on_measured
        self._log = log
        self._clock_s = clock_s
        self._logged_s: float | None = None
        """When the difference was last logged; None = there is none to speak of."""

    def measured(self, seconds: float) -> None:
        """Takes a measurement: this machine's clock minus the brokers', in seconds."""
        self.seconds = seconds
        self._on_measured(seconds)
        if abs(seconds) <= SKEW_LIMIT_S:
            if self._logged_s is not None:
                self._logged_s = None
                self._log.info("clock_right_again", skew_s=round(seconds, 1))
        elif self._logged_s is None or self._clock_s() - self._logged_s >= _AGAIN_S:
            self._logged_s = self._clock_s()
            self._log.warning("clock_off", skew_s=round(seconds, 1), what=skew_text(seconds), action=SKEW_ACTION)


SKEW_ACTION: Final = (
    "set the clock of that machine (NTP), or that of the brokers if all others differ from it: times to live, tokens and "
    "certificates are judged by it"
)


def skew_text(seconds: float) -> str:
    """Returns the difference for people."""
    size = abs(seconds)
    text = f"{size / 86_400:.1f} days" if size >= 86_400 else f"{size / 3_600:.1f} h" if size >= 3_600 else f"{size:.0f} s"
    return f"the clock is {text} {'ahead of' if seconds > 0 else 'behind'} that of Kafka's brokers"
