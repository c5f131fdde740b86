"""Notes the micro-batches of a run while it lasts, and says where the engine stood still between them."""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from streaming.engine.progress import BatchProgress, recent_progress
from trials.faults.account.facts import Outage

STANDSTILL_S = 10.0
"""Twice the pause of an engine with nothing to do."""
_LOOK_S = 5.0
_LOOKED_AT_BYTES = 256 * 1024


class MicroBatches:
    """directory: the data of the engine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, BatchProgress] = {}

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Notes the micro-batches at the end of the file: an engine starts a new file when one is large."""
        for batch in recent_progress(self._directory, limit_bytes=_LOOKED_AT_BYTES):
            self._seen[batch.started] = batch

    def standstills(self) -> list[Outage]:
        return standstills(self._seen.values())


def standstills(batches: Iterable[BatchProgress]) -> list[Outage]:
    """Returns the times longer than STANDSTILL_S from the end of one micro-batch to the end of the next.

    Each begins with the start of the first one, because what came after that was not read by it. A micro-batch that a fault
    has interrupted is not among those reported.
    """
    spans = sorted((began_s, began_s + batch.duration_ms / 1_000) for batch in batches for began_s in (_started_s(batch),))
    return [
        Outage(began_s=began_s, ended_s=following_ended_s)
        for (began_s, ended_s), (_, following_ended_s) in pairwise(spans)
        if following_ended_s - ended_s > STANDSTILL_S
    ]


def _started_s(batch: BatchProgress) -> float:
    return datetime.fromisoformat(batch.started).timestamp()
