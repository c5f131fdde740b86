"""Replays the clients of one partition of the job, which come one after the other, in a Python worker."""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from state.errors import UnreadableRecord
from state.events import DropRequested, Event, RestoreRequested
from state.model import ClientId, MessageId
from streaming.engine.operator.cells import SourceRecord, decode_source_record, record_order
from streaming.engine.operator.pipeline import PipelineSettings, SettingsOfClients
from streaming.engine.operator.session_operator import UNADDRESSED
from streaming.engine.operator.to_events import source_topic, to_events
from streaming.what_if.client_replay import ClientReplay, LoggedActivation, RunResult
from streaming.what_if.comparison import OTHERS, Comparison, Example, LeftOut
from streaming.what_if.micro_batches import MicroBatches

if TYPE_CHECKING:
    import pyarrow as pa

LEDGER: Final = 2
"""The `source` of a cell with a record of the ledger, besides those of the engine's cells."""


class _LedgerRow(msgspec.Struct):
    """The part of a ledger row that the replay needs."""

    batch_ms: int
    transition: str
    message_id: str = ""
    outcome: str = ""


_decode_rows: Final = msgspec.json.Decoder(list[_LedgerRow]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfTask:
    """The task of each Python worker.

    Attributes:
        present, other: The settings that were in force, and the others.
        since_ms: The compared period begins here.
        is_whole: The log was read from its first record on, so no session can have begun earlier.
        groups: Patterns of client ids; the first match counts.
        width_ms: Length of a part of the period, for the plot.
    """

    present: PipelineSettings
    other: PipelineSettings
    batches: MicroBatches
    since_ms: int
    is_whole: bool
    groups: Sequence[str] = ()
    width_ms: int = 60_000


class PartitionReplay:
    """The function of a partition for `mapInArrow`: rows (client_id, record), sorted by client, to one row with a Comparison."""

    def __init__(self, task: WhatIfTask) -> None:
        self._task = task

    def __call__(self, frames: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        pairs = (pair for frame in frames for pair in zip(frame.column(0).to_pylist(), frame.column(1).to_pylist(), strict=True))
        found = self.compare(
            (client_id, (cell for _, cell in cells)) for client_id, cells in groupby(pairs, lambda pair: pair[0])
        )
        yield pa.RecordBatch.from_pydict({"comparison": [msgspec.json.encode(found)]})

    def compare(self, clients: "Iterable[tuple[ClientId, Iterable[bytes]]]") -> Comparison:
        """Returns the comparison of all clients of the partition."""
        task, found = self._task, Comparison()
        present, other = SettingsOfClients(task.present).of, SettingsOfClients(task.other).of
        patterns = [(pattern, re.compile(fnmatch.translate(pattern))) for pattern in task.groups]
        for client_id, cells in clients:
            if client_id == UNADDRESSED:
                continue
            group = next((pattern for pattern, expression in patterns if expression.match(client_id)), OTHERS)
            log = ClientLog(cells, task)
            replay = ClientReplay(client_id, log.activations, task.batches, log.times_ms, since_ms=task.since_ms)
            try:
                before = replay.real(present(client_id))
                if (unlike := log.first_difference(client_id, before)) is not None:
                    found.leave_out(LeftOut.NOT_REPRODUCED if task.is_whole else LeftOut.BEGUN_BEFORE, unlike)
                    continue
                after = replay.other(other(client_id))
            except Exception:  # noqa: BLE001 - such a session is quarantined in reality
                found.leave_out(LeftOut.FAILED)
                continue
            found.compare(group, client_id, before, after)
            found.count_flow(before, after, since_ms=task.since_ms, width_ms=task.width_ms)
        return found


class ClientLog:
    """The log of one client: its activations, and what the ledger says of them."""

    def __init__(self, cells: Iterable[bytes], task: WhatIfTask) -> None:
        by_batch: defaultdict[int, list[SourceRecord]] = defaultdict(list)
        ledger: set[bytes] = set()
        for cell in cells:
            record = decode_source_record(cell)
            if record.source == LEDGER:
                ledger.add(record.value or b"")  # a copy of a record has the same bytes
                continue
            place = (source_topic(record, task.present), record.partition)
            at_ms = task.batches.time_of(place, record.offset, record.timestamp_ms)
            if at_ms is not None:
                by_batch[at_ms].append(record)
        self.activations = [LoggedActivation(at_ms, _events(by_batch[at_ms], at_ms, task.present)) for at_ms in sorted(by_batch)]
        self.times_ms: set[int] = set()
        self._outcomes: defaultdict[MessageId, list[str]] = defaultdict(list)
        for value in ledger:
            for row in _decode_rows(value):
                if row.batch_ms <= task.batches.end_ms:
                    self.times_ms.add(row.batch_ms)
                    if row.transition == "finished" and row.batch_ms >= task.since_ms:
                        self._outcomes[row.message_id].append(row.outcome)

    def first_difference(self, client_id: ClientId, replayed: RunResult) -> Example | None:
        """Returns a message that ended otherwise in the replay than the ledger says; None = there is none."""
        for message_id in {**self._outcomes, **replayed.outcomes}:
            said = sorted(self._outcomes.get(message_id, ()))
            found = replayed.outcomes.get(message_id, [])
            if said != found:
                before, after = " + ".join(said), " + ".join(found)
                return Example(client_id=client_id, message_id=message_id, before=before, after=after)
        return None


def _events(records: list[SourceRecord], at_ms: int, settings: PipelineSettings) -> list[Event]:
    """Returns the events of an activation, in the order in which the operator gives them to the session."""
    events: list[Event] = []
    for record in sorted(records, key=record_order):
        try:
            events += [
                event
                for event in to_events(record, settings, now_ms=at_ms)
                if not isinstance(event, RestoreRequested | DropRequested)
            ]
        except UnreadableRecord:
            continue  # it is a dead letter that no session reads
    return events
