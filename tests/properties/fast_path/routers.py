"""A router: it reads the messages of its assignment, and offers them to the connections of the client."""

from collections.abc import Iterator

import msgspec

from sinks.fast_path.router_memory import RouterMemory
from state.commands import OfferPublish
from state.model import Position
from tests.properties.fast_path.gateways import Gateways
from tests.properties.fast_path.kafka import PARTITION, Kafka, Record
from tests.properties.fast_path.steps import CLIENT, Shared, Step


class Router:
    """A gateway's router, with so little memory that it forgets clients. number: 0 for the one that is mostly assigned."""

    def __init__(self, number: int, shared: Shared, kafka: Kafka, gateways: Gateways) -> None:
        self.number = number
        self._shared, self._kafka, self._gateways = shared, kafka, gateways
        self._memory = RouterMemory(clients=2)
        self._reads_next: int | None = None
        """Index in the messages, None = no partition is assigned."""
        self._generation = 0

    def next_steps(self) -> Iterator[Step]:
        if not self.is_assigned:
            yield Step(8 if self.number == 0 else 2, f"router {self.number} is assigned", self.assign)
            return
        if self.has_unread:
            yield Step(40, f"router {self.number} reads", self.read)
        if self._shared.faults_left:
            yield Step(3, f"router {self.number} is revoked", self._revoke)

    @property
    def is_assigned(self) -> bool:
        """A topic that was recreated has no router until it knows the generation: it offers nothing before."""
        return self._reads_next is not None and self._generation == self._kafka.generation

    @property
    def has_unread(self) -> bool:
        """True if there are messages after its position."""
        return self.is_assigned and self._reads_next is not None and self._reads_next < len(self._kafka.messages)

    def newest(self) -> Position | None:
        """Returns a position that no message of the client is above, of those that it has read."""
        offset = self._memory.newest(PARTITION, CLIENT.encode()) if self.is_assigned else None
        return None if offset is None else Position(self._kafka.partition, offset)

    def assign(self) -> None:
        """Assigns the partition; the router reads from its end."""
        self._reads_next, self._generation = len(self._kafka.messages), self._kafka.generation
        self._memory.assigned(PARTITION, self._kafka.next_offset)

    def _revoke(self) -> None:
        self._shared.faults_left -= 1
        self._reads_next = None
        self._memory.revoked(PARTITION)

    def read(self) -> None:
        """Reads the next message, which must exist."""
        assert self._reads_next is not None
        record = self._kafka.messages[self._reads_next]
        self._reads_next += 1
        key = CLIENT if record.name else f"other-{record.offset % 3}"
        previous = self._memory.previous(PARTITION, key.encode(), record.offset)
        if record.name:
            self._offer(record, previous)

    def _offer(self, record: Record, previous: int) -> None:
        offer = OfferPublish(
            connection_id=0,
            position=Position(record.partition, record.offset),
            previous=previous,
            timestamp_ms=record.timestamp_ms,
            headers=tuple((header.key, header.value) for header in record.headers),
            payload=record.value,
        )
        self._gateways.offer_to_left(offer)
        for connection in self._gateways.reached_by(self._kafka.routes[-1]):
            connection.offers.append(msgspec.structs.replace(offer, connection_id=connection.real.connection_id))
