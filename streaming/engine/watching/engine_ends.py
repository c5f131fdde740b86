"""Stores in the data directory how engines have ended; streaming/engine/watching/repeated_ends.py counts. Read without Spark."""

from typing import ClassVar, Final

from streaming.engine.data_file import DataFile

REPEATED: Final = 3
"""From this count on it is no accident."""


class EngineEnds(DataFile, frozen=True, kw_only=True):
    """Ends in a row without a completed micro-batch.

    Attributes:
        count: How many; 0 after the first completed micro-batch.
        at: Of the newest; ISO 8601, UTC.
        cause, action, position: Of the newest, for people. position: which records it could not get past; empty = unknown.
        runs: An engine has started, and has not said how it ended.
    """

    file: ClassVar = "ends.json"
    count: int = 0
    at: str = ""
    cause: str = ""
    action: str = ""
    position: str = ""
    runs: bool = False

    @property
    def is_repeated(self) -> bool:
        return self.count >= REPEATED

    def __str__(self) -> str:
        where = f" at {self.position}" if self.position else ""
        return f"the engine has ended {self.count} times in a row{where}, the last time {self.at}: {self.cause}"
