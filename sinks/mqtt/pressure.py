"""Decides when a gateway leaves messages to micro-batches: the fast path is for latency, they are for throughput."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from sinks.routing.settings import FastPathSettings

_INTERVAL_S: Final = 0.05
_LASTING_MS: Final = 1_000
"""A loop lag of less than this delays a message by no more. A refusal costs a micro-batch, and the client its fast path until the
session has handled the refusal."""


class Pressure:
    """The pressure on one gateway. Times are milliseconds of one monotonic clock."""

    __slots__ = ("_late_since_ms", "_settings", "_until_ms")

    def __init__(self, settings: FastPathSettings) -> None:
        self._settings = settings
        self._until_ms = -math.inf
        self._late_since_ms = math.inf

    def observe(self, now_ms: float, *, unconfirmed: int = 0, offers: int = 0) -> None:
        """Begins or prolongs the pressure if too many records or offers wait.

        Args:
            unconfirmed: Records that Kafka has not confirmed.
            offers: Offers that the router has made and the gateway has not handled.
        """
        if unconfirmed > self._settings.pressure_unconfirmed or offers > self._settings.pressure_offers:
            self._until_ms = now_ms + self._settings.pressure_hold_ms

    def observe_lag(self, now_ms: float, loop_lag_ms: float) -> None:
        """Begins or prolongs the pressure if the event loop has been late for a second without interruption.

        Args:
            loop_lag_ms: How late the event loop has called this. One call on time starts the second anew.
        """
        if loop_lag_ms <= self._settings.pressure_loop_lag_ms:
            self._late_since_ms = math.inf
            return
        self._late_since_ms = min(self._late_since_ms, now_ms)
        if now_ms - self._late_since_ms >= _LASTING_MS:
            self._until_ms = now_ms + self._settings.pressure_hold_ms

    def is_high(self, now_ms: float) -> bool:
        """Returns True if all offers are to be refused. Safe on any thread."""
        return now_ms < self._until_ms


class LoopLagMonitor:
    """Calls `observe` every 50 ms with the lag of the event loop in milliseconds."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        due_s = self._loop.time() + _INTERVAL_S
        self._timer = self._loop.call_at(due_s, self._measure, due_s)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _measure(self, due_s: float) -> None:
        self._observe((self._loop.time() - due_s) * 1_000)
        self.start()
