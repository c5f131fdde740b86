"""Limits how many records of one partition are in flight to Kafka at a time, and keeps those that wait.

librdkafka must never have more of a partition to send than it sends at once (sinks/kafka/record_producer.py). So at most
`MAX_ONE_BY_ONE` records are on their way, or one group.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, Protocol, TypeVar

from sinks.kafka.record_producer import MAX_GROUP_BYTES, MAX_GROUP_RECORDS, MAX_ONE_BY_ONE


class Sized(Protocol):
    """A record of about this size in Kafka's log."""

    @property
    def size_bytes(self) -> int: ...


RecordT = TypeVar("RecordT", bound=Sized)


@dataclass(slots=True, eq=False, kw_only=True)
class PartitionQueue(Generic[RecordT]):
    """The records of one partition of one topic.

    Attributes:
        is_group: True if the records in `sent` were sent as a group.
        sent: Records on their way, oldest first.
        held: Records that wait for those in `sent`.
    """

    topic: str
    number: int
    is_group: bool = False
    sent: dict[RecordT, None] = field(default_factory=dict)
    held: deque[RecordT] = field(default_factory=deque)

    @property
    def is_busy(self) -> bool:
        """True when a new record has to be held."""
        return bool(self.held) or len(self.sent) >= MAX_ONE_BY_ONE

    def pop_group(self, max_bytes: int = MAX_GROUP_BYTES) -> list[RecordT]:
        """Takes out of `held` what is to be sent next, oldest first: one record, or as many as have max_bytes."""
        records = size_bytes = 0
        for record in islice(self.held, MAX_GROUP_RECORDS):
            size_bytes += record.size_bytes
            if records and size_bytes > max_bytes:
                break
            records += 1
        return [self.held.popleft() for _ in range(records)]

    def pop_all(self) -> list[RecordT]:
        """Takes everything out, oldest first."""
        everything = [*self.sent, *self.held]
        self.sent.clear()
        self.held.clear()
        return everything
