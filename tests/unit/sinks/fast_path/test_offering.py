from dataclasses import dataclass
from typing import Any

from sinks.fast_path.offering import FastPathState, OfferRouter, Offers, are_for_few
from sinks.fast_path.route_table import RouteTable
from sinks.fast_path.router_memory import RouterMemory
from state.commands import OfferPublish, SetRoute
from state.errors import UnreadableRecord
from state.model import Position, numbered_partition
from state.records.routes import MessagesTopic, Route, announcements, route_record


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

    def announce(self, topic_id: str, generation: int) -> None:
        (record,) = announcements("routes", 1, MessagesTopic(topic_id=topic_id, generation=generation))
        self.routes.read(2, record.key, record.value)

    def read(self, *records: Record, under_pressure: bool = False, in_burst: bool = False) -> Offers:
        offers = Offers(in_burst=in_burst)
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
    assert (offers.elsewhere, offers.dropped, offers.unknown, offers.is_slow) == ([], 0, 1, False)


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
    too_large = router.read(Record(b"a", 10, b"long"))
    assert (too_large.elsewhere, too_large.is_slow) == ([], True)
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
    router.here["a"].fast_path = FastPathState.CLOSED
    offers = router.read(Record(b"a", 10))
    assert (offers.here, offers.closed, offers.skipped, offers.dropped) == ([], 1, 0, 0)
    router.here["a"].fast_path = FastPathState.OPEN
    ((_, offer),) = router.read(Record(b"a", 11), in_burst=True).here
    assert offer.previous == 10


def test_in_a_burst_nothing_is_offered_that_could_only_be_held() -> None:
    router = Router(a=5, b=6)
    router.here["a"].fast_path = FastPathState.HOLDING
    assert [client_id for client_id, _ in router.read(Record(b"a", 10), Record(b"b", 11)).here] == ["a", "b"]
    offers = router.read(Record(b"a", 12), recipients(13, "a", "b"), in_burst=True)
    assert ([client_id for client_id, _ in offers.here], offers.skipped) == (["b"], 2)
    assert offset_after(router.read(Record(b"a", 14))) == [("a", 13)]


def test_a_later_connection_elsewhere_gets_the_offer() -> None:
    router = Router(a=5)
    router.here["a"].fast_path = FastPathState.CLOSED
    router.route("a", 6)
    assert [found.route.connection_id for found in router.read(Record(b"a", 10)).elsewhere] == [6]


def test_records_without_a_known_client_are_skipped() -> None:
    router = Router(a=5)
    assert router.read(Record(None, 10), Record(b"\xff", 11), Record(b"b", 12)).here == []


def recipients(offset: int, *names: str, value: bytes | None = b"p", entry: bytes | None = b"r") -> Record:
    """A record without a key."""
    headers = [("mqtt-topic", b"t"), *((f"recipient-{name}", entry) for name in names), ("x", None)]
    return Record(None, offset, value, tuple(headers))


def offset_after(offers: Offers) -> list[tuple[str, int]]:
    """Returns by client the message that its offer says to lie before it."""
    return [(client_id, offer.previous) for client_id, offer in offers.here]


