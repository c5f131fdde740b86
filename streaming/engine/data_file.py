"""Stores small structures as JSON files in the data directory. They are read without Spark."""

from pathlib import Path
from typing import ClassVar, Self

import msgspec


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file; each field has a default.

    Attributes:
        file: Its name in the data directory.
    """

    file: ClassVar[str]

    @classmethod
    def read(cls, data_dir: Path) -> Self:
        """Returns the defaults if there is no readable file."""
        try:
            return msgspec.json.decode((data_dir / cls.file).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return cls()

    def write(self, data_dir: Path) -> None:
        """Replaces the file in one step. Raises OSError."""
        data_dir.mkdir(parents=True, exist_ok=True)
        temporary = data_dir / f"{self.file}.new"
        temporary.write_bytes(msgspec.json.encode(self) + b"\n")
        temporary.replace(data_dir / self.file)
