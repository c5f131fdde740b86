"""Keeps the time of Kafka's brokers: one clock for all gateways and bridges, whatever their own clocks say.

The broker sets the time of records in a topic with LogAppendTime, such as `inflight.leases`. So each confirmed renewal of a lease
tells the broker's time between sending and confirmation. From there this machine's monotonic clock continues.
"""

import time
from collections.abc import Callable
from typing import Final

from sinks.host.lease import boot_clock_ms

_DRIFT: Final = 1e-3
"""The estimate's error grows by this much per millisecond. It is more than any two clocks drift apart."""


class BrokerClock:
    """Estimates the time of Kafka's brokers.

    Args:
        clock_ms: A clock that never goes back.
        wall_ns: This machine's clock, used before the first observation.
    """

    def __init__(
        self, *, clock_ms: Callable[[], float] = boot_clock_ms, wall_ns: Callable[[], int] = lambda: time.time_ns()
    ) -> None:
        self._clock_ms = clock_ms
        self._wall_ns = wall_ns
        self._offset_ms: float | None = None
        """The broker's clock minus `clock_ms`; None = not observed yet."""
        self._error_ms = 0.0
        """Greatest error of `_offset_ms` at the time of observation."""
        self._observed_ms = 0.0

    def observe(self, broker_ms: int, round_trip_ms: float) -> None:
        """Improves the estimate if the observation is more accurate.

        Args:
            broker_ms: Time that the broker gave a record, in milliseconds since 1970.
            round_trip_ms: Time from sending the record to its confirmation, which is now.
        """
        now_ms, error_ms = self._clock_ms(), round_trip_ms / 2
        if self._offset_ms is None or error_ms <= self._error_ms + _DRIFT * (now_ms - self._observed_ms):
            self._offset_ms = broker_ms - (now_ms - error_ms)
            self._error_ms, self._observed_ms = error_ms, now_ms

    def has_brokers_time(self) -> bool:
        """Returns False as long as this machine's clock is used."""
        return self._offset_ms is not None

    def skew_s(self) -> float:
        """Returns this machine's clock minus the brokers', in seconds; 0 before the first observation."""
        return (self._wall_ns() - self.now_ns()) / 1e9

    def now_ns(self) -> int:
        """Returns the nanoseconds since 1970. It may go back by the error of the estimate."""
        return self._wall_ns() if self._offset_ms is None else int((self._clock_ms() + self._offset_ms) * 1_000_000)
