from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.console.presence_events import changes_in
from inflight.presence import PresenceStatus
from state.commands import ClearPresence, SetPresence
from state.records.presence import presence_record
from tests.unit.inflight.console.console_client import ConsoleDriver, FakeHistory


@dataclass(frozen=True)
class Record:
    key: bytes | None
    value: bytes | None
    headers: Any = ()


def record(client_id: str, command: SetPresence | ClearPresence) -> Record:
    made = presence_record("presence", client_id, command)
    return Record(made.key, made.value, [(header.key, header.value) for header in made.headers or ()])


def status(connection_id: int, *, online: bool) -> SetPresence:
    gateway = "g" if online else ""
    return SetPresence(
        online=online, connection_id=connection_id, since_ms=5, gateway=gateway, protocol_version=3, session_expiry_interval_s=60
    )


def test_each_change_is_an_event_and_copies_are_not() -> None:
    gone = ClearPresence(connection_id=7, since_ms=9, reason="expired")
    commands = [status(7, online=True), status(7, online=True), status(7, online=False), gone, gone]
    found = list(changes_in(record("c", command) for command in commands))
    assert [change.status for change in found] == [PresenceStatus.ONLINE, PresenceStatus.OFFLINE, PresenceStatus.GONE]
    assert [change.protocol for change in found] == ["MQTT 3.1", "MQTT 3.1", ""]


def test_only_clients_whose_ids_begin_so_have_events() -> None:
    records = [record(client_id, status(7, online=True)) for client_id in ("pump-1", "lamp-1", "pump-2")]
    assert [change.client_id for change in changes_in(records, "pump")] == ["pump-1", "pump-2"]


def test_an_unreadable_record_is_no_event() -> None:
    records = [Record(b"\xff", b"{}"), Record(b"c", b"{"), Record(b"c", None), record("d", status(7, online=True))]
    assert [change.client_id for change in changes_in(records)][-1] == "d"


def test_an_open_page_reads_events_whenever_it_is_refreshed(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    text = console.get("/presence", client="pump")
    assert console.history.asked == [("presence", "pump")]
    assert 'pump-7</span></a></td><td class="word" data-label="status">offline</td>' in text
    assert '<td class="word" data-label="protocol">MQTT 3.1</td>' in text
    assert "presence: the newest records" in text
