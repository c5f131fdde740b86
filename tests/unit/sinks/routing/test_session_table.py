import pytest

from sinks.routing.routing_tables import RoutingTables
from sinks.routing.session_table import SessionTable
from state.commands import EndSessionMark, MarkSession
from state.records.session_marks import (
    ALL_MARKED,
    FOREVER_MS,
    SessionMark,
    encode_mark,
    kept_header,
    left_headers,
    mark_key,
    mark_record,
)


def read(tables: RoutingTables, command: MarkSession | EndSessionMark) -> None:
    record = mark_record("subscriptions", "ü", command)
    tables.read_list(record.key, record.value, [(header.key, header.value) for header in record.headers or ()])


def test_a_mark_lasts_until_the_end_of_its_connection_or_a_later_one() -> None:
    table = SessionTable()
    table.mark(b"c", SessionMark(5))
    table.mark(b"c", SessionMark(4))
    table.end(b"c", 4)
    assert (table.get(b"c"), table.get(b"d"), len(table)) == (SessionMark(5), None, 1)
    table.end(b"c", 5)
    table.end(b"c", 5)
    assert (table.get(b"c"), len(table)) == (None, 0)


def test_a_mark_says_until_when_the_session_surely_lives() -> None:
    table = SessionTable()
    table.mark(b"c", SessionMark(5, FOREVER_MS))
    table.mark(b"c", SessionMark(5))
    assert table.get(b"c") == SessionMark(5, FOREVER_MS), "the session's own mark does not know better"
    for left in (SessionMark(5, 9_000, 0), SessionMark(5, 9_000, 2**32 - 2), SessionMark(5, 9_000, 4)):
        table.mark(b"c", left)
        assert table.get(b"c") == left, "its connection has ended"
    table.mark(b"c", SessionMark(5))
    assert table.get(b"c") == SessionMark(5, 9_000, 4)
    table.mark(b"c", SessionMark(6))
    assert table.get(b"c") == SessionMark(6)
    table.mark(b"c", SessionMark(5, FOREVER_MS))
    assert table.get(b"c") == SessionMark(6)


def test_a_mark_says_whether_a_will_may_come() -> None:
    table = SessionTable()
    for mark in (SessionMark(5, FOREVER_MS, None, True), SessionMark(5, 9_000, 2**32 - 2), SessionMark(6, 1, 0, True)):
        table.mark(b"c", mark)
        assert table.get(b"c") == mark
    table.mark(b"c", SessionMark(7))
    assert table.get(b"c") == SessionMark(7), "what a later session does not say is not known"


@pytest.mark.parametrize(("headers", "left_s"), [([kept_header(59)], None), (left_headers(59), 59)])
def test_the_tables_read_until_when_a_session_lives(headers: list[tuple[str, bytes]], left_s: int | None) -> None:
    tables = RoutingTables()
    tables.read_list(mark_key("c"), encode_mark(7), [*headers], 5_000)
    assert tables.sessions.get(b"c") == SessionMark(7, 64_000, left_s)


def test_the_tables_read_marks_beside_lists() -> None:
    tables = RoutingTables()
    read(tables, MarkSession(connection_id=5))
    assert tables.sessions.get("ü".encode()) == SessionMark(5)
    read(tables, EndSessionMark(connection_id=4))
    assert tables.sessions.get("ü".encode()) == SessionMark(5)
    read(tables, EndSessionMark(connection_id=5))
    assert tables.sessions.get("ü".encode()) is None
    assert (len(tables.subscriptions), tables.unreadable) == (0, 0)
    tables.read_list(mark_record("s", "c", MarkSession(connection_id=1)).key, b"?", [])
    assert tables.unreadable == 1


def test_all_sessions_are_known_once_the_log_says_so() -> None:
    tables = RoutingTables()
    assert not tables.marks_all_sessions
    tables.read_list(ALL_MARKED, encode_mark(0), [])
    assert tables.marks_all_sessions
    tables.read_list(ALL_MARKED, None, [])
    assert not tables.marks_all_sessions
    tables.read_list(ALL_MARKED, encode_mark(0), [])
    tables.clear()
    assert not tables.marks_all_sessions
