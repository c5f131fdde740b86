"""Lists the newest messages, by the newest records of the ledger in Kafka."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming.archive.cells import KafkaRecord
from streaming.archive.rows import plain_ledger_rows
from streaming.history.sources.kafka_ranges import described
from streaming.history.sources.kafka_reader import reading
from streaming.history.sources.source import SourceLimits
from streaming.history.trace import TraceStep, ledger_step

if TYPE_CHECKING:
    from streaming.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestMessages:
    """Messages with their newest step, newest first. source: where they are from and how far back it reaches, for people."""

    messages: tuple[tuple[str, TraceStep], ...]
    source: str


def newest_messages(
    settings: "Settings", *, max_records: int, most: int, on_progress: Callable[[int, int], None]
) -> NewestMessages:
    """Reads the newest records of the ledger. Raises KafkaUnreachable, NothingFound.

    Args:
        max_records: How many of the newest records are read.
        most: How many messages are returned.
    """
    with reading(settings) as reader:
        ranges = reader.ranges([settings.topics.ledger], SourceLimits(max_records=max_records))
        steps: dict[tuple[str, str], TraceStep] = {}
        for message_id, step in _steps_of(reader.records(ranges, on_progress)):
            before = steps.get((message_id, step.client_id))
            if before is None or step.time_ms >= before.time_ms:
                steps[message_id, step.client_id] = step
    newest = heapq.nlargest(most, steps.items(), key=lambda item: item[1].time_ms)
    return NewestMessages(messages=tuple((message_id, step) for (message_id, _), step in newest), source=described(ranges))


def _steps_of(records: Iterable[KafkaRecord]) -> Iterator[tuple[str, TraceStep]]:
    for record in records:
        for row in plain_ledger_rows(record):
            if row["message_id"] is not None:
                yield row["message_id"], ledger_step(row)
