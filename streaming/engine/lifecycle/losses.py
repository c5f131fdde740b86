"""Stores in the data directory which records an engine has gone on without (accepted_loss.py). Read without Spark."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from streaming.engine.data_file import DataFile

if TYPE_CHECKING:
    from streaming.checkpoint_topics import GoneRecords


class Losses(DataFile, frozen=True, kw_only=True):
    """Losses that were accepted in a data directory. at: of the newest; ISO 8601, UTC. records: by topic, all together.

    newest: what was missing at the newest one, for people.
    """

    file: ClassVar = "losses.json"
    at: str = ""
    records: dict[str, int] = msgspec.field(default_factory=dict)
    newest: tuple[str, ...] = ()

    def with_more(self, gone: "Sequence[GoneRecords]", at: str) -> "Losses":
        records = dict(self.records)
        for one in gone:
            records[one.topic] = records.get(one.topic, 0) + one.count
        return Losses(at=at, records=records, newest=tuple(map(str, gone)))
