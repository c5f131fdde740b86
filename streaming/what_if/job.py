"""Answers a question of what-if: finds what is read, reads it, and has each client replayed (client_replay.py).

Steps:
1. find which offsets of messages, events and ledger are read: the compared period, and before it the time that rebuilds sessions;
2. read the records: a small log in this process (small_log.py), a larger one in a batch job of Spark (spark_log.py);
3. take the rows of micro-batches from the ledger (streaming/engine/batch_record.py); where they do not reach back to the first
   record, take the times of all activations too;
4. replay each client, and add up what was found.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from state.records.ledger import LedgerRow
from streaming.engine.batch_record import MICRO_BATCH
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.history.errors import NothingFound
from streaming.history.sources.kafka_ranges import CutReason, OffsetRange
from streaming.history.sources.kafka_reader import KafkaReader, reading
from streaming.history.sources.source import SourceLimits
from streaming.what_if.answer import WhatIfAnswer
from streaming.what_if.comparison import Comparison
from streaming.what_if.micro_batches import NEVER_MS, MicroBatches
from streaming.what_if.partition_replay import WhatIfTask
from streaming.what_if.small_log import read_small_log

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.engine.spark_options import SparkJars

PARTS: Final = 60
"""Parts of the period in the plot."""


class Log(Protocol):
    """The records of the ranges."""

    def batch_records(self) -> Iterable[bytes]:
        """Returns the records of the ledger with the rows of micro-batches."""

    def activation_times_ms(self) -> Iterable[int]:
        """Returns the times of all activations in the ledger."""

    def compare(self, task: WhatIfTask) -> Comparison:
        """Replays all clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The period that is compared, in ms since 1970.

    Attributes:
        since_ms: None = from the first record that Kafka has.
        warm_up_ms: How much of the log before `since_ms` rebuilds sessions that began earlier.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    warm_up_ms: int = 3_600_000


def what_if(
    present: "Settings",
    other: "Settings",
    period: Period,
    groups: Sequence[str],
    jars: "Callable[[], SparkJars]",
    say: Callable[[str], None],
) -> WhatIfAnswer:
    """Compares a period under two settings.

    Args:
        jars: Finds the jars if Spark is needed.
        say: Gets a line for each step.

    Raises:
        NothingFound: There is no log of that time, or no ledger.
        KafkaUnreachable: Kafka does not answer.
    """
    started_s = time.monotonic()
    with reading(present) as reader:
        ranges, partitions = _ranges(reader, present, period)
        say(f"reading {sum(one.count for one in ranges):,} records of Kafka")
        settings = pipeline_settings(present, commands_partitions=partitions)
        small = read_small_log(reader, ranges, settings)
    with _opened(small, present, ranges, settings, jars, say) as log:
        batches, is_recorded = _micro_batches(log, ranges, period)
        first_ms = period.since_ms if period.since_ms is not None else min(batches.times_ms)
        width_ms = max(1, -(-(batches.end_ms - first_ms + 1) // PARTS))
        task = WhatIfTask(
            present=settings,
            other=pipeline_settings(other, commands_partitions=partitions),
            batches=batches,
            since_ms=first_ms,
            is_whole=all(one.cut is CutReason.NOTHING for one in ranges if one.topic != present.topics.ledger),
            groups=groups,
            width_ms=width_ms,
        )
        say(f"replaying {len(batches.times_ms):,} micro-batches twice")
        found = log.compare(task)
    return WhatIfAnswer(
        comparison=found,
        since_ms=first_ms,
        until_ms=batches.end_ms,
        width_ms=width_ms,
        batches=sum(time_ms >= first_ms for time_ms in batches.times_ms),
        records=sum(one.count for one in ranges),
        is_recorded=is_recorded,
        took_s=time.monotonic() - started_s,
    )


def _ranges(reader: KafkaReader, settings: "Settings", period: Period) -> tuple[list[OffsetRange], int]:
    """Returns what is read (step 1), and how many partitions the commands have."""
    topics = settings.topics
    since_ms = None if period.since_ms is None else period.since_ms - period.warm_up_ms
    commands = reader.ranges([topics.commands], SourceLimits(max_records=0))
    limits = SourceLimits(since_ms=since_ms, max_records=0)
    return reader.ranges([topics.messages, topics.events, topics.ledger], limits), len(commands)


@contextmanager
def _opened(
    small: Log | None,
    present: "Settings",
    ranges: Sequence[OffsetRange],
    settings: PipelineSettings,
    jars: "Callable[[], SparkJars]",
    say: Callable[[str], None],
) -> Iterator[Log]:
    """Gives the log of step 2; None as `small` = Spark has to read it."""
    if small is not None:
        yield small
        return
    from streaming.what_if.spark_log import spark_log  # it takes a second

    with spark_log(present, ranges, settings, jars(), say) as log:
        yield log


def _micro_batches(log: Log, ranges: Sequence[OffsetRange], period: Period) -> tuple[MicroBatches, bool]:
    """Returns the micro-batches (step 3), and whether the engine had recorded all of them."""
    until_ms = NEVER_MS if period.until_ms is None else period.until_ms
    rows = [
        row
        for value in log.batch_records()
        for row in msgspec.json.decode(value, type=list[LedgerRow])
        if row.transition == MICRO_BATCH
    ]
    batches = MicroBatches.of(rows, until_ms=until_ms)
    topic_of_ledger = ranges[-1].topic
    uncovered = [
        one
        for one in ranges
        if one.topic != topic_of_ledger and one.count and not batches.covers((one.topic, one.partition), one.start)
    ]
    if uncovered:
        batches = MicroBatches.of(rows, log.activation_times_ms(), until_ms=until_ms)
    if not batches.times_ms:
        raise NothingFound(
            f"{topic_of_ledger} says nothing about this time: what-if needs the ledger (engine.ledger = true), and a period that "
            "Kafka still has (topics.retention)"
        )
    return batches, not uncovered
