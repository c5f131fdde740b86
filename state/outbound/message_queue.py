"""The message queue: what waits for a slot in the window or for the client to come back."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from state.outbound.inflight_window import Delivery

STARVATION_LIMIT: Final = 8
"""A waiting priority is served at the latest after this many messages of higher ones."""


class MessageQueue:
    """FIFO within a priority [MQTT-4.6.0-5] [MQTT-4.6.0-6]; higher priorities first, but no waiting priority is passed over more
    than STARVATION_LIMIT times.

    max_len and max_bytes (payload bytes): 0 = no limit. The queue itself admits everything: `make_room` takes out what has to
    leave, and the caller accounts for it.
    """

    __slots__ = ("_length", "_levels", "_qos0", "max_bytes", "max_len", "passed_over", "payload_bytes")

    def __init__(self, *, max_len: int, max_bytes: int) -> None:
        self.max_len = max_len
        self.max_bytes = max_bytes
        self.payload_bytes = 0
        self.passed_over: dict[int, int] = {}
        self._levels: dict[int, deque[Delivery]] = {}
        self._length = 0
        self._qos0 = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Delivery]:
        """Highest priority first, FIFO within; the order in which the queue is written to the state."""
        for priority in sorted(self._levels, reverse=True):
            yield from self._levels[priority]

    def append(self, delivery: Delivery) -> None:
        self._level(delivery).append(delivery)
        self._count(delivery, 1)

    def put_back(self, delivery: Delivery) -> None:
        """A message that was refused returns to its old place, so several that come back do not change their order."""
        level = self._level(delivery)
        level.insert(next((i for i, waiting in enumerate(level) if waiting.order > delivery.order), len(level)), delivery)
        self._count(delivery, 1)

    def would_overflow(self, payload_bytes: int) -> bool:
        """Whether one more message of this size exceeds a limit."""
        return (self.max_len > 0 and self._length + 1 > self.max_len) or (
            self.max_bytes > 0 and self.payload_bytes + payload_bytes > self.max_bytes
        )

    def make_room(self, payload_bytes: int) -> list[Delivery]:
        """Remove what has to go so that one more message of this size fits, QoS 0 before the rest, low priority before high,
        oldest first. The last one standing is admitted whatever its size."""
        dropped = []
        while self._length and self.would_overflow(payload_bytes):
            victim = self._victim()
            self._remove(victim)
            dropped.append(victim)
        return dropped

    @property
    def load(self) -> float:
        """How full it is, by the limit that is nearer: 1.0 = nothing more fits. 0 without a limit."""
        return max(
            self._length / self.max_len if self.max_len else 0.0,
            self.payload_bytes / self.max_bytes if self.max_bytes else 0.0,
        )

    def pop(self) -> Delivery:
        """The message whose turn it is. The queue must not be empty."""
        waiting = sorted(self._levels, reverse=True)
        starved = [priority for priority in waiting if self.passed_over.get(priority, 0) >= STARVATION_LIMIT]
        priority = starved[-1] if starved else waiting[0]  # the lowest one: serving it passes over nobody who has waited longer
        self.passed_over.pop(priority, None)
        for lower in waiting:
            if lower < priority:
                self.passed_over[lower] = self.passed_over.get(lower, 0) + 1
        delivery = self._levels[priority].popleft()
        self._after_removal(priority, delivery)
        return delivery

    def take_qos0(self) -> list[Delivery]:
        """Remove all QoS 0 messages, in order: they need no slot, only a connection."""
        if not self._qos0:
            return []
        return self._take([delivery for delivery in self if delivery.message.qos == 0])

    def take_expired(self, now_ms: int) -> list[Delivery]:
        """Remove all messages whose time is over, in order."""
        return self._take([delivery for delivery in self if delivery.expired(now_ms)])

    def take_all(self) -> list[Delivery]:
        return self._take(list(self))

    def next_expiry_ms(self) -> int | None:
        return min((expires_at_ms for d in self if (expires_at_ms := d.expires_at_ms) is not None), default=None)

    def _take(self, deliveries: list[Delivery]) -> list[Delivery]:
        for delivery in deliveries:
            self._remove(delivery)
        return deliveries

    def _victim(self) -> Delivery:
        lowest_first = (delivery for priority in sorted(self._levels) for delivery in self._levels[priority])
        return next(delivery for delivery in lowest_first if not self._qos0 or delivery.message.qos == 0)

    def _remove(self, delivery: Delivery) -> None:
        level = self._levels[delivery.message.priority]
        index = next(i for i, candidate in enumerate(level) if candidate is delivery)
        del level[index]
        self._after_removal(delivery.message.priority, delivery)

    def _after_removal(self, priority: int, delivery: Delivery) -> None:
        self._count(delivery, -1)
        if not self._levels[priority]:
            del self._levels[priority]
            self.passed_over.pop(priority, None)

    def _level(self, delivery: Delivery) -> deque[Delivery]:
        return self._levels.setdefault(delivery.message.priority, deque())

    def _count(self, delivery: Delivery, sign: int) -> None:
        self._length += sign
        self.payload_bytes += sign * len(delivery.message.payload)
        if delivery.message.qos == 0:
            self._qos0 += sign
