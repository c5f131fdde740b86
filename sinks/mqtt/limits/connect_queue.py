"""CONNECTs in the order in which they are looked at: so many a second, and so many that the engine has not answered.

1. Hosts take turns, so a host with many waiting CONNECTs does not delay the only one of another.
2. A host may have as many waiting as there is room left (a dynamic threshold): one that floods the queue leaves half of it to
   the others, two leave a third.
3. What the engine was told of counts until the engine answers or `answer_timeout_ms` has passed, whether its device still waits
   or not. So devices that give up and come back do not make the engine hear of each attempt.
4. While devices that are connected wait for the gateway or for Kafka (FairShare), the rate is a share of itself, at least an
   eighth.
"""

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum
from typing import Final, Generic, TypeAlias, TypeVar

from sinks.mqtt.limits.adaptive_rate import FairShare
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.limits.token_bucket import TokenBucket

_BURSTS_IN_A_SECOND: Final = 10
"""What comes at once is looked at in as many parts, so that the devices that are there are not kept waiting."""

_LEAST_SHARE: Final = 1 / 8

W = TypeVar("W")
_Line: TypeAlias = "OrderedDict[W, None]"


class Turn(Enum):
    NOW = "now"
    LATER = "later"
    NEVER = "the queue is full"


class ConnectQueue(Generic[W]):
    """Of one gateway. W: what waits, a connection. fair: see the module; None = nobody waits. Times are milliseconds of one
    monotonic clock."""

    def __init__(self, limits: DeviceLimits, *, answer_timeout_ms: int, now_ms: int, fair: FairShare | None = None) -> None:
        self.take(limits, now_ms)
        self._fair = fair
        self._answer_timeout_ms = answer_timeout_ms
        self._lines: OrderedDict[Hashable, _Line[W]] = OrderedDict()
        """By host; the first one's turn is next."""
        self._key_of: dict[W, Hashable] = {}
        self._unanswered: OrderedDict[int, int] = OrderedDict()
        """Connection id → when it counts no longer."""

    def take(self, limits: DeviceLimits, now_ms: int) -> None:
        """From the next CONNECT on; who waits goes on waiting."""
        self._max_waiting = limits.max_waiting_connects
        self._max_unanswered = limits.max_unanswered_connects
        self._rate = TokenBucket(limits.max_connect_rate, now_ms, burst=max(1, limits.max_connect_rate // _BURSTS_IN_A_SECOND))

    def ask(self, waiter: W, host: str | None, now_ms: int) -> Turn:
        """A CONNECT was read. host: None = one that is like no other. After LATER `next` hands it out, unless `leave`."""
        if not self._key_of and self._may_go(now_ms):
            return Turn.NOW
        key: Hashable = waiter if host is None else host
        line: _Line[W] = self._lines.get(key) or OrderedDict()
        if len(line) >= self._max_waiting - len(self._key_of):
            return Turn.NEVER
        line[waiter] = None
        self._lines[key] = line
        self._key_of[waiter] = key
        return Turn.LATER

    def leave(self, waiter: W) -> None:
        """It is closed, or gives up. Nothing happens if it does not wait."""
        key = self._key_of.pop(waiter, None)
        if key is not None:
            line = self._lines[key]
            del line[waiter]
            if not line:
                del self._lines[key]

    def next(self, now_ms: int) -> W | None:
        """The one whose turn it is. It does not wait any longer."""
        if not self._lines or not self._may_go(now_ms):
            return None
        key, line = self._lines.popitem(last=False)
        waiter, _ = line.popitem(last=False)
        del self._key_of[waiter]
        if line:
            self._lines[key] = line
        return waiter

    def next_ms(self, now_ms: int) -> int | None:
        """When to call `next` again, if nothing is answered before; None = nobody waits."""
        if not self._lines:
            return None
        ready_ms = self._rate.ready_ms(now_ms, self._share)
        if len(self._unanswered) >= self._max_unanswered:
            ready_ms = max(ready_ms, next(iter(self._unanswered.values())))
        return ready_ms

    def told(self, connection_id: int, now_ms: int) -> None:
        """The engine is told of this connection."""
        self._unanswered[connection_id] = now_ms + self._answer_timeout_ms

    def answered(self, connection_id: int) -> bool:
        """The engine has said something about it. False: that made no room."""
        was_full = len(self._unanswered) >= self._max_unanswered
        return self._unanswered.pop(connection_id, None) is not None and was_full

    def _may_go(self, now_ms: int) -> bool:
        unanswered = self._unanswered
        while unanswered and next(iter(unanswered.values())) <= now_ms:
            unanswered.popitem(last=False)
        return len(unanswered) < self._max_unanswered and self._rate.admit(now_ms, self._share)

    @property
    def _share(self) -> float:
        return 1.0 if self._fair is None else max(_LEAST_SHARE, self._fair.share)
