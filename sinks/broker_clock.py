"""The time of Kafka's brokers: one clock for all gateways and bridges, whatever their own clocks say.

Where records get their time from the broker (LogAppendTime, as `inflight.leases` is made), each confirmed renewal of a lease says
what the broker's clock said between sending it and hearing of it. From there on a clock counts that nobody sets.
"""

import time
from collections.abc import Callable
from typing import Final

from sinks.lease import boot_clock_ms

_DRIFT: Final = 1e-3
"""More than any two clocks drift apart: so much worse gets what is known, for each millisecond."""


class BrokerClock:
    """clock_ms: one that never goes back. wall_ns: this machine's, as long as nothing else is known."""

    def __init__(
        self, *, clock_ms: Callable[[], float] = boot_clock_ms, wall_ns: Callable[[], int] = lambda: time.time_ns()
    ) -> None:
        self._clock_ms = clock_ms
        self._wall_ns = wall_ns
        self._ahead_ms: float | None = None
        """How far the broker's clock is ahead of `clock_ms`."""
        self._error_ms = 0.0
        """At most, when it was observed."""
        self._observed_ms = 0.0

    def observe(self, broker_ms: int, took_ms: float) -> None:
        """broker_ms: when the broker had a record, since 1970. took_ms: from sending it to hearing of that, which is now."""
        now_ms, error_ms = self._clock_ms(), took_ms / 2
        if self._ahead_ms is None or error_ms <= self._error_ms + _DRIFT * (now_ms - self._observed_ms):
            self._ahead_ms = broker_ms - (now_ms - error_ms)
            self._error_ms, self._observed_ms = error_ms, now_ms

    def now_ns(self) -> int:
        """Since 1970. May go back by what was not known."""
        return self._wall_ns() if self._ahead_ms is None else int((self._clock_ms() + self._ahead_ms) * 1_000_000)
