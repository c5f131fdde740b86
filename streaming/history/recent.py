"""Reads the newest records of the ledger in Kafka: the newest messages of all clients, or the newest steps of one."""

import heapq
from collections import deque
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
class LedgerStep:
    """A row of the ledger.

    Attributes:
        message_id: None for what happened to the session itself.
    """

    message_id: str | None
    step: TraceStep


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentSteps:
    """Rows of the ledger, newest first.

    Attributes:
        source: Where they are from and how far back it reaches, for people.
    """

    steps: tuple[LedgerStep, ...]
    source: str


def newest_messages(settings: "Settings", *, max_records: int, most: int, on_progress: Callable[[int, int], None]) -> RecentSteps:
    """Returns the newest step of each of the newest messages. Raises KafkaUnreachable, NothingFound.

    Args:
        max_records: How many of the newest records are read.
        most: How many messages are returned.
    """
    newest: dict[tuple[str, str], tuple[int, LedgerStep]] = {}
    with reading(settings) as reader:
        ranges = reader.ranges([settings.topics.ledger], SourceLimits(max_records=max_records))
        for record in reader.records(ranges, on_progress):
            for row in plain_ledger_rows(record):
                if (message_id := row["message_id"]) is not None:
                    # The session's order. A device may answer before a resend that the session records before the answer.
                    found = row["batch_ms"], LedgerStep(message_id=message_id, step=ledger_step(row))
                    before = newest.setdefault((message_id, row["client_id"]), found)
                    if found[0] >= before[0]:
                        newest[message_id, row["client_id"]] = found
    steps = heapq.nlargest(most, (step for _, step in newest.values()), key=lambda found: found.step.time_ms)
    return RecentSteps(steps=tuple(steps), source=described(ranges))


def recent_steps(
    settings: "Settings", client_id: str, *, max_records: int, most: int, on_progress: Callable[[int, int], None]
) -> RecentSteps:
    """Reads the ledger of a client from its partition in Kafka. Raises KafkaUnreachable, NothingFound.

    Args:
        max_records: How many of the newest records are read.
        most: How many steps are returned.
    """
    with reading(settings) as reader:
        ranges = reader.ranges([settings.topics.ledger], SourceLimits(client_id=client_id, max_records=max_records))
        newest = deque(steps_of(reader.records(ranges, on_progress), client_id), maxlen=most)
    return RecentSteps(steps=tuple(reversed(newest)), source=described(ranges))


def steps_of(records: Iterable[KafkaRecord], client_id: str) -> Iterator[LedgerStep]:
    """Yields the client's steps in order, each once: a micro-batch that was executed again wrote its records twice."""
    key, seen = client_id.encode(), deque[bytes | None](maxlen=1_000)
    for record in records:
        if record.key == key and record.value not in seen:
            seen.append(record.value)
            for row in plain_ledger_rows(record):
                yield LedgerStep(message_id=row["message_id"], step=ledger_step(row))
