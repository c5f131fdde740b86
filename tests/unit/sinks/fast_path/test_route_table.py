"""sinks.fast_path.route_table: the table. tests/integration/gateway/test_fast_path.py has the reader."""

from sinks.fast_path.route_table import RouteTable
from state.commands import ClearRoute, SetRoute
from state.records.record import NEWER_MARK
from state.records.routes import MESSAGES_KEY, MessagesTopic, Route, announcements, route_record


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


def test_the_generation_holds_for_the_topic_that_the_engine_reads() -> None:
    table = RouteTable()
    table.follow(1)
    assert table.generation == 0, "an engine of an older version announces none"
    (_, made) = announcements("routes", 2, MessagesTopic(topic_id="b", generation=3))
    assert (made.key, made.partition) == (MESSAGES_KEY, 1)
    table.read(1, made.key, made.value)
    assert table.generation == 3, "brokers without ids"
    for found, generation in (("a", None), ("b", 3)):
        table.topic_id = found
        assert table.generation == generation
    for damaged in (None, b"", b"\x01", b"\x02" + NEWER_MARK):
        table.read(1, MESSAGES_KEY, damaged)
    assert table.generation == 3
    table.read(1, MESSAGES_KEY, announcements("routes", 1, MessagesTopic(topic_id="", generation=4))[0].value)
    assert table.generation == 4
