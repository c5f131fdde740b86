"""Limits how many CONNECTs are handled in a second, and how many the engine has not answered. The others wait their turn.

1. Hosts take turns, so a host with many waiting CONNECTs does not delay the only one of another.
2. A host may have as many waiting as there is room left (a dynamic threshold). One that floods the queue leaves half of it to the
   others, two leave a third.
3. A CONNECT that was announced to the engine counts until the engine answers or `patience_ms` has passed, even if its device has
   gone. So devices that give up and reconnect do not make the engine hear of each attempt.
4. The patience grows with the answers: it is `answer_timeout_ms`, or twice the slowest answer of late, at most five minutes. An
   engine that needs longer than the time-out would otherwise answer nobody: each refused device connects again, and makes the
   next answer later. Answers that come after the patience count here, too.
5. While low-rate devices have to wait (AdaptiveRateLimiter), the rate is a share of itself, at least an eighth.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeAlias

from sinks.mqtt.limits.adaptive_rate import AdaptiveRateLimiter
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.settings import DeviceLimits

_BURSTS_IN_A_SECOND: Final = 10
"""A burst is handled in as many parts, so that connected devices are not kept waiting."""
_LEAST_SHARE: Final = 1 / 8
_PATIENCE_FACTOR: Final = 2
_MAX_PATIENCE_MS: Final = 300_000
_FORGETTING: Final = 0.98
"""Each faster answer leaves this share of the slowest one: after a hundred of them little is left."""


class Turn(Enum):
    NOW = "now"
    LATER = "later"
    NEVER = "the queue is full"


class WaitingConnect(Protocol):
    """A connection that has read its CONNECT."""

    def turn_has_come(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that the queue needs."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle: ...


_Line: TypeAlias = OrderedDict[WaitingConnect, None]


class ConnectQueue:
    """The queue of one gateway.

    Args:
        limiter: None = the rate is never reduced.
    """

    def __init__(
        self, limits: DeviceLimits, loop: Timers, *, answer_timeout_ms: int, limiter: AdaptiveRateLimiter | None = None
    ) -> None:
        self._loop = loop
        self._limiter = limiter
        self._answer_timeout_ms = answer_timeout_ms
        self._lines: OrderedDict[WaitingConnect | str, _Line] = OrderedDict()
        """Waiting connections by host. The first host's turn is next."""
        self._key_of: dict[WaitingConnect, WaitingConnect | str] = {}
        self._unanswered: OrderedDict[int, int] = OrderedDict()
        """Connection id → when it was announced. Those at the front may have stopped counting."""
        self._overdue: OrderedDict[int, int] = OrderedDict()
        """Those that have stopped counting: their answers say how slow the engine is."""
        self._slowest_ms = float(answer_timeout_ms)
        """The slowest recent answer. It begins high, because the first micro-batch of an engine is its slowest."""
        self._timer: asyncio.TimerHandle | None = None
        self.reconfigure(limits)

    def reconfigure(self, limits: DeviceLimits) -> None:
        """Applies other limits from the next CONNECT on. Waiting ones keep their place."""
        self._max_waiting = limits.max_waiting_connects
        self._max_unanswered = limits.max_unanswered_connects
        burst = max(1, limits.max_connect_rate // _BURSTS_IN_A_SECOND)
        self._rate = TokenBucket(limits.max_connect_rate, self._now_ms(), burst=burst)
        self._arm()

    def enter(self, waiting: WaitingConnect, host: str | None) -> Turn:
        """Asks for a turn. After LATER, `turn_has_come` is called unless `leave` comes first.

        Args:
            host: None = it is not limited.
        """
        if not self._key_of and self._may_go(self._now_ms()):
            return Turn.NOW
        key = waiting if host is None else host
        line = self._lines.get(key) or OrderedDict()
        if len(line) >= self._max_waiting - len(self._key_of):
            return Turn.NEVER
        line[waiting] = None
        self._lines[key] = line
        self._key_of[waiting] = key
        if self._timer is None:
            self._arm()
        return Turn.LATER

    def leave(self, waiting: WaitingConnect) -> None:
        """Removes a connection that has ended, if it waits."""
        key = self._key_of.pop(waiting, None)
        if key is not None:
            line = self._lines[key]
            del line[waiting]
            if not line:
                del self._lines[key]

    def announced(self, connection_id: int) -> None:
        """Counts a connection that was announced to the engine."""
        self._unanswered[connection_id] = self._now_ms()

    def answered(self, connection_id: int) -> None:
        """The engine has answered a connection, which stops counting."""
        was_full = len(self._unanswered) >= self._max_unanswered
        announced_ms = self._unanswered.pop(connection_id, None)
        is_counted = announced_ms is not None
        if announced_ms is None:
            announced_ms = self._overdue.pop(connection_id, None)
        if announced_ms is None:
            return
        self._slowest_ms = max(self._slowest_ms * _FORGETTING, self._now_ms() - announced_ms)
        if is_counted and was_full:
            self._arm()

    @property
    def patience_ms(self) -> int:
        """Returns how long the engine may take to answer a CONNECT, by its recent answers."""
        return min(_MAX_PATIENCE_MS, max(self._answer_timeout_ms, round(_PATIENCE_FACTOR * self._slowest_ms)))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        ready_ms = self._rate.ready_ms(self._now_ms(), self._share)
        if len(self._unanswered) >= self._max_unanswered:
            ready_ms = max(ready_ms, next(iter(self._unanswered.values())) + self.patience_ms)
        self._timer = self._loop.call_at((ready_ms + 1) / 1_000, self._call_due)

    def _call_due(self) -> None:
        self._timer = None
        while self._lines and self._may_go(self._now_ms()):
            key, line = self._lines.popitem(last=False)
            waiting, _ = line.popitem(last=False)
            del self._key_of[waiting]
            if line:
                self._lines[key] = line
            waiting.turn_has_come()
        self._arm()

    def _may_go(self, now_ms: int) -> bool:
        unanswered, overdue = self._unanswered, self._overdue
        while unanswered and next(iter(unanswered.values())) + self.patience_ms <= now_ms:
            connection_id, announced_ms = unanswered.popitem(last=False)
            overdue[connection_id] = announced_ms
        while overdue and next(iter(overdue.values())) + _MAX_PATIENCE_MS <= now_ms:
            overdue.popitem(last=False)
        return len(unanswered) < self._max_unanswered and self._rate.admit(now_ms, self._share)

    @property
    def _share(self) -> float:
        return 1.0 if self._limiter is None else max(_LEAST_SHARE, self._limiter.share)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)
