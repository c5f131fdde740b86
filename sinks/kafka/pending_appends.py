"""What was appended to Kafka and is not decided yet, partition by partition. All methods are called on the loop.

An append is decided once: confirmed, refused, or too old. What is appended to a partition is decided in that order, but for the
failures of one producer, which may come in any.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sinks.kafka.record_producer import MAX_GROUP_BYTES, MAX_GROUP_RECORDS, MAX_ONE_BY_ONE


@dataclass(slots=True, eq=False, kw_only=True)
class PendingAppend:
    """One append. deadline_s: on the loop's clock."""

    partition: "Partition"
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]] | None
    done: Callable[[Exception | None], None]
    deadline_s: float

    @property
    def size_bytes(self) -> int:
        """About, in Kafka's log."""
        headers_bytes = sum(len(name) + len(value) for name, value in self.headers or ())
        return len(self.key) + len(self.value) + headers_bytes


@dataclass(slots=True, eq=False, kw_only=True)
class Partition:
    """One partition of one topic. producer: has what was sent. held: to be sent when that is decided, by the next producer if
    there is one by then. is_group: what was sent is one (sinks/kafka/record_producer.py).

    is_suspended: an append was too old, and the producer that may still write it is not gone. Nothing is appended meanwhile: it
    would stand before what is too old, or behind it with nobody knowing that it is in the log.
    """

    topic: str
    number: int
    producer: Any
    is_suspended: bool = False
    is_group: bool = False
    sent: dict[PendingAppend, None] = field(default_factory=dict)
    held: deque[PendingAppend] = field(default_factory=deque)

    @property
    def is_busy(self) -> bool:
        """What is appended now is to be held."""
        return bool(self.held) or len(self.sent) >= MAX_ONE_BY_ONE

    def oldest_deadline_s(self) -> float | None:
        append = next(iter(self.sent), None) or next(iter(self.held), None)
        return None if append is None else append.deadline_s

    def take_group(self) -> list[PendingAppend]:
        """What is to be sent next of what is held, oldest first."""
        records = size_bytes = 0
        for append in islice(self.held, MAX_GROUP_RECORDS):
            size_bytes += append.size_bytes
            if records and size_bytes > MAX_GROUP_BYTES:
                break
            records += 1
        return [self.held.popleft() for _ in range(records)]

    def take_all(self) -> list[PendingAppend]:
        """What is undecided, oldest first; then nothing is."""
        everything = [*self.sent, *self.held]
        self.sent.clear()
        self.held.clear()
        return everything
