"""Attempts of sends: when one starts, ends and is due, and how long a throttled one waits."""

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Attempt, Cause, too_many_requests
from inflight.producer.send_loop.send import Send, State
from inflight.producer.settings import ProducerSettings
from state.outbound.retry import backoff_wait_ms

_TIMERS_KEPT: Final = 4_096


class Attempts:
    """epoch_offset_ms: Unix time minus the clock that `now_ms` is read from."""

    def __init__(self, settings: ProducerSettings, metrics: ProducerMetrics, epoch_offset_ms: float) -> None:
        self._settings = settings
        self._metrics = metrics
        self._epoch_offset_ms = epoch_offset_ms
        self._numbers = itertools.count()
        self._live = 0
        self._timers: list[tuple[float, int, int, Send]] = []

    def submitted(self, send: Send) -> None:
        self._live += 1
        self._wake_at(send.deadline_ms, send)

    def decided(self) -> None:
        self._live -= 1

    def start(self, send: Send, now_ms: float) -> None:
        send.started_ms = now_ms
        self._wake_at(now_ms + self._settings.attempt_timeout_ms, send)

    def is_over(self, send: Send, now_ms: float) -> bool:
        """Whether the attempt that runs has had its time."""
        return now_ms >= send.started_ms + self._settings.attempt_timeout_ms

    def failed(self, send: Send, cause: Cause, error: str, now_ms: float) -> bool:
        """The attempt that runs has failed. True: the next one runs from now; False: that was the last."""
        self.end(send, now_ms, cause, error)
        if len(send.attempts) >= self._settings.max_attempts:
            return False
        self._metrics.retried(send.attempts[-1])
        self.start(send, now_ms)
        return True

    def throttled(self, send: Send, reason: str, now_ms: float) -> bool:
        """The client may not be sent to. True: the send is due again after a wait; False: that was the last attempt."""
        send.started_ms = now_ms
        send.throttled += 1
        last = len(send.attempts) + 1 >= self._settings.max_attempts
        key = f"{send.client_id}:{send.message.message_id}:{send.throttled}"
        wait_ms = 0 if last else backoff_wait_ms(send.throttled, self._settings.backoff, jitter_key=key)
        self.end(send, now_ms, Cause.THROTTLED, too_many_requests(reason), wait_ms=wait_ms)
        if last:
            return False
        self._metrics.retried(send.attempts[-1])
        send.state = State.BACKOFF
        self._wake_at(now_ms + wait_ms, send)
        return True

    def end(self, send: Send, now_ms: float, cause: Cause | None, error: str | None, *, wait_ms: int = 0) -> None:
        """Record how the attempt that runs has ended. While a send waits none runs, and nothing is recorded."""
        if send.state in (State.BACKOFF, State.TURN) and cause is not Cause.THROTTLED:
            return
        started_ms = round(send.started_ms + self._epoch_offset_ms)
        send.attempts.append(Attempt(started_ms, round(now_ms - send.started_ms), cause, error, wait_ms))

    def next_due_ms(self) -> float | None:
        while self._timers and self._timers[0][3].state is State.DONE:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def due(self, now_ms: float) -> Iterator[Send]:
        """Sends whose deadline, attempt or wait is over. More may become due while these are handled."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, _, attempts, send = heapq.heappop(self._timers)
            if send.state is not State.DONE and (now_ms >= send.deadline_ms or attempts == len(send.attempts)):
                yield send

    def _wake_at(self, at_ms: float, send: Send) -> None:
        # The number of attempts says whether the timer still means the attempt that it was set for.
        heapq.heappush(self._timers, (at_ms, next(self._numbers), len(send.attempts), send))
        if len(self._timers) > 4 * self._live + _TIMERS_KEPT:
            # Nearly all sends are confirmed long before their timers: without this, a minute of messages would stay in memory.
            self._timers = [timer for timer in self._timers if timer[3].state is not State.DONE]
            heapq.heapify(self._timers)
