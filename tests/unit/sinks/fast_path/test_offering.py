from dataclasses import dataclass
from typing import Any

from sinks.fast_path.offering import FastPathState, OfferRouter, Offers
from sinks.fast_path.route_table import RouteTable
from sinks.fast_path.router_memory import RouterMemory
from state.commands import OfferPublish, SetRoute
from state.errors import UnreadableRecord
from state.model import Position
from state.records.routes import Route, route_record


@dataclass
class Record:
    key: bytes | None
    offset: int
    value: bytes | None = b"p"
    headers: tuple[tuple[str, bytes | None], ...] = (("mqtt-topic", b"t"),)
    timestamp: int = 1_000


@dataclass
class Here:
    connection_id: int
    fast_path: FastPathState = FastPathState.OPEN


class Router:
    """Partition 2, from offset 10. here: connections of this process by client id."""

    def __init__(self, **here: int) -> None:
        self.here = {client_id: Here(connection_id) for client_id, connection_id in here.items()}
        memory, self.routes = RouterMemory(), RouteTable()
        memory.assigned(2, 10)
        self.routes.follow(2)
        self._offering = OfferRouter(memory, self.routes, self.here.get, max_payload_bytes=3)

    def route(self, client_id: str, connection_id: int) -> None:
        record = route_record("routes", client_id, SetRoute(connection_id=connection_id, partition=7))
        self.routes.read(2, record.key, record.value)

    def read(self, *records: Record, under_pressure: bool = False) -> Offers:
        offers = Offers()
        self._offering.read(2, records, offers, under_pressure=under_pressure)
        return offers


def test_an_offer_has_the_record_and_the_previous_offset() -> None:
    router = Router(a=5)
    offers = router.read(Record(b"a", 10), Record(b"b", 11), Record(b"a", 12, None, (("x", None),)))
    assert offers.here == [
        (
            "a",
            OfferPublish(
                connection_id=5,
                position=Position(2, 10),
                previous=9,
                timestamp_ms=1_000,
                headers=(("mqtt-topic", b"t"),),
                payload=b"p",
            ),
        ),
        ("a", OfferPublish(connection_id=5, position=Position(2, 12), previous=10, timestamp_ms=1_000, headers=(("x", None),))),
    ]
    assert (offers.elsewhere, offers.dropped) == ([], 0)


def test_the_later_connection_gets_the_offer_here_or_elsewhere() -> None:
    router = Router(a=5)
    for connection_id, is_here in ((4, True), (5, True), (6, False)):
        router.route("a", connection_id)
        offers = router.read(Record(b"a", 10 + connection_id))
        assert bool(offers.here) is is_here
        assert [(found.client_id, found.route) for found in offers.elsewhere] == (
            [] if is_here else [("a", Route(connection_id=6, partition=7))]
        )
    assert offers.elsewhere[0].offer.connection_id == 6


def test_a_too_large_message_is_not_offered_and_is_remembered() -> None:
    router = Router()
    router.route("a", 6)
    assert router.read(Record(b"a", 10, b"long")).elsewhere == []
    (found,) = router.read(Record(b"a", 11)).elsewhere
    assert found.offer.previous == 10


def test_a_record_with_too_many_headers_is_not_offered_and_is_remembered() -> None:
    router = Router(a=5)
    assert router.read(Record(b"a", 10, headers=(("", b""),) * 2_049)).here == []
    ((_, offer),) = router.read(Record(b"a", 11)).here
    assert offer.previous == 10


def test_under_pressure_nothing_is_offered_and_what_was_not_is_remembered() -> None:
    router = Router(a=5)
    offers = router.read(Record(b"a", 10), Record(b"b", 11), under_pressure=True)
    assert (offers.here, offers.dropped) == ([], 1)
    ((_, offer),) = router.read(Record(b"a", 12)).here
    assert offer.previous == 10


class WithoutHeaders(Record):
    """A record with undecodable headers."""

    def __getattribute__(self, name: str) -> Any:
        if name == "headers":
            raise UnreadableRecord("not UTF-8")
        return super().__getattribute__(name)


def test_what_cannot_be_read_is_not_offered_and_is_remembered() -> None:
    router = Router(a=5)
    ((_, offer),) = router.read(WithoutHeaders(b"a", 10), Record(b"a", 11)).here
    assert (offer.position, offer.previous) == (Position(2, 11), 10)


def test_without_a_fast_path_there_is_no_offer_and_it_is_remembered() -> None:
    router = Router(a=5)
    for path, counts in ((FastPathState.CLOSED, (1, 0)), (FastPathState.BROKEN, (0, 1))):
        router.here["a"].fast_path = path
        offers = router.read(Record(b"a", 10 + counts[1]))
        assert (offers.here, offers.closed, offers.broken, offers.dropped) == ([], *counts, 0)
    router.here["a"].fast_path = FastPathState.OPEN
    ((_, offer),) = router.read(Record(b"a", 12)).here
    assert offer.previous == 11


def test_a_later_connection_elsewhere_gets_the_offer() -> None:
    router = Router(a=5)
    router.here["a"].fast_path = FastPathState.CLOSED
    router.route("a", 6)
    assert [found.route.connection_id for found in router.read(Record(b"a", 10)).elsewhere] == [6]


def test_records_without_a_known_client_are_skipped() -> None:
    router = Router(a=5)
    assert router.read(Record(None, 10), Record(b"\xff", 11), Record(b"b", 12)).here == []
