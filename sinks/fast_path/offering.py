"""Decides whether a router offers a message: to a connection of its own process, to one that a route names, or not at all."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from sinks.fast_path.route_table import RouteTable
from sinks.fast_path.router_memory import RouterMemory
from sinks.kafka.group_consumer import ConsumedRecord
from state.commands import OfferPublish
from state.errors import UnreadableRecord
from state.model import ClientId, Position, numbered_partition
from state.records.record import HEADER_BYTES
from state.records.routes import Route
from state.records.routing import MAX_RECIPIENTS, RECIPIENT_PREFIX
from state.settings import RecordLimits

_PREFIX_LENGTH: Final = len(RECIPIENT_PREFIX)
_SAMPLE: Final = 12
"""Records of a full poll that are inspected."""
_FEW: Final = 3
"""Clients that they name at most if the messages are for few."""
_MOST_HEADERS: Final = RecordLimits().max_headers_bytes // HEADER_BYTES
"""A record with more is no message. An offer of a million headers would hold up all devices of a gateway."""


class FastPathState(Enum):
    """The action of a connection of this process on an offer."""

    OPEN = "open"
    """Accept it, if nothing in the message speaks against it."""
    HOLDING = "holding"
    """Hold it, until the session has handled the messages before it, or the device has acknowledged earlier ones."""
    CLOSED = "closed"
    """Ignore it."""


class LocalConnection(Protocol):
    """Asked on the router's thread. What it says may be over when the offer comes: that costs latency and nothing else."""

    @property
    def connection_id(self) -> int: ...

    @property
    def fast_path(self) -> FastPathState: ...


class Elsewhere(NamedTuple):
    """An offer for another gateway."""

    client_id: ClientId
    offer: OfferPublish
    route: Route


@dataclass(slots=True)
class Offers:
    """The offers of one poll, and how many messages are not offered.

    Attributes:
        dropped: Messages not offered because the gateway is under pressure.
        skipped: Messages not offered because they would be held, and this is a burst.
        closed: Messages not offered because they would be ignored.
        unknown: Messages not offered because there is no connection.
        is_slow: One of the messages may be for a device that is online and does not get it before the next micro-batch.
    """

    in_burst: bool = False
    """There is more to read than a poll returns, and it is for many clients."""
    here: list[tuple[ClientId, OfferPublish]] = field(default_factory=list)
    elsewhere: list[Elsewhere] = field(default_factory=list)
    dropped: int = 0
    skipped: int = 0
    closed: int = 0
    unknown: int = 0
    is_slow: bool = False


