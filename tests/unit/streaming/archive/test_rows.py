"""The schemas by which the archive parses the JSON of records: the structs of state/records, and the columns that they fill."""

import pytest

from state.records.dead_letters import DeathJson
from state.records.ledger import LedgerRow
from state.records.receipts import Receipt
from streaming.archive import spark_cells, spark_rows
from streaming.archive.spark_types import spark_types, struct_of
from streaming.archive.tables import LEDGER, RECEIPTS

COLUMN_TYPES = {"STRING": "string", "INT": "int", "BIGINT": "bigint", "BOOLEAN": "boolean"}


def test_the_types_of_the_ledger_are_those_of_its_rows() -> None:
    assert struct_of(spark_types(LedgerRow)) == (
        "struct<client_id: string, batch_ms: bigint, transition: string, time_ms: bigint, message_id: string, packet_id: int, "
        "attempt: int, outcome: string, reason_code: int, detail: string>"
    )


def test_of_receipts_and_deaths_the_archive_reads_a_part() -> None:
    assert spark_rows._RECEIPT == (
        "struct<message_id: string, client_id: string, outcome: string, reason_code: int, attempts: int, accepted_ms: bigint, "
        "first_sent_ms: bigint, outcome_ms: bigint, recorded_ms: bigint, detail: string, fast_path: boolean>"
    )
    assert spark_cells._DEATHS == "array<struct<queue: string, reason: string, count: int, time: bigint>>"


@pytest.mark.parametrize(("struct", "spec"), [(LedgerRow, LEDGER), (Receipt, RECEIPTS)])
def test_a_column_of_a_table_that_is_a_field_has_its_type(struct, spec) -> None:
    known = {field: field in spec.column_names for field in struct.__struct_fields__}
    shared = [field for field, is_column in known.items() if is_column]
    assert len(shared) >= 5
    types = {column.name: COLUMN_TYPES[column.sql_type] for column in spec.columns if column.name in shared}
    assert spark_types(struct, *shared) == types


def test_unknown_fields_and_unsupported_types_are_errors() -> None:
    with pytest.raises(TypeError, match="LedgerRow has no colour"):
        spark_types(LedgerRow, "colour")
    with pytest.raises(TypeError, match="the archive reads"):
        spark_types(Receipt, "correlation_data")
    assert spark_types(DeathJson, "original_expiration") == {"original-expiration": "string"}
