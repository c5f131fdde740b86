"""Stores in the data directory which messages sessions drop for connected clients. Read without Spark."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import structlog

from streaming.engine.data_file import DataFile
from streaming.engine.progress import BatchProgress

QUIET_S: Final = 300.0
"""The count ends when nothing was dropped for this long. A later drop begins a new one."""
EXAMPLES: Final = 3
_log: Final = structlog.get_logger(__name__)


class DroppedMessages(DataFile, frozen=True, kw_only=True):
    """Messages that were dropped without a pause of `QUIET_S`.

    Attributes:
        since_s, newest_s: Times of the first and the newest report, in seconds since 1970.
        counts: Messages by outcome.
        clients: Some of the clients, the newest last.
    """

    file: ClassVar = "drops.json"
    since_s: float = 0.0
    newest_s: float = 0.0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    clients: tuple[str, ...] = ()

    @classmethod
    def recent(cls, data_dir: Path, now_s: float) -> "DroppedMessages":
        """Returns what is dropped at this time; no counts if the newest drop is older than `QUIET_S`."""
        found = cls.read(data_dir)
        return found if now_s - found.newest_s < QUIET_S else cls()

    def with_more(self, batch: BatchProgress, now_s: float) -> "DroppedMessages":
        earlier = self if now_s - self.newest_s < QUIET_S else DroppedMessages(since_s=now_s)
        counts = dict(earlier.counts)
        for outcome, count in batch.dropped_connected.items():
            counts[outcome] = counts.get(outcome, 0) + count
        others = tuple(client for client in earlier.clients if client not in batch.dropped_for)
        return DroppedMessages(
            since_s=earlier.since_s, newest_s=now_s, counts=counts, clients=(*others, *batch.dropped_for)[-EXAMPLES:]
        )

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        """Returns the counts, times and clients for people."""
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.counts.items(), key=lambda one: -one[1]))
        since, newest = (datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S") for at_s in (self.since_s, self.newest_s))
        examples = f", for example for {', '.join(self.clients)}" if self.clients else ""
        return f"{counts}, since {since} UTC, the newest at {newest}{examples}"


class DropLog:
    """Writes what the micro-batches report. A file that cannot be written is left out: no session depends on it.

    Args:
        now_s: Returns Unix time in seconds.
    """

    def __init__(self, data_dir: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._data_dir = data_dir
        self._now_s = now_s
        self._written = DroppedMessages.read(data_dir)

    def observe(self, batch: BatchProgress) -> None:
        """Call it after each micro-batch."""
        if not batch.dropped_connected:
            return
        self._written = self._written.with_more(batch, self._now_s())
        try:
            self._written.write(self._data_dir)
        except OSError as error:
            _log.warning("drops_not_written", error=str(error), action="the metric dropped_connected counts them")
