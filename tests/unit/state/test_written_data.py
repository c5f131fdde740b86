"""Reads what every earlier version has written: every record of its topics, every row of its state.

The archives are of tests/integration/up/fixtures/make.py. tests/integration/up/test_continues_written_data.py starts
`inflight up` on them.
"""

import base64
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka.record import MemoryRecords

from state.dead_letters.quarantine import decode_quarantine
from state.events import FastSent, LoggedEvent, MessageSubmitted
from state.records.commands import decode_command_batch
from state.records.dead_letters import parse_death_headers
from state.records.events import WAKE_UP_KEY, decode_events
from state.records.leases import decode_lease
from state.records.ledger import LedgerRow
from state.records.messages import message_event
from state.records.receipts import decode_receipt
from state.records.record import Header
from state.records.routes import decode_route
from state.records.throttle import TOO_MANY_REQUESTS, decode_throttle
from state.records.uplink import CLIENT_ID, INFLIGHT_ID
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import RecordLimits, SessionSettings
from state.transitions import OutboundPhase
from tests.integration.up.fixtures.written import FAST_PATH_IDS, QUEUED, SESSIONS, WRITTEN

NEWEST = WRITTEN[-1]
QUARANTINED_ROW = -1


@dataclass(frozen=True)
class Record:
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...]


@cache
def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        files = ((member.name, opened.extractfile(member)) for member in opened)
        return {name: file.read() for name, file in files if file is not None}


def records(archive: Path, topic: str) -> Iterator[Record]:
    """Reads records from the segments of Kafka's log, without a broker."""
    for name, content in members(archive).items():
        if f"/inflight.{topic}-" not in name or not name.endswith(".log"):
            continue
        log = MemoryRecords(content)
        while (batch := log.next_batch()) is not None:
            for record in () if batch.is_control_batch else batch:
                yield Record(record.key, record.value, tuple(Header(key, value) for key, value in record.headers))


def values(archive: Path, topic: str) -> Iterator[bytes]:
    return (record.value for record in records(archive, topic) if record.value is not None)


def event_of(record: Record) -> LoggedEvent:
    (event,) = decode_events(record.value or b"")
    return event


def message_of(record: Record) -> MessageSubmitted:
    made = message_event(record.headers, record.value, accepted_ms=1, default_message_id="?", limits=RecordLimits())
    assert isinstance(made, MessageSubmitted), made
    return made


def publication_of(record: Record) -> object:
    headers = {header.key: header.value for header in record.headers}
    assert headers[CLIENT_ID] == record.key
    return headers[INFLIGHT_ID]


DECODERS: dict[str, Callable[[Record], object]] = {
    "messages": message_of,
    "commands": lambda record: decode_command_batch(record.value or b"").commands,
    "receipts": lambda record: decode_receipt(record.value or b""),
    "ledger": lambda record: msgspec.json.decode(record.value or b"", type=list[LedgerRow]),
    "uplink": publication_of,
    "dead-letters": lambda record: parse_death_headers(record.headers),
    "leases": lambda record: record.value is None or decode_lease(record.value),
    "routes": lambda record: record.value is None or decode_route(record.value),
}
SINCE = {"leases": 1, "routes": 1, "dead-letters": 1, "uplink": 1}
"""The first archive in which the topic has records."""


@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: str(archive.name))
@pytest.mark.parametrize("topic", DECODERS)
@pytest.mark.promise("older-data")
def test_every_record_of_a_topic_is_read(archive: Path, topic: str) -> None:
    found = list(records(archive, topic))
    assert found or WRITTEN.index(archive) < SINCE.get(topic, 0)
    for record in found:
        assert DECODERS[topic](record)


@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: str(archive.name))
def test_every_event_is_read(archive: Path) -> None:
    found = [event_of(record) for record in records(archive, "events") if record.key != WAKE_UP_KEY]
    assert len({type(event) for event in found}) >= 4
    assert archive != NEWEST or any(isinstance(event, FastSent) for event in found)


def test_who_was_throttled_is_known() -> None:
    found = [decode_throttle(value) for value in values(NEWEST, "throttle")]
    assert [(throttle.code, throttle.since_ms > 0) for throttle in found] == [(TOO_MANY_REQUESTS, True)]
    assert "unreadable" not in found[0].reason


def rows() -> dict[str, dict[str, Any]]:
    """The state rows of the newest archive, by client."""
    return {row["client_id"]: row for row in msgspec.json.decode(members(NEWEST)[SESSIONS])}


def session_of(client_id: str, row: dict[str, Any]) -> Session:
    assert row["version"] > 0
    blob = base64.b64decode(row["blob"])
    session = decode_session(blob, client_id=client_id, settings=SessionSettings())
    written = msgspec.msgpack.decode(blob[1:])
    again = msgspec.msgpack.decode(encode_session(session)[1:])
    assert is_extended(again, written), "what is read is all that was written"
    return session


def is_extended(again: Any, written: Any) -> bool:
    """Returns True if every record holds what it held, perhaps with new fields at its end."""
    if isinstance(written, list) and isinstance(again, list):
        return len(again) >= len(written) and all(map(is_extended, again, written))
    return bool(again == written)


def test_every_session_is_read_with_what_it_was_about() -> None:
    stored = rows()
    held = stored.pop("damaged")
    sessions = {client_id: session_of(client_id, row) for client_id, row in stored.items()}
    assert sorted(sessions) == ["done", "fast", "publisher", "queue", "received", "unanswered", "willing"]

    fast = sessions["fast"].outbound
    assert [(entry.packet_id >= FAST_PATH_IDS, entry.delivery.fast_path) for entry in fast.window] == [(True, True)] * 2
    assert sessions["fast"].connection is not None
    assert sessions["fast"].connection.fast_path is not None
    phases = {name: [entry.phase for entry in sessions[name].outbound.window] for name in ("received", "unanswered")}
    assert phases["received"] == [OutboundPhase.AWAITING_PUBCOMP]
    assert phases["unanswered"] == [OutboundPhase.AWAITING_PUBACK, OutboundPhase.AWAITING_PUBREC]
    assert [delivery.message.payload for delivery in sessions["queue"].outbound.queue] == QUEUED
    assert list(sessions["publisher"].inbound.awaiting_rel.entries) == [7]
    willing = sessions["willing"].connection
    assert willing is not None
    assert willing.will is not None
    assert willing.will.payload == b"bye"

    assert held["version"] == QUARANTINED_ROW
    quarantine = decode_quarantine(base64.b64decode(held["blob"]))
    assert (quarantine.blob, quarantine.row_version) == (b"damaged", 1)
