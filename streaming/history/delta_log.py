"""Reads a local Delta table without Spark, for commands that answer one small question and would wait ten seconds for a JVM.

It follows the Delta protocol for tables as the archive makes them: reader version 1 (no deletion vectors, no column mapping),
classic checkpoints. Of anything newer it says so (`UnsupportedTable`), and the caller asks Spark. The steps of a look, in order:
1. `_last_checkpoint`: the newest checkpoint, if there is one;
2. its actions;
3. the commits after it, in order.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

_LOG: Final = "_delta_log"
_READER_VERSION: Final = 1


class UnsupportedTable(Exception):
    """The table needs a reader that knows more of the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a snapshot. minimum, maximum: of columns with statistics; a long text is cut, a maximum then rounded up."""

    path: Path
    minimum: dict[str, Any]
    maximum: dict[str, Any]

    def may_contain(self, column: str, value: str) -> bool:
        """False only if no row of the file has this value."""
        low, high = self.minimum.get(column), self.maximum.get(column)
        return not (isinstance(low, str) and isinstance(high, str)) or low <= value <= high


def is_table(table: Path) -> bool:
    """True if there is a Delta table at this path."""
    return (table / _LOG).is_dir()


def snapshot(table: Path) -> tuple[DataFile, ...]:
    """The files of the newest version. Raises UnsupportedTable, and FileNotFoundError when the log is cleaned up meanwhile."""
    log = table / _LOG
    checkpoint = _last_checkpoint(log)  # 1
    active: dict[str, DataFile] = {}
    if checkpoint is not None:
        _replay(_checkpoint_actions(log, checkpoint), table, active)  # 2
    first = 0 if checkpoint is None else checkpoint["version"] + 1
    for commit in sorted(log.glob("[0-9]" * 20 + ".json")):  # 3
        if int(commit.stem) >= first:
            with commit.open(encoding="utf-8") as lines:
                _replay((json.loads(line) for line in lines if line.strip()), table, active)
    return tuple(active.values())


def rows_with(table: Path, column: str, value: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """All rows of the newest version with this value in a text column. Raises UnsupportedTable."""
    for attempt in range(3):
        try:
            files = [file for file in snapshot(table) if file.may_contain(column, value)]
            return _read(files, column, value, columns)
        except FileNotFoundError:  # compacted and cleaned up between our two looks
            if attempt == 2:
                raise
    raise AssertionError("the loop returns or raises")


def _read(files: list[DataFile], column: str, value: str, columns: list[str] | None) -> list[dict[str, Any]]:
    if not files:
        return []
    # No partitioning: the day is in the path, and the rows have better times.
    data = ds.dataset([str(file.path) for file in files], format="parquet")
    wanted = None if columns is None else [name for name in columns if name in data.schema.names]
    table: pa.Table = data.to_table(filter=ds.field(column) == value, columns=wanted)
    for index, column_type in enumerate(table.schema.types):
        if pa.types.is_timestamp(column_type):
            # Delta's times are UTC, and some writers (INT96) do not say so in the file.
            exact = table.column(index).cast(pa.timestamp("us", tz="UTC"), safe=False)
            table = table.set_column(index, table.schema.field(index).name, exact)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def _last_checkpoint(log: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((log / "_last_checkpoint").read_bytes())
    except FileNotFoundError:
        return None
    if "v2Checkpoint" in found:
        raise UnsupportedTable("a checkpoint of version 2")
    return found


def _checkpoint_actions(log: Path, checkpoint: dict[str, Any]) -> Iterator[dict[str, Any]]:
    version, parts = checkpoint["version"], checkpoint.get("parts")
    names = (
        [f"{version:020}.checkpoint.parquet"]
        if parts is None
        else [f"{version:020}.checkpoint.{part:010}.{parts:010}.parquet" for part in range(1, parts + 1)]
    )
    for name in names:
        file = pq.ParquetFile(log / name)
        wanted = [column for column in ("add", "protocol") if column in file.schema_arrow.names]
        yield from file.read(columns=wanted).to_pylist()


def _replay(actions: Iterator[dict[str, Any]], table: Path, active: dict[str, DataFile]) -> None:
    for action in actions:
        if (add := action.get("add")) is not None:
            if add.get("deletionVector"):
                raise UnsupportedTable("deletion vectors")
            active[add["path"]] = _data_file(table, add)
        elif (remove := action.get("remove")) is not None:
            active.pop(remove["path"], None)
        elif (protocol := action.get("protocol")) is not None and protocol["minReaderVersion"] > _READER_VERSION:
            raise UnsupportedTable(f"reader version {protocol['minReaderVersion']}")


def _data_file(table: Path, add: dict[str, Any]) -> DataFile:
    statistics = json.loads(add.get("stats") or "{}")
    return DataFile(
        path=table / unquote(add["path"]), minimum=statistics.get("minValues", {}), maximum=statistics.get("maxValues", {})
    )
