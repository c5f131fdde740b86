"""Stores in the data directory which records an engine has gone on without (accepted_loss.py). Read without Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

if TYPE_CHECKING:
    from streaming.checkpoint_topics import GoneRecords

_FILE: Final = "losses.json"


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """Losses that were accepted in a data directory. at: of the newest; ISO 8601, UTC. records: by topic, all together.

    newest: what was missing at the newest one, for people.
    """

    at: str = ""
    records: dict[str, int] = {}
    newest: tuple[str, ...] = ()

    @classmethod
    def read(cls, data_dir: Path) -> Self:
        """Returns no losses if there is no readable file."""
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

    def with_more(self, gone: "Sequence[GoneRecords]", at: str) -> "Losses":
        records = dict(self.records)
        for one in gone:
            records[one.topic] = records.get(one.topic, 0) + one.count
        return Losses(at=at, records=records, newest=tuple(map(str, gone)))
