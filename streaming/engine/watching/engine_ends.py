"""Stores in the data directory how engines have ended; streaming/engine/watching/repeated_ends.py counts. Read without Spark."""

from pathlib import Path
from typing import Final, Self

import msgspec

REPEATED: Final = 3
"""From this count on it is no accident."""
_FILE: Final = "ends.json"


class EngineEnds(msgspec.Struct, frozen=True, kw_only=True):
    """Ends in a row without a completed micro-batch.

    Attributes:
        count: How many; 0 after the first completed micro-batch.
        at: Of the newest; ISO 8601, UTC.
        cause, action, position: Of the newest, for people. position: which records it could not get past; empty = unknown.
        runs: An engine has started, and has not said how it ended.
    """

    count: int = 0
    at: str = ""
    cause: str = ""
    action: str = ""
    position: str = ""
    runs: bool = False

    @classmethod
    def read(cls, data_dir: Path) -> Self:
        """Returns a count of 0 if there is no readable file."""
        try:
            return msgspec.json.decode((data_dir / _FILE).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return cls()

    def write(self, data_dir: Path) -> None:
        """Raises OSError."""
        data_dir.mkdir(parents=True, exist_ok=True)
        temporary = data_dir / f"{_FILE}.new"
        temporary.write_bytes(msgspec.json.encode(self) + b"\n")
        temporary.replace(data_dir / _FILE)

    @property
    def is_repeated(self) -> bool:
        return self.count >= REPEATED

    def __str__(self) -> str:
        where = f" at {self.position}" if self.position else ""
        return f"the engine has ended {self.count} times in a row{where}, the last time {self.at}: {self.cause}"