class TestRecipients:
    def test_each_recipient_gets_an_offer_with_its_own_header(self) -> None:
        router = Router(a=5, b=6, d=7)
        router.read(Record(b"b", 10))
        record = recipients(11, "a", "b", "c")
        record.headers += (("recipient-d", b"its own"),)
        (first, second, third) = router.read(record).here
        assert first == (
            "a",
            OfferPublish(
                connection_id=5,
                position=Position(2, 11),
                previous=9,
                timestamp_ms=1_000,
                headers=(("mqtt-topic", b"t"), ("x", None)),
                payload=b"p",
                recipient=b"r",
            ),
        )
        assert (second[0], second[1].connection_id, second[1].previous) == ("b", 6, 10)
        assert (third[0], third[1].recipient) == ("d", b"its own")

    def test_a_backend_may_name_recipients_without_a_value(self) -> None:
        router = Router(a=5)
        for offset, entry in ((10, None), (11, b"")):
            ((_, offer),) = router.read(recipients(offset, "a", entry=entry, value=None)).here
            assert (offer.recipient, offer.payload) == (b"", b"")

    def test_a_recipient_elsewhere_gets_its_offer_there(self) -> None:
        router = Router(a=5)
        router.route("b", 6)
        offers = router.read(recipients(10, "a", "b"), recipients(11, "b", value=b"long"))
        assert [(found.client_id, found.offer.recipient, found.route.connection_id) for found in offers.elsewhere] == [
            ("b", b"r", 6)
        ]
        assert offset_after(offers) == [("a", 9)]

    def test_a_recipient_without_an_offer_is_remembered(self) -> None:
        router = Router(a=5, b=6, c=7)
        router.here["a"].fast_path, router.here["b"].fast_path = FastPathState.CLOSED, FastPathState.HOLDING
        offers = router.read(recipients(10, "a", "b", "d"), in_burst=True)
        assert (offers.here, offers.closed, offers.skipped) == ([], 1, 1)
        assert router.read(recipients(11, "c"), under_pressure=True).dropped == 1
        many = tuple((str(number), b"") for number in range(2_048))
        router.read(Record(None, 12, headers=(*many, ("mqtt-topic", b"t"), ("recipient-d", b""))))
        for name, here in (("a", 5), ("b", 6), ("d", 8)):
            router.here[name] = Here(here)
        assert offset_after(router.read(recipients(13, "a", "b", "c", "d"))) == [("a", 10), ("b", 10), ("c", 11), ("d", 12)]

    def test_a_record_with_too_many_recipients_is_before_every_message(self) -> None:
        router = Router(a=5, b=6)
        assert len(router.read(recipients(10, *(str(number) for number in range(499)), "a")).here) == 1
        router.read(Record(b"a", 11))
        assert router.read(recipients(12, *(str(number) for number in range(500)), "a")).here == []
        assert offset_after(router.read(recipients(13, "a", "b"))) == [("a", 12), ("b", 12)]

    def test_unreadable_recipients_are_before_every_message(self) -> None:
        """Spark may find names in them that are not found here."""
        router = Router(a=5)
        assert offset_after(router.read(Record(b"a", 10), WithoutHeaders(None, 11), Record(b"a", 12))) == [("a", 9), ("a", 11)]


def test_messages_of_a_recreated_topic_are_offered_once_the_engine_reads_it() -> None:
    router = Router(a=5)
    router.read(Record(b"a", 10))
    router.announce("new", 1)
    router.routes.topic_id = "old"
    offers = router.read(Record(b"a", 11), Record(b"a", 12))
    assert (offers.here, offers.is_slow) == ([], True)
    router.routes.topic_id = "new"
    ((_, offer),) = router.read(Record(b"a", 13)).here
    assert (offer.position, offer.previous) == (Position(numbered_partition(2, 1), 13), 12)


def test_a_router_forgets_the_messages_of_the_topic_before() -> None:
    router = Router(a=5, b=6)
    router.read(Record(b"a", 10), recipients(11, "b"))
    router.announce("new", 1)
    offers = router.read(Record(b"a", 20), recipients(21, "a", "b"))
    assert [(offer.position.offset, offer.previous) for _, offer in offers.here] == [(20, 19), (21, 20), (21, 19)]
    assert {offer.position.partition for _, offer in offers.here} == {numbered_partition(2, 1)}


def test_records_are_for_few_if_a_sample_names_few_clients() -> None:
    assert are_for_few([Record(b"a", offset) for offset in range(100)])
    assert not are_for_few([Record(b"%d" % offset, offset) for offset in range(100)])
    few, many = (tuple((f"recipient-{number}", b"r") for number in range(count)) for count in (3, 4))
    assert are_for_few([Record(None, offset, headers=(("mqtt-topic", b"t"), *few)) for offset in range(100)])
    assert not are_for_few([Record(None, offset, headers=(("mqtt-topic", b"t"), *many)) for offset in range(100)])
    assert are_for_few([WithoutHeaders(None, offset) for offset in range(100)])
