"""The queue of CONNECTs in time: calls those whose turn has come."""

import asyncio
from typing import Protocol

from sinks.mqtt.limits.adaptive_rate import FairShare
from sinks.mqtt.limits.connect_queue import ConnectQueue, Turn
from sinks.mqtt.limits.settings import DeviceLimits


class Waiter(Protocol):
    """A connection that has read its CONNECT."""

    def turn_has_come(self) -> None:
        """Look at it now."""


class ConnectTurns:
    """Of one gateway, in its event loop. answer_timeout_ms, fair: as ConnectQueue."""

    def __init__(self, limits: DeviceLimits, *, answer_timeout_ms: int, fair: FairShare | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: ConnectQueue[Waiter] = ConnectQueue(
            limits, answer_timeout_ms=answer_timeout_ms, now_ms=self._now_ms(), fair=fair
        )
        self._timer: asyncio.TimerHandle | None = None

    def take(self, limits: DeviceLimits) -> None:
        """As ConnectQueue."""
        self._queue.take(limits, self._now_ms())
        self._call_later()

    def ask(self, waiter: Waiter, host: str | None) -> Turn:
        """As ConnectQueue; later: `turn_has_come` is called, unless `leave`."""
        turn = self._queue.ask(waiter, host, self._now_ms())
        if turn is Turn.LATER and self._timer is None:
            self._call_later()
        return turn

    def leave(self, waiter: Waiter) -> None:
        self._queue.leave(waiter)

    def told(self, connection_id: int) -> None:
        """The engine is told of this connection."""
        self._queue.told(connection_id, self._now_ms())

    def answered(self, connection_id: int) -> None:
        """The engine has said something about it."""
        if self._queue.answered(connection_id):
            self._call_later()

    def _call(self) -> None:
        self._timer = None
        while (waiter := self._queue.next(self._now_ms())) is not None:
            waiter.turn_has_come()
        self._call_later()

    def _call_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._queue.next_ms(self._now_ms())
        if next_ms is not None:
            self._timer = self._loop.call_at((next_ms + 1) / 1_000, self._call)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)