def are_for_few(records: Sequence[ConsumedRecord]) -> bool:
    """Returns True if a sample of the records names few clients, so that each of them gets many messages."""
    clients: set[str | bytes] = set()
    for record in records[:: max(1, len(records) // _SAMPLE)]:
        if record.key is not None:
            clients.add(record.key)
            continue
        with contextlib.suppress(UnreadableRecord):
            clients.update(name for name, _ in record.headers if name.startswith(RECIPIENT_PREFIX))
    return len(clients) <= _FEW


class OfferRouter:
    """Decides for each message of a partition whether it is offered, and to which connection.

    A message that is not offered is remembered all the same: the next offer of its client says that something lies before it.

    Args:
        connection_of: Returns the newest connection of a client in this process; None = there is none.
        max_payload_bytes: A larger message is not offered to another gateway.
    """

    def __init__(
        self,
        memory: RouterMemory,
        routes: RouteTable,
        connection_of: Callable[[ClientId], LocalConnection | None],
        *,
        max_payload_bytes: int,
    ) -> None:
        self._memory = memory
        self._routes = routes
        self._connection_of = connection_of
        self._max_payload_bytes = max_payload_bytes
        self._generations: dict[int, int] = {}
        """The generation of the topic whose messages are remembered, by partition."""

    def read(self, partition: int, records: Sequence[ConsumedRecord], offers: Offers, *, under_pressure: bool) -> None:
        """The next records of a partition, at least one; adds to `offers`.

        A recreated topic has other messages at the same offsets. Nothing is offered as long as the engine reads the old topic.
        """
        generation = self._routes.generation
        if generation is None:
            self._memory.assigned(partition, records[-1].offset + 1)
            offers.is_slow = True
            return
        if generation != self._generations.setdefault(partition, generation):
            self._generations[partition] = generation
            self._memory.assigned(partition, records[0].offset)
        numbered = numbered_partition(partition, generation)
        previous_of, destination_of = self._memory.previous, self._destination_of
        for record in records:
            key = record.key
            if key is None:
                self._read_for_recipients(partition, numbered, record, offers, under_pressure)
                continue
            previous = previous_of(partition, key, record.offset)
            try:
                client_id = key.decode()
            except UnicodeDecodeError:
                continue
            destination = destination_of(client_id, key, offers)
            if destination is None:
                continue
            if under_pressure:
                offers.dropped += 1
                continue
            try:
                headers = tuple(record.headers)
            except UnreadableRecord:
                continue  # Spark reads it in its own way
            if len(headers) > _MOST_HEADERS:
                continue
            offer = OfferPublish(
                connection_id=destination if isinstance(destination, int) else destination.connection_id,
                position=Position(numbered, record.offset),
                previous=previous,
                timestamp_ms=record.timestamp,
                headers=headers,
                payload=record.value or b"",
            )
            if isinstance(destination, int):
                offers.here.append((client_id, offer))
            elif len(offer.payload) <= self._max_payload_bytes:
                offers.elsewhere.append(Elsewhere(client_id, offer, destination))
            else:
                offers.is_slow = True

    def _read_for_recipients(
        self, partition: int, numbered: int, record: ConsumedRecord, offers: Offers, under_pressure: bool
    ) -> None:
        """Reads a record without a key, which names its recipients (state/records/routing.py)."""
        recipients: dict[str, bytes] = {}
        others: list[tuple[str, bytes | None]] = []
        try:
            for header in record.headers:
                name, value = header
                if name.startswith(RECIPIENT_PREFIX):
                    recipients[name[_PREFIX_LENGTH:]] = value or b""
                else:
                    others.append(header)
        except UnreadableRecord:
            # Spark may read recipients in it, so it may be a message before the next one of every client.
            self._memory.assigned(partition, record.offset + 1)
            return
        if len(recipients) > MAX_RECIPIENTS:
            self._memory.assigned(partition, record.offset + 1)
            return
        keys = [client_id.encode() for client_id in recipients]
        all_previous = self._memory.previous_of_each(partition, keys, record.offset)
        headers, payload = tuple(others), record.value or b""
        position, timestamp_ms = Position(numbered, record.offset), record.timestamp
        for (client_id, recipient), key, previous in zip(recipients.items(), keys, all_previous, strict=True):
            destination = self._destination_of(client_id, key, offers)
            if destination is None:
                continue
            if under_pressure:
                offers.dropped += 1
                continue
            if len(headers) > _MOST_HEADERS:
                continue
            offer = OfferPublish(
                connection_id=destination if isinstance(destination, int) else destination.connection_id,
                position=position,
                previous=previous,
                timestamp_ms=timestamp_ms,
                headers=headers,
                payload=payload,
                recipient=recipient,
            )
            if isinstance(destination, int):
                offers.here.append((client_id, offer))
            elif len(offer.payload) <= self._max_payload_bytes:
                offers.elsewhere.append(Elsewhere(client_id, offer, destination))
            else:
                offers.is_slow = True

    def _destination_of(self, client_id: ClientId, key: bytes, offers: Offers) -> int | Route | None:
        """Returns the connection to which a message is offered: its id if it is in this process, else its route.

        Returns None for a message that is not offered, and counts it if only its path is the reason.
        """
        here, route = self._connection_of(client_id), self._routes.of(key)
        connection_id = 0 if here is None else here.connection_id
        if route is not None and route.connection_id > connection_id:
            return route
        if here is None:  # a route to a connection of this process that is over
            offers.unknown += 1
            return None
        # In a burst this is most of what is read: to make an offer of it costs more than all the rest of reading it.
        path = here.fast_path
        if path is FastPathState.CLOSED:
            offers.closed += 1
            return None
        if path is FastPathState.HOLDING and offers.in_burst:
            offers.skipped += 1
            return None
        return connection_id
