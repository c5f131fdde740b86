import pytest

from state.commands import ClearRoute, SetRoute
from state.errors import UnreadableRecord
from state.records.record import VERSION_BYTE, SinkRecord
from state.records.routes import Route, decode_route, route_record


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
