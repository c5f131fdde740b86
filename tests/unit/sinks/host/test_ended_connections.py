import pytest

from sinks.host.connection_ids import ConnectionIds, ConnectionKind
from sinks.host.ended_connections import EndedConnections
from sinks.kafka.append import AppendFailed, Confirmation
from state.commands import CloseConnection, SendPubRel
from state.events import ConnectionLost
from state.records.events import decode_events

OURS = ConnectionIds(ConnectionKind.GATEWAY).next()
THEIRS = ConnectionIds(ConnectionKind.BRIDGE).next()


class Reports:
    """EndedConnections, and what it has written."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes, Confirmation]] = []
        self.ended = EndedConnections(ConnectionKind.GATEWAY, lambda *record: self.records.append(record))

    def command(self, connection_id: int = OURS, kind: type = SendPubRel) -> bool:
        fields = {"packet_id": 1} if kind is SendPubRel else {"reason_code": 0}
        command = kind(connection_id=connection_id, partition=0, sequence=1, **fields)
        return self.ended.tell_lost_once("d", command, "nobody holds it")


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_an_unheld_connection_is_reported_once(reports: Reports) -> None:
    assert [reports.command(), reports.command()] == [True, False]
    [(key, value, _)] = reports.records
    assert key == b"d"
    assert decode_events(value) == (ConnectionLost(connection_id=OURS, reason="nobody holds it"),)


def test_it_is_reported_again_after_a_failed_append(reports: Reports) -> None:
    reports.command()
    reports.records[0][2](AppendFailed("late"))
    assert reports.command()
    reports.records[1][2](None)
    assert not reports.command()


def test_a_failed_append_is_repeated_until_it_is_confirmed(reports: Reports) -> None:
    reports.command()
    reports.records[0][2](AppendFailed("late"))
    assert not reports.ended.all_told
    reports.ended.say_again()
    reports.ended.say_again()
    assert [record[:2] for record in reports.records] == [reports.records[0][:2]] * 2
    reports.records[1][2](AppendFailed("late"))
    reports.ended.say_again()
    reports.records[2][2](None)
    reports.ended.say_again()
    assert reports.ended.all_told
    assert len(reports.records) == 3
    assert not reports.command()


def test_the_end_that_a_connection_recorded_is_repeated_unchanged(reports: Reports) -> None:
    reports.ended.remember(OURS)
    reports.ended.not_told(OURS, b"d", b"the record of a DISCONNECT")
    reports.ended.say_again()
    assert reports.records[0][:2] == (b"d", b"the record of a DISCONNECT")


def test_connections_of_the_other_kind_are_not_reported(reports: Reports) -> None:
    assert not reports.command(THEIRS)
    assert reports.records == []


def test_remembered_and_engine_closed_connections_are_not_reported(reports: Reports) -> None:
    assert not reports.command(kind=CloseConnection)
    reports.ended.remember(OURS)
    assert not reports.command()
    assert reports.records == []


def test_what_is_remembered_is_bounded(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.host.ended_connections._REMEMBERED", 2)
    for connection_id in (OURS, 1 << 20, 2 << 20):
        reports.ended.remember(connection_id)
    assert reports.command()
    for connection_id in (1, 2, 3):
        reports.ended.not_told(connection_id, b"d", b"%d" % connection_id)
    reports.records.clear()
    reports.ended.say_again()
    assert [value for _, value, _ in reports.records] == [b"2", b"3"]
