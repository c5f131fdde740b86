"""sinks.host.ended_connections"""

import pytest

from sinks.host.connection_ids import ConnectionIds, ConnectionKind
from sinks.host.ended_connections import EndedConnections
from sinks.kafka.append import AppendFailed, Confirmation
from state.commands import CloseConnection, SendPubRel
from state.events import ConnectionLost
from state.records.events import decode_events

OURS = ConnectionIds(ConnectionKind.GATEWAY).next()
THEIRS = ConnectionIds(ConnectionKind.BRIDGE).next()


class Told:
    """EndedConnections, and what it has written."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes, Confirmation]] = []
        self.ended = EndedConnections(ConnectionKind.GATEWAY, lambda *record: self.records.append(record))

    def command(self, connection_id: int = OURS, kind: type = SendPubRel) -> bool:
        fields = {"packet_id": 1} if kind is SendPubRel else {"reason_code": 0}
        command = kind(connection_id=connection_id, partition=0, sequence=1, **fields)
        return self.ended.tell_lost_once("d", command, "nobody holds it")


@pytest.fixture
def told() -> Told:
    return Told()


def test_an_unheld_connection_is_reported_once(told: Told) -> None:
    assert [told.command(), told.command()] == [True, False]
    [(key, value, _)] = told.records
    assert key == b"d"
    assert decode_events(value) == (ConnectionLost(connection_id=OURS, reason="nobody holds it"),)


def test_it_is_reported_again_after_a_failed_append(told: Told) -> None:
    told.command()
    told.records[0][2](AppendFailed("late"))
    assert told.command()
    told.records[1][2](None)
    assert not told.command()


def test_a_failed_append_is_repeated_until_it_is_confirmed(told: Told) -> None:
    told.command()
    told.records[0][2](AppendFailed("late"))
    assert not told.ended.all_told
    told.ended.say_again()
    told.ended.say_again()
    assert [record[:2] for record in told.records] == [told.records[0][:2]] * 2
    told.records[1][2](AppendFailed("late"))
    told.ended.say_again()
    told.records[2][2](None)
    told.ended.say_again()
    assert told.ended.all_told
    assert len(told.records) == 3
    assert not told.command()


def test_the_end_that_a_connection_recorded_is_repeated_unchanged(told: Told) -> None:
    told.ended.remember(OURS)
    told.ended.not_told(OURS, b"d", b"the record of a DISCONNECT")
    told.ended.say_again()
    assert told.records[0][:2] == (b"d", b"the record of a DISCONNECT")


def test_connections_of_the_other_kind_are_not_reported(told: Told) -> None:
    assert not told.command(THEIRS)
    assert told.records == []


def test_remembered_and_engine_closed_connections_are_not_reported(told: Told) -> None:
    assert not told.command(kind=CloseConnection)
    told.ended.remember(OURS)
    assert not told.command()
    assert told.records == []


def test_what_is_remembered_is_bounded(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.host.ended_connections._REMEMBERED", 2)
    for connection_id in (OURS, 1 << 20, 2 << 20):
        told.ended.remember(connection_id)
    assert told.command()
    for connection_id in (1, 2, 3):
        told.ended.not_told(connection_id, b"d", b"%d" % connection_id)
    told.records.clear()
    told.ended.say_again()
    assert [value for _, value, _ in told.records] == [b"2", b"3"]
