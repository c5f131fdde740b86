"""Reads Delta tables without Spark, for questions of people, who would wait ten seconds for a JVM.

docs/decisions/0005-delta-log-reader.md gives the reasons for this library and its costs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_LOG: Final = "_delta_log"
_ATTEMPTS: Final = 3
_NAME: Final = '"'
_TEXT: Final = "'"
"""Quotes of SQL, for a name and for a text."""


class UnsupportedTable(Exception):
    """The library cannot read the table: it needs a reader that knows more of the protocol, or files are missing."""


def is_table(table: Path) -> bool:
    """True if there is a Delta table at this path."""
    return (table / _LOG).is_dir()


def rows_with(table: Path | str, column: str, value: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Returns all rows of the newest version with this value in a text column. Times have their zone, UTC.

    Args:
        columns: Those that the table has are returned; None = all.

    Raises:
        UnsupportedTable: The library cannot read the table.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _rows(table, column, value, columns)
        except Exception as error:  # the library raises bare Exceptions, too
            # A file may have been compacted and removed after the table was opened: the next attempt finds its successor.
            if attempt == _ATTEMPTS:
                raise UnsupportedTable(str(error)) from error
    raise AssertionError("the loop returns or raises")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRows:
    """All rows of one version of a table.

    Attributes:
        rows: A pyarrow dataset, of which only the files are read that a condition needs.
        days: The oldest and the newest value of the partition column; None = there are no rows.
    """

    rows: Any
    days: tuple[str, str] | None


def open_rows(location: str, partition: str) -> DeltaRows:
    """Opens the newest version of a table on this machine or in an object store.

    Raises:
        UnsupportedTable: The library cannot read the table, or there is none.
    """
    from deltalake import DeltaTable

    try:
        opened = DeltaTable(_uri(location))
        values = [str(found[partition]) for found in opened.partitions()]
        return DeltaRows(rows=opened.to_pyarrow_dataset(), days=(min(values), max(values)) if values else None)
    except Exception as error:  # the library raises bare Exceptions, too
        raise UnsupportedTable(str(error)) from error


def oldest_and_newest(table: Path, partition: str) -> tuple[str, str] | None:
    """Returns the range of the partition column's values; None for a table without rows, or one that cannot be read."""
    from deltalake import DeltaTable

    try:
        values = [found[partition] for found in DeltaTable(table).partitions()]
    except Exception:  # noqa: BLE001 - the library raises bare Exceptions, too
        return None
    return (min(values), max(values)) if values else None


def newest_value(table: Path, partition: str, column: str) -> int | None:
    """Returns the greatest value of a column in the newest partition; None for a table without rows, or an unreadable one."""
    days = oldest_and_newest(table, partition)
    if days is None:
        return None
    from deltalake import DeltaTable, QueryBuilder

    condition = f"{_quoted(partition, _NAME)} = {_quoted(days[1], _TEXT)}"
    query = f"SELECT max({_quoted(column, _NAME)}) AS newest FROM asked WHERE {condition}"  # noqa: S608 - quoted  # nosec B608
    try:
        found = QueryBuilder().register("asked", DeltaTable(table)).execute(query).read_all()
        newest: int | None = found.column("newest")[0].as_py()
    except Exception:  # noqa: BLE001 - the library raises bare Exceptions, too
        return None
    return newest


def _rows(table: Path | str, column: str, value: str, columns: list[str] | None) -> list[dict[str, Any]]:
    from deltalake import DeltaTable, QueryBuilder

    opened = DeltaTable(_uri(table))
    names = [field.name for field in opened.schema().fields if columns is None or field.name in columns]
    wanted = ", ".join(_quoted(name, _NAME) for name in names)
    condition = _quoted(column, _NAME) + " = " + _quoted(value, _TEXT)
    query = f"SELECT {wanted} FROM asked WHERE {condition}"  # noqa: S608 - both are quoted  # nosec B608
    found = QueryBuilder().register("asked", opened).execute(query).read_all()
    return [{name: found.column(name)[row].as_py() for name in names} for row in range(found.num_rows)]


def _uri(table: Path | str) -> str:
    """Returns the location as the library writes it: Hadoop has a name of its own for S3."""
    return str(table).replace("s3a://", "s3://", 1)


def _quoted(text: str, quote: str) -> str:
    """Quotes for SQL: a name in double quotes, a text in single ones."""
    return quote + text.replace(quote, 2 * quote) + quote
