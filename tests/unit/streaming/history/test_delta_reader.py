import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming.history.delta_reader import UnsupportedTable, newest_value, rows_with

MOMENT = datetime(2026, 11, 21, 10, 0, 0, 123_000)  # noqa: DTZ001 - as INT96 gives it
COLUMNS = {"message_id": "string", "n": "long", "time": "timestamp", "date": "date"}
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
SCHEMA = {
    "type": "struct",
    "fields": [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in COLUMNS.items()],
}
METADATA = {
    "id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(SCHEMA),
    "partitionColumns": ["date"], "configuration": {},
}  # fmt: skip
_TEXTS = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    {
        "add": pa.struct(
            {
                "path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "modificationTime": pa.int64(),
                "dataChange": pa.bool_(), "stats": pa.string(),
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
        "metaData": pa.struct(
            {
                "id": pa.string(), "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(), "partitionColumns": pa.list_(pa.string()), "configuration": _TEXTS,
            }
        ),
    }
)  # fmt: skip


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
        times = pa.array([MOMENT] * len(ids), pa.timestamp("ns"))
        rows = pa.table({"message_id": list(ids), "n": list(range(len(ids))), "time": times})
        pq.write_table(rows, path, use_deprecated_int96_timestamps=True)  # as Spark does
        statistics = {"numRecords": len(ids), "minValues": {"message_id": min(ids)}, "maxValues": {"message_id": max(ids)}}
        return {
            "add": {
                "path": f"date=2026-11-21/{name.replace(' ', '%20')}", "partitionValues": {"date": "2026-11-21"},
                "size": path.stat().st_size, "modificationTime": 0, "dataChange": True, "stats": json.dumps(statistics),
            }
        }  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path / "ledger")
    made.commit({"protocol": PROTOCOL}, {"metaData": METADATA})
    return made


def test_rows_come_from_the_files_of_the_newest_version_only(table: Table) -> None:
    old = table.file("a b.parquet", "m1", "m2")
    table.commit(old)
    table.commit(table.file("c.parquet", "m1", "m1", "m2"), {"remove": {"path": old["add"]["path"], "dataChange": True}})
    assert [row["n"] for row in rows_with(table.directory, "message_id", "m1")] == [0, 1]


def test_files_whose_statistics_exclude_the_value_are_not_opened(table: Table) -> None:
    table.commit(table.file("a.parquet", "m1", "m3"), table.file("b.parquet", "m5", "m7"))
    (table.directory / "date=2026-11-21" / "b.parquet").unlink()
    assert rows_with(table.directory, "message_id", "m2") == []
    assert len(rows_with(table.directory, "message_id", "m3")) == 1


def test_a_checkpoint_stands_for_the_commits_before_it(table: Table) -> None:
    first = table.file("a.parquet", "m1")
    table.commit(first)
    none = dict.fromkeys(("add", "protocol", "metaData"))
    checkpoint = pa.Table.from_pylist([none | first, none | {"protocol": PROTOCOL}, none | {"metaData": METADATA}], CHECKPOINT)
    pq.write_table(checkpoint, table.log / f"{1:020}.checkpoint.parquet")
    (table.log / "_last_checkpoint").write_text('{"version": 1, "size": 3}', encoding="utf-8")
    for version in (0, 1):
        (table.log / f"{version:020}.json").unlink()
    table.commit(table.file("b.parquet", "m1"))
    assert len(rows_with(table.directory, "message_id", "m1")) == 2


@pytest.mark.parametrize(
    "action",
    [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}},
        {"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}},
        {"add": {"path": "a", "deletionVector": {"storageType": "u"}}},
    ],
)
def test_what_needs_a_newer_reader_is_refused(table: Table, action: dict[str, Any]) -> None:
    table.commit(action)
    with pytest.raises(UnsupportedTable):
        rows_with(table.directory, "message_id", "m1")


def test_a_table_whose_files_are_missing_is_left_to_spark(table: Table) -> None:
    table.commit(table.file("a.parquet", "m1"))
    (table.directory / "date=2026-11-21" / "a.parquet").unlink()
    with pytest.raises(UnsupportedTable, match=r"a\.parquet"):
        rows_with(table.directory, "message_id", "m1")


def test_times_without_a_time_zone_are_utc(table: Table) -> None:
    table.commit(table.file("a.parquet", "m1"))
    (row,) = rows_with(table.directory, "message_id", "m1")
    assert row["time"] == MOMENT.replace(tzinfo=UTC)


def test_only_requested_columns_that_the_table_has_are_read(table: Table) -> None:
    table.commit(table.file("a.parquet", "m1", "m2"))
    assert rows_with(table.directory, "message_id", "m2", ["n", "later", "message_id"]) == [{"message_id": "m2", "n": 1}]


@pytest.mark.parametrize("value", ["it's", "'; --", '"m1"', "m1' OR '1' = '1", "\\"])
def test_any_text_can_be_asked_for(table: Table, value: str) -> None:
    table.commit(table.file("a.parquet", "m1", value))
    assert [row["message_id"] for row in rows_with(table.directory, "message_id", value)] == [value]


def test_the_newest_value_is_that_of_the_newest_day(table: Table) -> None:
    assert newest_value(table.directory, "date", "n") is None
    table.commit(table.file("a.parquet", "m1", "m2", "m3"))
    assert newest_value(table.directory, "date", "n") == 2
    assert newest_value(table.directory, "date", "missing") is None
