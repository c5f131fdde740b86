from datetime import UTC, datetime
from typing import Any

import pytest

from streaming.history.sources.source import MessageRows
from streaming.history.trace import in_order

T0 = 1_790_000_000_000


def ledger_row(transition: str, batch_ms: int = T0, offset: int = 0, index: int = 0) -> dict[str, Any]:
    return {
        "time": datetime.fromtimestamp(batch_ms / 1_000, UTC), "client_id": "c", "message_id": "m", "transition": transition,
        "attempt": 0, "packet_id": None, "outcome": None, "reason_code": 0, "detail": "", "batch_ms": batch_ms,
        "row_index": index,
        "kafka_partition": 0, "kafka_offset": offset,
    }  # fmt: skip


def dead_letter_row(died_ms: int) -> dict[str, Any]:
    return {
        "dead_letter_id": "d", "client_id": "c", "reason": "expired", "deaths": 2, "died_ms": died_ms, "kafka_topic": "dead",
        "kafka_partition": 0, "kafka_offset": 0,
    }  # fmt: skip


def test_steps_are_ordered_by_micro_batch_record_and_row() -> None:
    rows = [
        ledger_row("sent", T0 + 1, index=0),
        ledger_row("queued", T0, offset=7, index=1),
        ledger_row("finished", T0 + 1, index=1),
        ledger_row("accepted", T0, offset=7, index=0),
        ledger_row("returned", T0 + 2),
    ]
    steps = in_order(MessageRows(ledger=rows, dead_letters=[dead_letter_row(T0 + 1)]))
    assert [step.step for step in steps] == ["accepted", "queued", "sent", "finished", "dead letter", "returned"]
    assert "2 deaths" in steps[4].detail


def test_a_trace_begins_with_the_record_and_omits_a_redundant_receipt() -> None:
    submitted = {"client_id": "c", "time_ms": T0, "kafka_topic": "messages", "kafka_partition": 3, "kafka_offset": 9}
    receipt = {
        "client_id": "c", "outcome": "delivered", "outcome_ms": T0 + 1, "recorded_ms": T0 + 5, "reason_code": 0, "attempts": 2,
        "detail": "", "kafka_partition": 0, "kafka_offset": 0,
    }  # fmt: skip
    open_ = in_order(MessageRows(ledger=[ledger_row("sent")], receipts=[receipt], submitted=[submitted]))
    assert [step.step for step in open_] == ["submitted", "sent", "receipt"]
    assert "messages-3-9" in open_[0].detail
    assert (open_[2].outcome, open_[2].attempt) == ("delivered", 2)
    ended = in_order(MessageRows(ledger=[ledger_row("finished", T0 + 5)], receipts=[receipt, receipt | {"client_id": "d"}]))
    assert [(step.step, step.client_id) for step in ended] == [("finished", "c"), ("receipt", "d")]


@pytest.mark.parametrize(
    ("time_ms", "shown"), [((1 << 63) - 1, "+292278994-08-17T07:12:55.807Z"), (-1, "1969-12-31T23:59:59.999Z")]
)
def test_a_step_of_any_time_is_shown(time_ms: int, shown: str) -> None:
    submitted = {"client_id": "c", "time_ms": time_ms, "kafka_topic": "messages", "kafka_partition": 0, "kafka_offset": 0}
    steps = in_order(MessageRows(ledger=[ledger_row("accepted")], submitted=[submitted]))
    assert shown in [step.as_json()["time"] for step in steps]


def test_a_publication_comes_before_what_became_of_it() -> None:
    place = {"time_ms": T0, "kafka_partition": 3, "kafka_offset": 9}
    published = {"publisher": "pump", "topic": "plant/1", "share": "", "kafka_topic": "uplink", **place}
    returned = {**published, "publisher": "", "share": "$share/g/plant/+", "kafka_topic": "publications", "time_ms": T0 + 9}
    submitted = {"client_id": "c", "kafka_topic": "messages", **place, "kafka_partition": 0}
    steps = in_order(MessageRows(ledger=[ledger_row("sent")], published=[published, returned], submitted=[submitted]))
    assert [(step.step, step.client_id) for step in steps] == [
        ("published", "pump"),
        ("submitted", "c"),
        ("sent", "c"),
        ("published", ""),
    ]
    assert steps[0].detail == "to plant/1, record uplink-3-9"
    assert "given back to $share/g/plant/+" in steps[3].detail
