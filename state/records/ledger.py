"""Defines the records of `inflight.ledger`: the transitions of a client's messages.

Key: the client id. No headers. Value: a JSON array of `LedgerRow`, one record for all rows of a client in a micro-batch.
A record with an empty key says which offsets micro-batches have read (`transition` is `micro_batch`).
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from state.commands import RecordTransition
from state.model import ClientId
from state.records.record import SinkRecord, TimeMs

_encoder: Final = msgspec.json.Encoder()


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An element of the array. A field with its default value is omitted.

    Attributes:
        batch_ms: Time of the micro-batch. The other fields are those of state.commands.RecordTransition.
    """

    client_id: str
    batch_ms: TimeMs
    transition: str
    time_ms: TimeMs
    message_id: str | None = None
    packet_id: int | None = None
    attempt: int = 0
    outcome: str | None = None
    reason_code: int = 0
    detail: str = ""


def ledger_row(command: RecordTransition, *, client_id: ClientId, batch_ms: int) -> LedgerRow:
    return LedgerRow(
        client_id=client_id,
        batch_ms=batch_ms,
        transition=command.transition.value,
        time_ms=command.time_ms,
        message_id=command.message_id,
        packet_id=command.packet_id,
        attempt=command.attempt,
        outcome=None if command.outcome is None else command.outcome.value,
        reason_code=command.reason_code,
        detail=command.detail,
    )


def encode_ledger_rows(rows: Sequence[LedgerRow]) -> bytes:
    """Returns the value of a record."""
    return _encoder.encode(rows)


def ledger_records(topic: str, client_id: ClientId, rows: Sequence[LedgerRow], *, max_record_bytes: int) -> Iterator[SinkRecord]:
    """Yields one record, or several if it would exceed `max_record_bytes`. A single row is never split."""
    value = encode_ledger_rows(rows)
    if len(value) <= max_record_bytes or len(rows) == 1:
        yield SinkRecord(topic, client_id.encode(), value)
        return
    middle = len(rows) // 2
    yield from ledger_records(topic, client_id, rows[:middle], max_record_bytes=max_record_bytes)
    yield from ledger_records(topic, client_id, rows[middle:], max_record_bytes=max_record_bytes)
