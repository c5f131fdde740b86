"""When a gateway leaves messages to the micro-batches: the fast path is for latency, and they are for throughput."""

import math

from sinks.fast_path.settings import FastPathSettings


class Pressure:
    """Times are milliseconds of one monotonic clock."""

    __slots__ = ("_settings", "_until_ms")

    def __init__(self, settings: FastPathSettings) -> None:
        self._settings = settings
        self._until_ms = -math.inf

    def observe(self, now_ms: float, *, loop_lag_ms: float = 0.0, unconfirmed: int = 0, offers: int = 0) -> None:
        """loop_lag_ms: how late the event loop has called what was due. unconfirmed: records that Kafka has not confirmed.
        offers: made by the router, and not looked at."""
        settings = self._settings
        if (
            loop_lag_ms > settings.pressure_loop_lag_ms
            or unconfirmed > settings.pressure_unconfirmed
            or offers > settings.pressure_offers
        ):
            self._until_ms = now_ms + settings.pressure_hold_ms

    def is_high(self, now_ms: float) -> bool:
        """Whether all offers are to be refused. On any thread."""
        return now_ms < self._until_ms
