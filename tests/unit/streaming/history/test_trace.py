"""The order of a trace, and reading a Delta table without Spark."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming.history.delta_log import UnsupportedTable, rows_with, snapshot
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


def test_steps_are_in_the_order_of_micro_batches_records_and_rows_whatever_order_they_were_read_in() -> None:
    rows = [
        ledger_row("sent", T0 + 1, index=0),
        ledger_row("queued", T0, offset=7, index=1),
        ledger_row("finished", T0 + 1, index=1),
        ledger_row("accepted", T0, offset=7, index=0),
        ledger_row("returned", T0 + 2),
    ]
    steps = in_order(rows, [dead_letter_row(T0 + 1)])
    assert [step.step for step in steps] == ["accepted", "queued", "sent", "finished", "dead letter", "returned"]
    assert "2 deaths" in steps[4].detail


class Table:
    """A Delta table written by hand, as the protocol says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = 0

    def commit(self, *actions: dict[str, Any]) -> None:
        path = self.log / f"{self.version:020}.json"
        path.write_text("\n".join(json.dumps(action) for action in actions), encoding="utf-8")
        self.version += 1

    def file(self, name: str, *ids: str) -> dict[str, Any]:
        """Writes a file; returns its `add` action."""
        path = self.directory / "date=2026-11-21" / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"message_id": list(ids), "n": list(range(len(ids)))}), path)
        statistics = {"numRecords": len(ids), "minValues": {"message_id": min(ids)}, "maxValues": {"message_id": max(ids)}}
        return {"add": {"path": f"date=2026-11-21/{name.replace(' ', '%20')}", "stats": json.dumps(statistics)}}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path / "ledger")
    made.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": {"id": "x"}})
    return made


def test_rows_come_from_the_files_of_the_newest_version_only(table: Table) -> None:
    old = table.file("a b.parquet", "m1", "m2")
    table.commit(old)
    table.commit(table.file("c.parquet", "m1", "m1", "m2"), {"remove": {"path": old["add"]["path"]}})
    assert [row["n"] for row in rows_with(table.directory, "message_id", "m1")] == [0, 1]


def test_files_whose_statistics_exclude_the_value_are_not_opened(table: Table) -> None:
    table.commit(table.file("a.parquet", "m1", "m3"), table.file("b.parquet", "m5", "m7"))
    (table.directory / "date=2026-11-21" / "b.parquet").unlink()
    assert rows_with(table.directory, "message_id", "m2") == []
    assert len(rows_with(table.directory, "message_id", "m3")) == 1


def test_a_checkpoint_stands_for_the_commits_before_it(table: Table) -> None:
    first = table.file("a.parquet", "m1")
    table.commit(first)
    checkpoint = pa.Table.from_pylist(
        [{"add": first["add"], "protocol": None}, {"add": None, "protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
    )
    pq.write_table(checkpoint, table.log / f"{1:020}.checkpoint.parquet")
    (table.log / "_last_checkpoint").write_text('{"version": 1, "size": 2}', encoding="utf-8")
    for version in (0, 1):
        (table.log / f"{version:020}.json").unlink()
    table.commit(table.file("b.parquet", "m1"))
    assert len(snapshot(table.directory)) == 2
    assert len(rows_with(table.directory, "message_id", "m1")) == 2


@pytest.mark.parametrize(
    "action",
    [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}},
        {"add": {"path": "a", "deletionVector": {"storageType": "u"}}},
    ],
)
def test_what_needs_a_newer_reader_is_refused(table: Table, action: dict[str, Any]) -> None:
    table.commit(action)
    with pytest.raises(UnsupportedTable):
        snapshot(table.directory)


def test_times_are_utc_also_where_the_file_does_not_say_so(table: Table) -> None:
    add = table.file("a.parquet", "m1")
    moment = datetime(2026, 11, 21, 10, 0, 0, 123_000)  # noqa: DTZ001 - as INT96 gives it
    pq.write_table(
        pa.table({"message_id": ["m1"], "time": pa.array([moment], pa.timestamp("ns"))}),
        table.directory / "date=2026-11-21" / "a.parquet",
        use_deprecated_int96_timestamps=True,
    )
    table.commit(add)
    (row,) = rows_with(table.directory, "message_id", "m1")
    assert row["time"] == moment.replace(tzinfo=UTC)
