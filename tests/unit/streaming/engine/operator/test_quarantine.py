"""The state operator with a client whose session cannot be used. The rules are tested in tests/unit/state/dead_letters."""

import json
from typing import Any

import pytest

from state.activation import Activation
from state.commands import CloseConnection
from state.dead_letters import quarantine
from state.events import ClientConnected, PubAckReceived, RestoreRequested
from state.session import Session
from streaming.engine.operator import session_operator, state_row
from streaming.engine.operator.state_row import QUARANTINED_ROW_VERSION, STATE_ROW_VERSION
from tests.unit.streaming.engine.operator.operator_host import NOW, SETTINGS, Host, commands, fail_on, group_state, is_poison, of

RETRY_MS = SETTINGS.session.retry_interval_ms
_pass_time = Session._pass_time


def failing(self: Session, activation: Activation) -> None:
    """Simulates a defect: the code that time triggers raises an error."""
    raise ZeroDivisionError(f"a mistake of ours {self!r}")


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Puts a bug into every session; `bug.undo()` is the repaired version."""
    monkeypatch.setattr(Session, "_pass_time", failing)
    return monkeypatch


def in_flight(*payloads: bytes) -> Host:
    """A host whose client is connected and has these messages in its window."""
    host = Host()
    connect = ClientConnected(connection_id=1, commands_partition=1, clean_start=False, session_expiry_interval_s=3_600)
    host.run(host.event(connect), *(host.message(payload, message_id=payload) for payload in payloads))
    return host


def quarantined(host: Host) -> bool:
    return host.value is not None and host.value[0] == QUARANTINED_ROW_VERSION


def damaged(*, version: int = STATE_ROW_VERSION, blob: bytes = b"\x01not a session") -> Host:
    host = Host()
    host.value = (version, True, 3, 4, 5, NOW, NOW + 1, blob)
    return host


def outcomes(records: list[dict[str, Any]]) -> dict[str, str]:
    return {
        receipt["message_id"]: receipt["outcome"] for receipt in map(json.loads, (r["value"] for r in of(records, "receipts")))
    }


@pytest.mark.parametrize(
    ("version", "blob", "words"),
    [
        (STATE_ROW_VERSION, b"\x01not a session", b"is damaged"),
        (STATE_ROW_VERSION, b"\x63", b"version 99"),
        (STATE_ROW_VERSION, b"", b"version nothing"),
        (STATE_ROW_VERSION + 1, b"of tomorrow", b"start the version that wrote the checkpoint"),
    ],
)
def test_an_unreadable_row_is_kept_and_reported_once(version: int, blob: bytes, words: bytes) -> None:
    host = damaged(version=version, blob=blob)
    records = host.run(host.due())
    (letter,) = of(records, "dead-letters")
    assert letter["value"] == blob
    assert letter["headers"]["x-last-death-reason"] == b"quarantined"
    assert letter["headers"]["x-state-row-version"] == b"%d" % version
    assert words in letter["headers"]["x-detail"]
    assert b"inflight sessions restore" in letter["headers"]["x-detail"]
    assert of(records, "ledger")
    assert quarantined(host)
    assert host.value is not None
    assert host.value[1:7] == (False, 3, 4, 5, None, None)
    held = quarantine.decode_quarantine(host.value[-1])
    assert (held.row_version, held.blob, held.since_ms) == (version, blob, NOW)
    assert host.deadline_ms is None
    assert of(host.run(host.message(), now_ms=NOW + 5), "dead-letters")[0]["value"] == b"p"


def test_a_timer_that_raises_costs_only_its_client(bug: pytest.MonkeyPatch) -> None:
    bug.undo()
    host = in_flight(b"1")
    assert host.value is not None
    blob = host.value[-1]
    bug.setattr(Session, "_pass_time", failing)
    records = host.run(host.due(), now_ms=NOW + RETRY_MS)
    (letter,) = of(records, "dead-letters")
    assert letter["value"] == blob
    assert b"ZeroDivisionError" in letter["headers"]["x-detail"]
    assert b"0x\xe2\x80\xa6" in letter["headers"]["x-detail"], "an address is not the same when the micro-batch is executed again"
    (close,) = commands(records)
    assert isinstance(close, CloseConnection)
    assert (close.connection_id, close.partition, close.reason_code) == (1, 1, 0x83)
    assert host.deadline_ms is None


def test_a_session_that_fails_on_every_event_is_quarantined(bug: pytest.MonkeyPatch) -> None:
    bug.undo()
    host = in_flight(b"1")
    bug.setattr(Session, "_pass_time", failing)
    records = host.run(host.message(b"2", message_id=b"m2"), host.event(PubAckReceived(connection_id=1, packet_id=1)))
    assert quarantined(host)
    assert outcomes(records) == {"m2": "quarantined"}
    reasons = [letter["headers"]["x-last-death-reason"] for letter in of(records, "dead-letters")]
    assert reasons == [b"quarantined", b"quarantined"]


def test_a_new_session_that_fails_does_not_stop_the_query(bug: pytest.MonkeyPatch) -> None:
    host = Host()
    records = host.run(host.message(b"1", message_id=b"m1"))
    assert [letter["value"] for letter in of(records, "dead-letters")] == [b"1"]
    bug.setattr(Session, "summary", failing)
    host.run(host.message(b"2"))
    assert quarantined(host)


def test_a_memory_error_quarantines_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def used_up(*_args: Any, **_options: Any) -> None:
        raise MemoryError

    host = in_flight(b"1")
    monkeypatch.setattr(session_operator, "decode_session", used_up)
    with pytest.raises(MemoryError):
        host.run(host.due())


def test_the_same_micro_batch_executed_again_gives_the_same_bytes(bug: pytest.MonkeyPatch) -> None:
    bug.undo()
    host = in_flight(b"1", b"2")
    bug.setattr(Session, "_pass_time", failing)
    cells = [host.message(b"3"), host.event(PubAckReceived(connection_id=1, packet_id=1))]
    answers = []
    for order in (cells, cells[::-1]):
        state = group_state(host.value, now_ms=NOW + 1)
        answers.append((session_operator.SessionOperator(SETTINGS).activate(("c",), order, state), tuple(state.get)))
    assert answers[0] == answers[1]


def test_a_row_of_a_newer_version_is_restored_by_the_version_that_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host = in_flight(b"1")
    assert host.value is not None
    host.value = (2, *host.value[1:])
    host.run(host.due())
    assert of(host.run(host.event(RestoreRequested())), "commands") == []
    assert quarantined(host)
    monkeypatch.setattr(state_row, "STATE_ROW_VERSION", 2)
    host.run(host.event(RestoreRequested()))
    assert host.value[:3] == (2, False, 1)


def test_a_failing_event_beside_a_request_becomes_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, is_poison)
    host = in_flight(b"1")
    records = host.run(host.event(RestoreRequested()), host.message(b"poison"), host.message(b"2"))
    assert [command.payload for command in commands(records)] == [b"2"]
    assert [letter["value"] for letter in of(records, "dead-letters")] == [b"poison"]
    assert not quarantined(host)
