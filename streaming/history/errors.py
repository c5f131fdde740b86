"""Defines the errors of questions. Each text ends with what to do."""

from typing import Self

from state.errors import InflightError


class NoArchive(InflightError):
    """There are no tables at the configured place."""

    @classmethod
    def at(cls, tables_location: str) -> Self:
        return cls(
            f"there are no tables in {tables_location}: the engine makes them when archive.enabled is true. Give the data "
            "directory of the engine with --data-dir, or start it"
        )

    @classmethod
    def without_sessions(cls, checkpoint: str, reason: str) -> Self:
        return cls(
            f"there are no sessions in {checkpoint} ({reason}): give the data directory of the engine with --data-dir, or start "
            "it; it makes its first checkpoint within seconds"
        )

    @classmethod
    def unreadable(cls, table: str, error: Exception) -> Self:
        return cls(f"the table {table} cannot be read here ({error}): ask it with your own Spark, or add --source kafka")


class BadQuestion(InflightError):
    """The SQL is refused; the text has the reason."""


class NothingFound(InflightError):
    """Raised when no source has a record of what was asked for."""
