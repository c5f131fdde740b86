import base64
from types import SimpleNamespace
from typing import Any

import pytest

from state.dead_letters.quarantine import Quarantine, encode_quarantine
from state.records.ledger import LedgerRow, encode_ledger_rows
from state.session import Session
from state.session_codec import encode_session
from state.settings import SessionSettings
from streaming.engine.operator.state_row import QUARANTINED_ROW_VERSION, STATE_ROW_VERSION
from streaming.history.clients import StoredClient, stored_in
from streaming.history.recent import steps_of
from tests.scenarios.scenario import Scenario

MOST = 2


def stored(blob: bytes, *, version: int = STATE_ROW_VERSION) -> StoredClient:
    row: dict[str, Any] = {"client_id": "c1", "quarantined": version == QUARANTINED_ROW_VERSION}
    return stored_in({**row, "version": version, "blob": base64.b64encode(blob).decode()}, SessionSettings(), most=MOST)


def busy_session() -> Session:
    s = Scenario(max_inflight=2).connect(version=5)
    s.subscribe("x/#", 2).subscribe("y/#", 1).subscribe("z", 0)
    s.submit("first", qos=2).submit("second", qos=2).pubrec(1)
    for number in range(4):
        s.submit(f"waits {number}", priority=number)
    return s.session


def test_a_session_is_shown_with_its_window_and_the_beginning_of_its_queue() -> None:
    found = stored(encode_session(busy_session()))
    assert found.summary == {"client_id": "c1", "quarantined": False}
    session = found.session
    assert session is not None
    assert [(held.message_id, held.packet_id, held.phase) for held in session.window] == [
        ("first", 1, "AWAITING_PUBCOMP"),
        ("second", 2, "AWAITING_PUBREC"),
    ]
    assert [(held.message_id, held.packet_id, held.priority) for held in session.queue] == [
        ("waits 3", None, 3),
        ("waits 2", None, 2),
    ]
    assert session.subscription_count == 3
    assert [subscription.topic_filter for subscription in session.subscriptions] == ["x/#", "y/#"]
    assert session.protocol_version == 5


def test_messages_for_later_are_shown_with_their_times() -> None:
    s = Scenario()
    for number in range(4):
        s.submit(f"later {number}", headers=(("deliver-at", b"%d" % (s.now_ms + 9_000 - number)),))
    session = stored(encode_session(s.session)).session
    assert session is not None
    assert session.scheduled_count == 4
    assert [(held.message_id, held.deliver_at_ms) for held in session.scheduled] == [
        ("later 3", s.now_ms + 8_997),
        ("later 2", s.now_ms + 8_998),
    ]


def test_an_unreadable_session_is_shown_with_the_reason() -> None:
    assert "damaged" in stored(b"\x01broken").why_not
    assert "version 99" in stored(encode_session(busy_session()), version=99).why_not
    held = Quarantine(row_version=1, blob=b"x", since_ms=1, error="a bug of ours")
    quarantined = stored(encode_quarantine(held), version=QUARANTINED_ROW_VERSION)
    assert (quarantined.session, quarantined.why_not) == (None, "the client is quarantined: a bug of ours")
    assert stored(b"", version=QUARANTINED_ROW_VERSION).session is None


def test_the_steps_of_a_client_are_its_own_and_each_is_there_once() -> None:
    def record(key: str, message_id: str, offset: int) -> Any:
        rows = [LedgerRow(client_id=key, batch_ms=1, transition="sent", time_ms=1, message_id=message_id, detail="d")]
        return SimpleNamespace(
            topic="l", partition=0, offset=offset, timestamp=1, key=key.encode(), value=encode_ledger_rows(rows), headers=[]
        )

    records = [record("c1", "a", 0), record("c2", "b", 1), record("c1", "a", 2), record("c1", "c", 3)]
    found = list(steps_of(records, "c1"))
    assert [(step.message_id, step.step.step, step.step.client_id) for step in found] == [
        ("a", "sent", "c1"),
        ("c", "sent", "c1"),
    ]
    unreadable = SimpleNamespace(topic="l", partition=0, offset=4, timestamp=1, key=b"c1", value=b"no ledger", headers=[])
    assert list(steps_of([unreadable], "c1")) == []


@pytest.mark.parametrize("value", [None, b""])
def test_a_session_without_a_blob_cannot_be_read(value: bytes | None) -> None:
    row = {"client_id": "c1", "quarantined": False, "version": STATE_ROW_VERSION, "blob": value and value.decode()}
    assert stored_in(row, SessionSettings(), most=MOST).session is None


STANDS_STILL_S = 35


def away() -> Scenario:
    return Scenario(max_inflight=1).submit("a")


def progressing() -> Scenario:
    return Scenario(max_inflight=1, max_backlog_bytes=64 << 20).connect().submit("a", "b")


@pytest.mark.parametrize(
    ("scenario", "settings", "limit"),
    [
        (away(), SessionSettings(), "1000 messages or 1MiB (max_mqueue_len, max_mqueue_bytes), because it is away"),
        (away(), SessionSettings(max_mqueue_bytes=0), "1000 messages (max_mqueue_len, max_mqueue_bytes), because it is away"),
        (away(), SessionSettings(max_mqueue_len=0), "none (max_mqueue_len = 0)"),
        (progressing(), SessionSettings(), "64MiB (max_backlog_bytes), because it is connected and acknowledges"),
        (progressing(), SessionSettings(max_mqueue_bytes=0), "none (max_mqueue_bytes = 0), because it acknowledges"),
        (Scenario().connect(), SessionSettings(), "64MiB (max_backlog_bytes), because it is connected and acknowledges"),
        (
            progressing().lose_connection(),
            SessionSettings(),
            "64MiB (max_backlog_bytes), because it acknowledged until it went away",
        ),
        (
            progressing().after(STANDS_STILL_S),
            SessionSettings(),
            "1000 messages or 1MiB (max_mqueue_len, max_mqueue_bytes), because it stands still",
        ),
        (
            progressing().after(STANDS_STILL_S),
            SessionSettings(max_backlog_bytes=0),
            "1000 messages or 1MiB (max_mqueue_len, max_mqueue_bytes), because max_backlog_bytes is 0",
        ),
    ],
)
def test_the_limit_that_holds_for_the_queue_is_shown(scenario: Scenario, settings: SessionSettings, limit: str) -> None:
    row = {"client_id": "c1", "quarantined": False, "version": STATE_ROW_VERSION}
    blob = base64.b64encode(encode_session(scenario.session)).decode()
    session = stored_in({**row, "blob": blob}, settings, most=MOST).session
    assert session is not None
    assert session.queue_limit == limit
