"""Holds the message queue: messages that wait for a slot in the window or for the client to connect.

A full queue drops the message of the lowest rank. QoS 0 ranks below QoS 1 and 2, then the lower priority below the higher, then
the older message below the newer one. The new message is ranked with those that wait. (EMQX drops the oldest message of the new
one's priority, whatever its QoS. There a QoS 0 message can displace one of QoS 1 or 2.)
"""

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from state.model import Position, QoS
from state.outbound.inflight_window import Delivery
from state.records.scheduling import collapse_key

STARVATION_LIMIT: Final = 8
"""A waiting priority is served after at most this many messages of higher ones."""


class MessageQueue:
    """First in, first out within a priority [MQTT-4.6.0-5] [MQTT-4.6.0-6]. Higher priorities go first, but no waiting priority is
    passed over more than STARVATION_LIMIT times.

    The queue itself admits everything: `make_room` says what has to leave, and the caller records its outcome.

    Attributes:
        max_len: Messages; 0 = no limit of messages or bytes.
        max_bytes: What the messages cost (`Delivery.size_bytes`); 0 = no limit.
        passed_over: How often in a row each waiting priority was passed over.
    """

    __slots__ = (
        "_by_key",
        "_highest",
        "_is_in_log_order",
        "_length",
        "_levels",
        "_qos0",
        "_repeated",
        "max_bytes",
        "max_len",
        "passed_over",
        "size_bytes",
    )

    def __init__(self, *, max_len: int, max_bytes: int) -> None:
        self.max_len = max_len
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.passed_over: dict[int, int] = {}
        self._levels: dict[int, deque[Delivery]] = {}
        self._by_key: dict[bytes, list[Delivery]] = {}
        self._repeated = 0
        self._length = 0
        self._highest: dict[int, int] = {}
        """The highest offset that was appended, by partition."""
        self._is_in_log_order = True
        """Messages of a partition wait in the order of their offsets, unless one has taken the place of another.

        A message that has waited for its client's CONNECT is appended behind later ones, which ends the order.
        """
        self._qos0 = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Delivery]:
        """Iterates from the highest priority, in order within each. The stored session has this order."""
        for priority in sorted(self._levels, reverse=True):
            yield from self._levels[priority]

    def append(self, delivery: Delivery) -> None:
        if (position := delivery.position) is not None:
            highest = self._highest.get(position.partition, -1)
            self._is_in_log_order &= position.offset > highest
            self._highest[position.partition] = max(highest, position.offset)
        self._level(delivery).append(delivery)
        self._update_totals(delivery, 1)

    def put_back(self, delivery: Delivery) -> None:
        """Inserts a message at the place of its `order`: a refused one returns to its old place, and several keep their order."""
        level = self._level(delivery)
        level.insert(next((i for i, waiting in enumerate(level) if waiting.order > delivery.order), len(level)), delivery)
        self._update_totals(delivery, 1)

    @property
    def first(self) -> Delivery | None:
        """Returns the next message. None = nothing waits, or messages of several priorities do."""
        return next(iter(self._levels.values()))[0] if len(self._levels) == 1 else None

    def at(self, position: Position) -> Delivery | None:
        """Returns the message with this position."""
        return next((delivery for delivery in self if delivery.position == position), None)

    def has_unsent_up_to(self, position: Position) -> bool:
        """Returns True if a message of this partition waits, up to this offset, that was never sent.

        Messages with attempts were sent before, and refused by the client.
        """
        partition, offset = position
        for level in self._levels.values():
            for delivery in level:
                waiting = delivery.position
                if waiting is None or waiting.partition != partition:
                    continue
                if waiting.offset <= offset and not delivery.attempts:
                    return True
                if waiting.offset > offset and self._is_in_log_order and not self._by_key:
                    break
        return False

    @property
    def has_keys(self) -> bool:
        """Says that a message with a collapse key waits."""
        return bool(self._by_key)

    @property
    def has_repeated_keys(self) -> bool:
        """Says that several messages with one collapse key wait."""
        return self._repeated > 0

    def repeated_keys(self) -> list[bytes]:
        """Returns the collapse keys with which several messages wait."""
        return [key for key, found in self._by_key.items() if len(found) > 1] if self._repeated else []

    def with_key(self, key: bytes | None) -> list[Delivery]:
        """Returns the messages with this collapse key; none for None."""
        return [] if key is None else list(self._by_key.get(key, ()))

    @property
    def is_overfull(self) -> bool:
        """Says that a limit is exceeded. A single message may be of any size."""
        return self._length > 1 and self._overfull(self._length, self.size_bytes)

    def would_overflow(self, size_bytes: int) -> bool:
        """Returns True if one more message of this size exceeds a limit."""
        return self._overfull(self._length + 1, self.size_bytes + size_bytes)

    def make_room(self, newcomer: Delivery) -> list[Delivery]:
        """Removes the messages that have to leave so that a new one fits.

        If it would not fit even after all lower ranks have left, only the new one has to leave. An empty queue accepts a message
        of any size.

        Args:
            newcomer: Not in the queue yet, and newer than all that are.

        Returns:
            The removed messages, or `newcomer` alone; the lowest rank first.
        """
        length, size_bytes = self._length + 1, self.size_bytes + newcomer.size_bytes
        leaving: list[Delivery] = []
        for delivery in self._ranked_below(newcomer):
            if not self._overfull(length, size_bytes):
                break
            leaving.append(delivery)
            length, size_bytes = length - 1, size_bytes - delivery.size_bytes
        if length > 1 and self._overfull(length, size_bytes):
            return [newcomer]
        return self.remove(leaving)

    def pop(self) -> Delivery:
        """Removes and returns the next message. The queue must not be empty."""
        waiting = sorted(self._levels, reverse=True)
        starved = [priority for priority in waiting if self.passed_over.get(priority, 0) >= STARVATION_LIMIT]
        priority = starved[-1] if starved else waiting[0]  # the lowest one: otherwise it would be passed over again
        self.passed_over.pop(priority, None)
        for lower in waiting:
            if lower < priority:
                self.passed_over[lower] = self.passed_over.get(lower, 0) + 1
        delivery = self._levels[priority].popleft()
        self._after_removal(priority, delivery)
        return delivery

    @property
    def has_qos0(self) -> bool:
        """Says that a QoS 0 message waits."""
        return self._qos0 > 0

    def pop_qos0(self, most: int | None = None) -> list[Delivery]:
        """Removes QoS 0 messages, in order. They need no slot, only a connection.

        Args:
            most: None = all of them.
        """
        if not self._qos0:
            return []
        return self.remove([delivery for delivery in self if delivery.qos == QoS.AT_MOST_ONCE][:most])

    def expired(self, now_ms: int) -> list[Delivery]:
        """Returns all messages that have expired, in order."""
        return [delivery for delivery in self if delivery.expired(now_ms)]

    def trim(self, *, newest_first: bool) -> list[Delivery]:
        """Removes what has to leave so that the limits hold again. A single message may stay whatever its size.

        Args:
            newest_first: Remove the newest first; otherwise the lowest rank.
        """
        leaving: list[Delivery] = []
        length, size_bytes = self._length, self.size_bytes
        candidates = sorted(self, key=lambda delivery: -delivery.order) if newest_first else self._by_rank()
        for delivery in candidates:
            if length <= 1 or not self._overfull(length, size_bytes):
                break
            leaving.append(delivery)
            length, size_bytes = length - 1, size_bytes - delivery.size_bytes
        return self.remove(leaving)

    def next_expiry_ms(self) -> int | None:
        return min((expires_at_ms for d in self if (expires_at_ms := d.expires_at_ms) is not None), default=None)

    def remove(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Removes these messages and returns them."""
        for delivery in deliveries:
            self._remove_one(delivery)
        return deliveries

    def _overfull(self, length: int, size_bytes: int) -> bool:
        return 0 < self.max_len < length or (self.max_len > 0 and 0 < self.max_bytes < size_bytes)

    def _ranked_below(self, newcomer: Delivery) -> Iterator[Delivery]:
        """Yields the messages that leave before the new one does, the lowest rank first."""
        highest = _rank(newcomer)
        return takewhile(lambda delivery: _rank(delivery) <= highest, self._by_rank())

    def _by_rank(self) -> Iterator[Delivery]:
        """Yields the messages from the lowest rank, the older first among equals."""
        for is_promised in (False, True) if self._qos0 else (True,):
            for priority in sorted(self._levels):
                yield from (d for d in self._levels[priority] if (d.qos != QoS.AT_MOST_ONCE) is is_promised)

    def _remove_one(self, delivery: Delivery) -> None:
        level = self._levels[delivery.message.priority]
        index = next(i for i, candidate in enumerate(level) if candidate is delivery)
        del level[index]
        self._after_removal(delivery.message.priority, delivery)

    def _after_removal(self, priority: int, delivery: Delivery) -> None:
        self._update_totals(delivery, -1)
        if not self._levels[priority]:
            del self._levels[priority]
            self.passed_over.pop(priority, None)

    def _level(self, delivery: Delivery) -> deque[Delivery]:
        return self._levels.setdefault(delivery.message.priority, deque())

    def _update_totals(self, delivery: Delivery, sign: int) -> None:
        self._length += sign
        if not self._length:
            self._is_in_log_order = True
            self._highest.clear()
        self.size_bytes += sign * delivery.size_bytes
        if delivery.qos == QoS.AT_MOST_ONCE:
            self._qos0 += sign
        if delivery.message.headers and (key := collapse_key(delivery.message)) is not None:
            self._update_key(key, delivery, sign)

    def _update_key(self, key: bytes, delivery: Delivery, sign: int) -> None:
        found = self._by_key.setdefault(key, [])
        if sign > 0:
            found.append(delivery)
            self._repeated += len(found) == 2
            return
        del found[next(i for i, candidate in enumerate(found) if candidate is delivery)]
        self._repeated -= len(found) == 1
        if not found:
            del self._by_key[key]


def _rank(delivery: Delivery) -> tuple[bool, int]:
    """Returns the rank without the age."""
    return delivery.qos != QoS.AT_MOST_ONCE, delivery.message.priority
