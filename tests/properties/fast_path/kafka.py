"""Simulates Kafka: the topics in which the order of records matters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sinks.mqtt.connection.append_queue import Append
from state.model import numbered_partition
from state.records.record import Header, position
from tests.properties.fast_path.steps import Shared, Step

PARTITION: Final = 3
_FIRST_OFFSET: Final = 100
_LATEST_MS: Final = 30_000
"""The time that a producer tries. Until then Kafka may append what the gateway has given up (`gateway.append_timeout_ms`)."""


@dataclass(frozen=True)
class Record:
    """A record of `inflight.messages`. partition: with the generation. name: of the message, "" = it is for another client.
    events_before: how many events were in the log before it."""

    partition: int
    offset: int
    name: str
    timestamp_ms: int
    headers: tuple[Header, ...] = ()
    value: bytes = b""
    events_before: int = 0


class Kafka:
    """messages: of the one partition in which the client's are. events: encoded, of all connections. late: events whose append
    has failed for the gateway, and which may still get into the log, each until some time. routes: the connection of each record,
    None = removed. generation: how often `messages` was recreated. lost: its records that nobody had read then.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.messages: list[Record] = []
        self.events: list[bytes] = []
        self.late: list[tuple[int, Append]] = []
        self.routes: list[int | None] = [None]
        self.generation = 0
        self.lost: list[Record] = []

    @property
    def next_offset(self) -> int:
        """Returns the next offset of `messages`."""
        begins_again = not self.messages or self.messages[-1].partition != self.partition
        return _FIRST_OFFSET if begins_again else self.messages[-1].offset + 1

    @property
    def partition(self) -> int:
        """Returns the partition of `messages` with its generation."""
        return numbered_partition(PARTITION, self.generation)

    def recreate_messages(self, read: int) -> None:
        """Somebody deletes the topic and creates it again. read: how many of its records the engine has read."""
        self.lost += self.messages[read:]
        del self.messages[read:]
        self.generation += 1

    def append_message(self, name: str, timestamp_ms: int, headers: Sequence[Header] = (), value: bytes = b"") -> None:
        self.messages.append(
            Record(self.partition, self.next_offset, name, timestamp_ms, tuple(headers), value, len(self.events))
        )

    def append(self, append: Append) -> None:
        self.events.append(append.value)

    def may_come_late(self, *appends: Append) -> None:
        self.late += [(self._shared.now_ms + _LATEST_MS, append) for append in appends]

    def name_of(self, message_id: str) -> str:
        """The name of a message that was read under this id, its own or the one that is made of its position."""
        if message_id.startswith("m") and not message_id.startswith("messages"):
            return message_id
        records = (*self.messages, *self.lost)
        return next(one.name for one in records if message_id.endswith(position("", one.partition, one.offset)))

    def next_steps(self) -> Iterator[Step]:
        self.late = [late for late in self.late if late[0] >= self._shared.now_ms]
        for index in range(min(2, len(self.late))):
            yield Step(2, "a late append lands", lambda index=index: self.append(self.late.pop(index)[1]))
