"""Stores in the data directory which records an engine has gone on without (accepted_loss.py). Read without Spark."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from streaming.engine.data_file import DataFile

if TYPE_CHECKING:
    from streaming.checkpoint_topics import GoneRecords


class Losses(DataFile, frozen=True, kw_only=True):
    """Losses that were accepted in a data directory.

    Attributes:
        at: The time of the newest loss; ISO 8601, UTC.
        records: The number of lost records by topic, of all losses together.
        newest: What was missing at the newest loss, for people.
        uncounted: Topics of which more may be missing, because they were recreated.
    """

    file: ClassVar = "losses.json"
    at: str = ""
    records: dict[str, int] = msgspec.field(default_factory=dict)
    newest: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    def with_more(self, gone: "Sequence[GoneRecords]", at: str) -> "Losses":
        records = dict(self.records)
        for one in gone:
            records[one.topic] = records.get(one.topic, 0) + one.count
        uncounted = {*self.uncounted, *(one.topic for one in gone if one.is_recreated)}
        return Losses(at=at, records=records, newest=tuple(map(str, gone)), uncounted=tuple(sorted(uncounted)))

    def __str__(self) -> str:
        """Returns the sums for people; empty if nothing was lost."""
        return ", ".join(
            f"an unknown number of {topic} (at least {count:,})" if topic in self.uncounted else f"{count:,} of {topic}"
            for topic, count in self.records.items()
        )
