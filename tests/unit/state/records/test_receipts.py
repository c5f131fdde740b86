"""state.records.receipts: the JSON that docs/reference/receipt.schema.json promises, and who gets it."""

import json
from pathlib import Path

import msgspec
import pytest

from state.errors import UnreadableRecord
from state.model import Outcome
from state.records.receipts import OWN_TOPIC, Receipt, decode_receipt, receipt_records
from state.records.record import SinkRecord
from state.settings import RecordLimits, Topics

SCHEMA = Path(__file__).parents[4] / "docs" / "reference" / "receipt.schema.json"
RECEIPT = Receipt(
    message_id="m", client_id="lamp", outcome=Outcome.DELIVERED, reason_code=0, attempts=1, accepted_ms=1, first_sent_ms=2,
    outcome_ms=3, recorded_ms=4, detail="", final=True, destinations=(), deaths=0, correlation_data=None, fast_path=False,
    traceparent=None,
)  # fmt: skip


def records_of(receipt: Receipt, response_topic: str | None = None) -> list[SinkRecord]:
    limits = RecordLimits()
    return list(receipt_records(receipt, response_topic, Topics(), max_client_id_bytes=limits.max_client_id_bytes))


def test_every_receipt_has_every_field_of_the_schema() -> None:
    required = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]["Receipt"]["required"]
    lost = msgspec.structs.replace(RECEIPT, correlation_data=b"\xff", outcome=Outcome.DEAD_LETTER_UNROUTABLE)
    for receipt in (RECEIPT, lost):
        (record,) = records_of(receipt)
        assert sorted(json.loads(record.value)) == sorted(required)
        assert decode_receipt(record.value or b"") == receipt


def test_a_receipt_names_the_dead_letter_topic_of_the_engine() -> None:
    (record,) = records_of(msgspec.structs.replace(RECEIPT, destinations=("client:app", OWN_TOPIC)))
    receipt = decode_receipt(record.value or b"")
    assert receipt.destinations == ("client:app", "topic:inflight.dead-letters")


def test_a_receipt_of_an_older_version_is_read() -> None:
    (record,) = records_of(RECEIPT)
    fields = json.loads(record.value or b"")
    del fields["fast_path"], fields["recorded_ms"]
    older = decode_receipt(json.dumps(fields).encode())
    assert (older.message_id, older.outcome, older.fast_path) == (RECEIPT.message_id, RECEIPT.outcome, False)
    assert older.recorded_ms == older.outcome_ms == 3


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b"[]", b"[[]]", b"[{}]", b'{"outcome": "teleported"}'])
def test_what_is_no_receipt_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="not a receipt"):
        decode_receipt(data)


@pytest.mark.parametrize("response_topic", ["client:app", "client:a/b:c"])
def test_the_client_of_a_response_topic_gets_the_receipt(response_topic: str) -> None:
    receipt = msgspec.structs.replace(RECEIPT, correlation_data=b"c")
    record, to_client = records_of(receipt, response_topic)
    assert (to_client.topic, to_client.key.decode()) == ("inflight.messages", response_topic.removeprefix("client:"))
    assert to_client.value == record.value
    headers = {header.key: header.value for header in to_client.headers or ()}
    assert headers["mqtt-topic"] == response_topic.encode()
    assert headers["correlation-data"] == b"c"
    (_, again) = records_of(receipt, response_topic)
    assert again == to_client, "a repeated micro-batch writes the same message id"


@pytest.mark.parametrize("response_topic", [None, "client:", "answers/x", "client:" + "x" * 2_000])
def test_other_response_topics_name_nobody(response_topic: str | None) -> None:
    assert len(records_of(RECEIPT, response_topic)) == 1
