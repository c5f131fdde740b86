"""Reads and writes DATA_DIR/answers.json, by which commands of the same user find the engine that runs on this data directory."""

import os
from pathlib import Path
from typing import Final, Self

import msgspec

_NAME: Final = "answers.json"


class AnswersAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file, which only its user can read.

    Attributes:
        port: The port on loopback.
        token: Whoever sends it may ask.
        checkpoint: The checkpoint of the sessions that are told.
    """

    port: int
    token: str
    checkpoint: str

    @classmethod
    def read(cls, data_dir: Path) -> Self | None:
        """Returns None if no engine has written it. An engine that was killed leaves its file, and does not answer."""
        try:
            return msgspec.json.decode((data_dir / _NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, data_dir: Path) -> None:
        """Replaces the file in one step. Raises OSError."""
        temporary = data_dir / f"{_NAME}.new"
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(self) + b"\n")
        temporary.replace(data_dir / _NAME)

    @staticmethod
    def remove(data_dir: Path) -> None:
        (data_dir / _NAME).unlink(missing_ok=True)
