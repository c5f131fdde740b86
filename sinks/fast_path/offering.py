"""To whom a router offers what it reads: to connections of its own process, to those that routes name, or to nobody."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from sinks.fast_path.route_table import RouteTable
from sinks.fast_path.router_memory import RouterMemory
from state.commands import OfferPublish
from state.model import ClientId, Position
from state.records.routes import Route


class MessageRecord(Protocol):
    """A record of `inflight.messages`, as a consumer has it."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int: ...


class Elsewhere(NamedTuple):
    """An offer for another gateway."""

    client_id: ClientId
    offer: OfferPublish
    route: Route


class Offers:
    """Of one poll. dropped: messages for somebody that are not offered, because the gateway is under pressure."""

    __slots__ = ("dropped", "elsewhere", "here")

    def __init__(self) -> None:
        self.here: list[tuple[ClientId, OfferPublish]] = []
        self.elsewhere: list[Elsewhere] = []
        self.dropped = 0


class Offering:
    """connection_of: the newest connection of a client in this process, 0 = none.

    A message that is not offered is remembered all the same: the next offer of its client says that something lies before it.
    """

    def __init__(
        self,
        memory: RouterMemory,
        routes: RouteTable,
        connection_of: Callable[[ClientId], int],
        *,
        max_payload_bytes: int,
    ) -> None:
        self._memory = memory
        self._routes = routes
        self._connection_of = connection_of
        self._max_payload_bytes = max_payload_bytes

    def read(self, partition: int, records: Iterable[MessageRecord], offers: Offers, *, under_pressure: bool) -> None:
        """The next records of a partition; adds to `offers`."""
        previous_of, routes = self._memory.previous, self._routes
        for record in records:
            key = record.key
            if key is None:
                continue
            previous = previous_of(partition, key, record.offset)
            try:
                client_id = key.decode()
            except UnicodeDecodeError:
                continue
            connection_id, route = self._connection_of(client_id), routes.of(key)
            if route is not None and route.connection_id <= connection_id:
                route = None  # it is here, or was elsewhere before
            if not connection_id and route is None:
                continue
            if under_pressure:
                offers.dropped += 1
                continue
            offer = OfferPublish(
                connection_id=connection_id if route is None else route.connection_id,
                position=Position(partition, record.offset),
                previous=previous,
                timestamp_ms=record.timestamp,
                headers=tuple(record.headers),
                payload=record.value or b"",
            )
            if route is None:
                offers.here.append((client_id, offer))
            elif len(offer.payload) <= self._max_payload_bytes:
                offers.elsewhere.append(Elsewhere(client_id, offer, route))
