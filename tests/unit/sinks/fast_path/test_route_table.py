"""sinks.fast_path.route_table: the table. tests/integration/gateway/test_fast_path.py has the reader."""

from sinks.fast_path.route_table import RouteTable
from state.commands import ClearRoute, SetRoute
from state.records.record import NEWER_MARK
from state.records.routes import Route, route_record


def record(client_id: str, command: SetRoute | ClearRoute) -> tuple[bytes, bytes | None]:
    made = route_record("routes", client_id, command)
    return made.key, made.value


def test_the_latest_record_of_a_client_holds() -> None:
    table = RouteTable()
    table.follow(1)
    assert table.of(b"a") is None
    for connection_id in (5, 6):
        table.read(1, *record("a", SetRoute(connection_id=connection_id, partition=3)))
    assert table.of(b"a") == Route(connection_id=6, partition=3)
    table.read(1, *record("a", ClearRoute()))
    assert table.of(b"a") is None


def test_an_undecodable_record_removes_the_route() -> None:
    table = RouteTable()
    table.follow(1)
    table.read(1, *record("a", SetRoute(connection_id=5, partition=3)))
    table.read(1, None, b"?")
    assert table.of(b"a") is not None
    for nobody_s in b"?", b"\x02" + NEWER_MARK:
        table.read(1, *record("a", SetRoute(connection_id=5, partition=3)))
        table.read(1, b"a", nobody_s)
        assert table.of(b"a") is None


def test_routes_of_a_left_partition_are_forgotten() -> None:
    table = RouteTable()
    table.follow(1)
    table.follow(2)
    table.follow(2)
    table.read(2, *record("a", SetRoute(connection_id=5, partition=3)))
    table.leave(1)
    assert table.of(b"a") is not None
    table.leave(2)
    table.leave(2)
    table.read(2, *record("a", SetRoute(connection_id=5, partition=3)))
    assert table.of(b"a") is None
    assert table.partitions == frozenset()
