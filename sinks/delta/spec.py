"""Declares what a table is: columns, key, and where copies of a row can be. Imports no PySpark."""

from dataclasses import dataclass
from typing import Final

PARTITION: Final = "date"
"""The column by which every table is partitioned: the UTC day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """A column.

    Attributes:
        sql_type: As in DDL.
        comment: Its meaning, unit included; stored in the table.
    """

    name: str
    sql_type: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBound:
    """Copies of a row have values of `column` that differ by at most `slack`, in the column's unit. Null says nothing."""

    column: str
    slack: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table, whose last column is `date`.

    Attributes:
        key: Columns that are equal in copies of a row and in no other rows.
        bounds: A copy that is already in the table lies within one of them.
        cluster_by: The column by which people look rows up; rows are sorted by it within a file.
    """

    name: str
    comment: str
    columns: tuple[ColumnSpec, ...]
    key: tuple[str, ...]
    bounds: tuple[CopyBound, ...]
    cluster_by: str

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]
