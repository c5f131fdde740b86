import pytest

from state.commands import ClearRoute, SetRoute
from state.errors import UnreadableRecord
from state.records.record import VERSION_BYTE, SinkRecord
from state.records.routes import (
    MESSAGES_KEY,
    MessagesTopic,
    Route,
    announcements,
    decode_announcement,
    decode_route,
    route_record,
)


def test_a_route_says_where_the_connection_of_a_client_is() -> None:
    record = route_record("routes", "ü", SetRoute(connection_id=2**40, partition=7))
    assert (record.topic, record.key, record.headers, record.partition) == ("routes", "ü".encode(), None, None)
    assert decode_route(record.value or b"") == Route(connection_id=2**40, partition=7)


def test_a_route_that_is_over_is_a_null_record() -> None:
    assert route_record("routes", "c", ClearRoute()) == SinkRecord("routes", b"c", None)


@pytest.mark.parametrize(
    "data", [b"", b"\x02", VERSION_BYTE + b"\xc1", VERSION_BYTE + b"\x91\x01", VERSION_BYTE + b"\x92\xa0\xa0"]
)
def test_what_is_no_route_is_an_unreadable_record(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_route(data)


def test_the_messages_topic_is_announced_to_every_partition() -> None:
    announced = MessagesTopic(topic_id="5b0f0d3e-1c5e-4c43-9c5d-9d3b0a1c2d3e", generation=2)
    records = announcements("routes", 3, announced)
    assert [(record.topic, record.key, record.partition) for record in records] == [
        ("routes", MESSAGES_KEY, number) for number in range(3)
    ]
    assert {decode_announcement(record.value or b"") for record in records} == {announced}
    with pytest.raises(UnreadableRecord):
        decode_route(records[0].value or b"")


@pytest.mark.parametrize("data", [b"", b"\x02", VERSION_BYTE + b"\xc1", VERSION_BYTE + b"\x92\x01\x01"])
def test_what_is_no_announcement_is_an_unreadable_record(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_announcement(data)
