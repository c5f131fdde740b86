from typing import Any

import pytest

from inflight.presence import ClientPresence, PresenceStatus
from inflight.presence.table import PresenceTable
from state.commands import ClearPresence, SetPresence
from state.records.presence import presence_record


def apply(table: PresenceTable, command: SetPresence | ClearPresence, client_id: str = "c") -> ClientPresence | None:
    record = presence_record("presence", client_id, command)
    return table.apply(record.key, record.value, [(header.key, header.value) for header in record.headers or ()])


def status(connection_id: int, *, online: bool, **fields: Any) -> SetPresence:
    fields = {"since_ms": 5, "gateway": "g" if online else "", "protocol_version": 5, "session_expiry_interval_s": 60, **fields}
    return SetPresence(online=online, connection_id=connection_id, **fields)


def gone(connection_id: int) -> ClearPresence:
    return ClearPresence(connection_id=connection_id, since_ms=9, reason="expired")


@pytest.mark.promise("presence")
def test_a_client_is_online_then_offline_then_gone() -> None:
    table = PresenceTable()
    online = apply(table, status(7, online=True))
    assert online is not None
    assert online.is_online
    assert (online.gateway, online.connection_id, online.expires_ms) == ("g", "7", None)
    offline = apply(table, status(7, online=False, reason="keep alive"))
    assert offline is table.clients["c"]
    assert (offline.status, offline.reason, offline.expires_ms) == (PresenceStatus.OFFLINE, "keep alive", 60_005)
    assert apply(table, gone(7)) == ClientPresence(
        client_id="c", status=PresenceStatus.GONE, since_ms=9, connection_id="7", reason="expired"
    )
    assert table.clients == {}


def test_a_copy_of_a_record_is_no_change() -> None:
    table = PresenceTable()
    for command in (status(7, online=True), status(7, online=False), gone(7)):
        assert apply(table, command) is not None
        assert apply(table, command) is None


def test_a_lower_record_behind_a_higher_one_changes_nothing() -> None:
    table = PresenceTable()
    apply(table, status(8, online=False))
    assert [apply(table, late) for late in (status(7, online=True), status(8, online=True), gone(7))] == [None] * 3
    assert table.clients["c"].status is PresenceStatus.OFFLINE
    assert apply(table, status(9, online=True)) is not None


def test_a_record_about_an_unknown_connection_counts() -> None:
    table = PresenceTable()
    apply(table, status(8, online=True))
    assert apply(table, status(0, online=False, reason="quarantined")) is not None
    assert apply(table, status(9, online=True)) is not None
    assert apply(table, gone(0)) is not None


@pytest.mark.parametrize(("key", "value"), [(b"\xff", b"{}"), (b"c", b"?"), (b"c", b"")])
def test_what_cannot_be_read_is_counted_and_changes_nothing(key: bytes, value: bytes) -> None:
    table = PresenceTable()
    apply(table, status(7, online=True))
    assert table.apply(key, value, []) is None
    assert table.unreadable == 1
    assert table.clients["c"].is_online
