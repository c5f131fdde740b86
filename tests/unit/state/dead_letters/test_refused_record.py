"""state.dead_letters.refused_record: what leaves when a record never reaches a session."""

import pytest

from state.commands import DeadLetter, RecordTransition, SendReceipt, Transition
from state.dead_letters.dead_letter import with_death
from state.dead_letters.refused_record import fault_of_key, fault_of_size, fault_of_time, refuse_event, refuse_message, unread
from state.model import Message, Outcome
from state.records.receipts import Receipt

NOW = 1_700_000_000_000
MESSAGE = Message(message_id="m", topic="t", payload=b"p", accepted_ms=5)


def test_an_event_is_in_the_ledger_and_a_dead_letter() -> None:
    dead = with_death(MESSAGE, queue="c", reason=Outcome.INVALID, time_ms=NOW, exchange="dead-letters")
    assert refuse_event(MESSAGE, client_id="c", detail="why", now_ms=NOW) == (
        RecordTransition(transition=Transition.REFUSED, time_ms=NOW, message_id="m", outcome=Outcome.INVALID, detail="why"),
        DeadLetter(message=dead, reason=Outcome.INVALID, time_ms=NOW, detail="why"),
    )


def test_a_message_gets_its_receipt_too() -> None:
    *others, command = refuse_message(MESSAGE, client_id="c", detail="why", now_ms=NOW)
    assert tuple(others) == refuse_event(MESSAGE, client_id="c", detail="why", now_ms=NOW)
    receipt = Receipt(
        message_id="m", client_id="c", outcome=Outcome.INVALID, reason_code=0, attempts=0, accepted_ms=5, first_sent_ms=None,
        outcome_ms=NOW, recorded_ms=NOW, detail="why", final=True, destinations=(), deaths=0, correlation_data=None,
        fast_path=False, traceparent=None,
    )  # fmt: skip
    assert command == SendReceipt(receipt=receipt)


def test_of_what_nobody_can_read_the_bytes_are_kept() -> None:
    assert unread(b"\xff", message_id="e-0-1", accepted_ms=7) == Message(
        message_id="e-0-1", topic="", payload=b"\xff", accepted_ms=7
    )
    assert unread(None, message_id="e-0-1", accepted_ms=7).payload == b""


@pytest.mark.parametrize(
    ("key", "words"),
    [(None, "has no key"), (b"", "has no key"), (b"\xff", "not UTF-8"), (b"k" * 20, "20 bytes: a client id has at most 10")],
)
def test_a_key_that_names_no_client_is_told_why(key: bytes | None, words: str) -> None:
    assert words in fault_of_key(key, max_client_id_bytes=10)


def test_a_record_for_too_many_recipients_is_told_how_many_are_allowed() -> None:
    assert fault_of_key(None, recipients=501, max_client_id_bytes=10).startswith("the record names 501 recipients: at most 500")
    assert "has no key" in fault_of_key(None, recipients=500, max_client_id_bytes=10)


def test_a_record_that_is_not_taken_in_is_named_by_its_position() -> None:
    assert fault_of_size("t", 1, 5, size_bytes=10, max_bytes=9).startswith(
        "the record at offset 5 in partition 1 of t has 10 bytes after decompression: at most 9 are taken in"
    )
    assert fault_of_time("t", 1, 5, timestamp_ms=2**63 - 1).startswith(
        "the record at offset 5 in partition 1 of t has the timestamp 9223372036854775807, beyond"
    )
