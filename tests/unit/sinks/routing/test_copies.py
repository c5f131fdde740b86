"""sinks.routing.copies: of records with one `inflight-id` only the first one is routed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sinks.routing import copies
from sinks.routing.copies import MARGIN_MS, CopyFinder, Doubt, doubt_of
from sinks.routing.session_table import SessionTable
from state.errors import UnreadableRecord
from state.records.session_marks import SessionMark

SINCE_MS = 1_700_000_000_000
PARTITION = ("inflight.uplink", 0)
FIRST = [("client-id", b"dev"), ("inflight-id", b"dev:7:1"), ("may-be-copy-since", b"%d" % SINCE_MS), ("connection-id", b"7")]


@dataclass
class Record:
    headers: list[tuple[str, bytes | None]]


class Unreadable:
    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        raise UnreadableRecord("told to fail")


@dataclass
class Log:
    """A partition in which the record at each offset is a second later than the one before."""

    ids: list[bytes]
    reads: list[tuple[int, int]] = field(default_factory=list)

    def offset_at(self, partition: copies.Partition, time_ms: int) -> int | None:
        offset = max(0, -(-(time_ms - SINCE_MS) // 1_000))
        return offset if offset < len(self.ids) else None

    def read(self, partition: copies.Partition, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        assert partition == PARTITION
        self.reads.append((first, end))
        yield from ((offset, self.ids[offset]) for offset in range(first, end))

    def finder(self) -> CopyFinder:
        return CopyFinder(self.offset_at, self.read)


def since(offset: int, inflight_id: bytes = b"x") -> Doubt:
    """Says that no record with this id is before an offset."""
    return Doubt(inflight_id, SINCE_MS + MARGIN_MS + 1_000 * offset)


def sessions(connection_id: int | None) -> SessionTable:
    table = SessionTable()
    if connection_id is not None:
        table.mark(b"dev", SessionMark(connection_id))
    return table


def test_most_publications_are_no_copies() -> None:
    assert doubt_of(Record([("inflight-id", b"dev:7:1")]), sessions(7)) is None
    assert doubt_of(Unreadable(), sessions(7)) is None
    assert doubt_of(Record([("may-be-copy-since", b"soon")]), sessions(7)) is None


@pytest.mark.parametrize(("marked_by", "is_doubtful"), [(7, False), (8, True), (None, True)])
def test_a_first_attempt_is_doubtful_if_its_connection_is_not_the_latest(marked_by: int | None, is_doubtful: bool) -> None:
    doubt = doubt_of(Record([*FIRST]), sessions(marked_by))
    assert doubt == (Doubt(b"dev:7:1", SINCE_MS) if is_doubtful else None)


def test_a_repetition_is_always_doubtful() -> None:
    assert doubt_of(Record([*FIRST[:3]]), sessions(7)) == Doubt(b"dev:7:1", SINCE_MS)


def test_only_the_first_of_records_with_one_id_is_none() -> None:
    log = Log([b"a", b"x", b"b", b"x", b"x"])
    assert [log.finder().is_copy(PARTITION, offset, since(0), 0) for offset in (1, 3, 4)] == [False, True, True]


def test_a_search_begins_before_the_time_that_the_record_tells() -> None:
    log = Log([b"a"] * 40)
    log.finder().is_copy(PARTITION, 30, Doubt(b"x", SINCE_MS + 25_000), 0)
    assert log.reads == [(15, 30)]


def test_what_was_searched_is_not_read_again() -> None:
    log = Log([b"%d" % (offset % 30) for offset in range(60)])
    finder = log.finder()
    assert not finder.is_copy(PARTITION, 20, since(10, b"20"), 0)
    assert not finder.is_copy(PARTITION, 22, since(12, b"22"), 0)
    assert finder.is_copy(PARTITION, 40, since(5, b"10"), 0)
    assert not finder.is_copy(PARTITION, 40, since(11, b"40"), 0)
    assert log.reads == [(10, 20), (20, 22), (5, 10), (22, 40)]
    assert not finder.is_copy(PARTITION, 59, since(55, b"29"), 0), "it is before what the record tells"
    assert finder.is_copy(PARTITION, 59, since(0, b"29"), 0)


def test_a_search_is_forgotten_when_it_is_not_needed_for_a_minute() -> None:
    log = Log([b"a"] * 20)
    finder = log.finder()
    for now_s in (0.0, 60.0, 121.0):
        finder.forget_unused(now_s)
        finder.is_copy(PARTITION, 15, since(5), now_s)
    assert log.reads == [(5, 15), (5, 15)]


def test_a_record_that_nothing_older_precedes_is_not_searched_for() -> None:
    log = Log([b"a"] * 5)
    assert not log.finder().is_copy(PARTITION, 4, since(9), 0)
    assert log.reads == []


def test_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MOST_SEARCHED", 10)
    log = Log([b"a"] * 40)
    log.finder().is_copy(PARTITION, 30, since(0), 0)
    assert log.reads == [(20, 30)]


def test_a_search_forgets_when_it_remembers_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_MOST_REMEMBERED", 2)
    log = Log([b"%d" % offset for offset in range(20)])
    finder = log.finder()
    for offset in (10, 12):
        finder.is_copy(PARTITION, offset, since(5), 0)
    assert log.reads == [(5, 10), (5, 12)]
