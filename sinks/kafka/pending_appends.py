"""Appends to Kafka that are not decided yet, partition by partition. All methods are called on the loop.

An append is decided once: confirmed, refused, or too old. The appends of a partition are decided in their order. Only the
failures of one producer may come in any order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sinks.kafka.partition_queue import PartitionQueue


class PendingAppend(msgspec.Struct, eq=False):
    """One append.

    Attributes:
        deadline_s: Seconds on the loop's clock.
    """

    partition: "PartitionAppends"
    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    done: Callable[[Exception | None], None]
    deadline_s: float

    @property
    def size_bytes(self) -> int:
        """About, in Kafka's log."""
        headers_bytes = sum(len(name) + len(value) for name, value in self.headers or ())
        return len(self.key) + len(self.value or b"") + headers_bytes


@dataclass(slots=True, eq=False, kw_only=True)
class PartitionAppends(PartitionQueue[PendingAppend]):
    """The appends of one partition.

    Attributes:
        producer: Has what was sent. What is held goes to the next producer if there is one by then.
        is_suspended: True if an append was too old, and the producer that may still write it is not gone. Nothing is appended
            meanwhile: it would stand before what is too old, or behind it with nobody knowing that it is in the log.
        lingering: Appends that wait for the next one of the partition, and are sent with it. They come behind `sent`, and nothing
            is held while there are any.
    """

    producer: Any
    is_suspended: bool = False
    lingering: deque[PendingAppend] = field(default_factory=deque)

    def hold_lingering(self) -> None:
        """Has those that linger wait for those in `sent` instead."""
        self.held.extend(self.lingering)
        self.lingering.clear()

    def oldest_deadline_s(self) -> float | None:
        append = next(iter(self.sent), None) or next(iter(self.held), None)
        return None if append is None else append.deadline_s
