"""The engine writes to the ledger what its micro-batches have read."""

import json
from typing import Any

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from state.records.ledger import LedgerRow
from streaming.engine.batch_record import BatchRecorder, batch_row, offsets_read
from streaming.engine.progress import BatchProgress
from streaming.spark_internals.checkpoint import LoggedBatch
from tests.unit.streaming.engine.memory_files import MemoryFiles


class Ledger:
    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.records: list[bytes] = []
        self.is_away = False
        self.recorder = BatchRecorder(self.files, self.write)  # type: ignore[arg-type]

    def write(self, value: bytes) -> None:
        if self.is_away:
            raise KafkaTimeoutError("away")
        self.records.append(value)

    def planned(self, batch_id: int, batch_ms: int, **ends: dict[int, int]) -> None:
        metadata, offsets = json.dumps({"batchTimestampMs": batch_ms}), json.dumps(ends)
        self.files.found[f"offsets/{batch_id}"] = f"v1\n{metadata}\n-\n{offsets}".encode()

    def ended(self, batch_id: int) -> None:
        self.recorder.observe(BatchProgress(batch_id=batch_id, started="", duration_ms=0))
        self.recorder.write_new()

    def rows(self) -> list[tuple[int, int, Any]]:
        rows = [row for value in self.records for row in msgspec.json.decode(value, type=list[LedgerRow])]
        return [(row.batch_ms, row.time_ms, offsets_read(row)) for row in rows]


def test_a_row_says_what_was_read_and_when() -> None:
    before, batch = LoggedBatch(1_000, {"e": {0: 5, 1: 2}}), LoggedBatch(1_500, {"e": {0: 9, 1: 2}, "m": {0: 3}})
    row = batch_row(batch, before)
    assert row is not None
    assert (row.client_id, row.batch_ms, row.time_ms) == ("", 1_500, 1_000)
    assert offsets_read(row) == {"e": {0: (5, 9)}, "m": {0: (0, 3)}}


def test_a_micro_batch_without_records_has_no_row() -> None:
    batch = LoggedBatch(1_000, {"e": {0: 5}})
    assert batch_row(batch, batch) is None


def test_each_micro_batch_with_records_is_written_once() -> None:
    ledger = Ledger()
    for batch_id, end in enumerate((2, 2, 7)):
        ledger.planned(batch_id, 1_000 + batch_id, e={0: end})
    ledger.ended(1)
    ledger.ended(2)
    ledger.ended(2)
    assert ledger.rows() == [(1_000, 1_000, {"e": {0: (0, 2)}}), (1_002, 1_001, {"e": {0: (2, 7)}})]


def test_a_start_writes_again_what_a_killed_engine_may_have_left_out() -> None:
    ledger = Ledger()
    for batch_id in range(100, 131):
        ledger.planned(batch_id, batch_id, e={0: batch_id})
    ledger.ended(130)
    assert [batch_ms for batch_ms, _, _ in ledger.rows()] == list(range(111, 131))


def test_rows_that_kafka_did_not_take_are_written_later() -> None:
    ledger = Ledger()
    ledger.planned(0, 1_000, e={0: 1})
    ledger.is_away = True
    with pytest.raises(KafkaTimeoutError):
        ledger.ended(0)
    ledger.is_away = False
    ledger.planned(1, 2_000, e={0: 2})
    ledger.ended(1)
    assert [batch_ms for batch_ms, _, _ in ledger.rows()] == [1_000, 2_000]


def test_an_entry_that_spark_has_deleted_is_passed_over() -> None:
    ledger = Ledger()
    ledger.planned(0, 1_000, e={0: 1})
    ledger.ended(0)
    ledger.planned(2, 3_000, e={0: 4})
    ledger.planned(3, 4_000, e={0: 6})
    ledger.ended(3)
    assert [batch_ms for batch_ms, _, _ in ledger.rows()] == [1_000, 4_000]
