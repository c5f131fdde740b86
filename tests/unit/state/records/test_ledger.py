import json

from state.commands import RecordTransition, Transition
from state.records.ledger import ledger_records, ledger_row
from state.records.record import SinkRecord
from state.settings import RecordLimits

LIMITS = RecordLimits()
NOW = 1_700_000_000_000


def records_of(*commands: RecordTransition) -> list[SinkRecord]:
    rows = [ledger_row(command, client_id="ü", batch_ms=NOW) for command in commands]
    return list(ledger_records("l", "ü", rows, max_record_bytes=LIMITS.max_record_bytes))


def test_rows_of_a_client_are_one_ledger_record_unless_too_large() -> None:
    rows = [RecordTransition(transition=Transition.SENT, time_ms=NOW, message_id="m" * 400) for _ in range(5_000)]
    (small,) = records_of(rows[0], RecordTransition(transition=Transition.CONNECTED, time_ms=NOW))
    assert json.loads(small.value) == [
        {"client_id": "ü", "batch_ms": NOW, "transition": "sent", "time_ms": NOW, "message_id": "m" * 400},
        {"client_id": "ü", "batch_ms": NOW, "transition": "connected", "time_ms": NOW},
    ]
    assert (small.topic, small.key) == ("l", "ü".encode())
    many = records_of(*rows)
    assert len(many) > 1
    assert all(len(record.value) <= LIMITS.max_record_bytes for record in many)
    assert sum(len(json.loads(record.value)) for record in many) == 5_000
