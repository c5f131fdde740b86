"""What was appended to Kafka and is not decided yet, partition by partition. All methods are called on the loop.

An append is decided once: confirmed, refused, or too old. What is appended to a partition is decided in that order, but for the
failures of one producer, which may come in any.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

_AT_ONCE: Final = 5
"""An idempotent producer of librdkafka has so many records of a partition on their way. With one more to send, it does not sleep
until it may: it takes a whole processor, which the broker that it waits for may need."""


@dataclass(slots=True, eq=False, kw_only=True)
class Undecided:
    """One append. deadline_s: on the loop's clock."""

    partition: "Partition"
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]] | None
    done: Callable[[Exception | None], None]
    deadline_s: float


@dataclass(slots=True, eq=False, kw_only=True)
class Partition:
    """One partition of one topic. producer: has what was sent. held: to be sent when that is decided, by the next producer if
    there is one by then.

    is_suspended: an append was too old, and the producer that may still write it is not gone. Nothing is appended meanwhile: it
    would stand before what is too old, or behind it with nobody knowing that it is in the log.
    """

    topic: str
    number: int
    producer: Any
    is_suspended: bool = False
    sent: dict[Undecided, None] = field(default_factory=dict)
    held: deque[Undecided] = field(default_factory=deque)

    @property
    def is_busy(self) -> bool:
        """What is appended now is to be held."""
        return bool(self.held) or len(self.sent) >= _AT_ONCE

    def oldest_deadline_s(self) -> float | None:
        append = next(iter(self.sent), None) or next(iter(self.held), None)
        return None if append is None else append.deadline_s

    def take_all(self) -> list[Undecided]:
        """What is undecided, oldest first; then nothing is."""
        everything = [*self.sent, *self.held]
        self.sent.clear()
        self.held.clear()
        return everything
