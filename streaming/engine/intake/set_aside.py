"""Sets aside the records that Spark cannot read, so that the query goes on behind them (docs/decisions/0039).

Such a record is larger than what is taken in, or has a timestamp that Spark cannot hold. Spark needs several times the size of a
record in its heap before any column can be cut, and dies of one that is large enough, each time that it executes the micro-batch.
Spark reads every record of a micro-batch, so the only way is around them, by the offset log of the stopped query:

1. `shorten_plan`: the micro-batch that was planned and not committed ends before the first such record of each partition. The
   query executes it, and no other.
2. `pass_over`: where the position of a partition is such a record, it becomes a dead letter, and the position moves behind it.

Either step may be repeated after a kill: the dead letter is written before the position moves. A micro-batch that is planned
anew may emit something else under the sequence numbers of its first execution, so it gets a lineage of its own
(checkpoint_lineage.py).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import structlog

from state.dead_letters.refused_record import fault_of_size, fault_of_time, refuse_event, refuse_message, unread
from state.model import numbered_partition
from state.records.dead_letters import source_headers
from state.records.record import SinkRecord, accepted_at, position
from streaming.engine.intake.record_log import ReadRecords
from streaming.engine.intake.record_sizes import RecordFacts
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.to_records import to_records
from streaming.spark_internals.checkpoint import LoggedOffsets, Offsets

_GREATEST_MS: Final = (2**63 - 1) // 1_000
"""Spark holds a timestamp in microseconds, in 64 bits."""
_log: Final = structlog.get_logger(__name__)

Write = Callable[[Iterable[SinkRecord]], None]
"""Returns when Kafka has confirmed all records. Raises KafkaError."""


class SetAside:
    """The unreadable records of one checkpoint. All methods need a stopped query, and raise what their callables raise.

    Args:
        starting: Returns the first offsets of a checkpoint without a committed micro-batch.
    """

    def __init__(
        self,
        offsets: LoggedOffsets,
        reader: Callable[[], AbstractContextManager[ReadRecords]],
        write: Write,
        starting: Callable[[], Offsets],
    ) -> None:
        self._offsets = offsets
        self._reader = reader
        self._write = write
        self._starting = starting

    def shorten_plan(self, settings: PipelineSettings) -> bool:
        """Does step 1. Returns False if no micro-batch waits to be executed, or Spark can read all of its records."""
        if not self._offsets.is_planned():
            return False
        begins = self._offsets.committed() or self._starting()
        ends: dict[str, dict[int, int]] = {}
        with self._reader() as read:
            for topic, number, begin, end in _ranges(begins, self._offsets.planned()):
                for record in read(topic, number, begin, end):
                    if _fault(record, topic, number, settings):
                        ends.setdefault(topic, {})[number] = record.offset
                        break
        if ends:
            self._offsets.move(ends)
            _log.warning("micro_batch_planned_anew", ends_before=ends, action="the records there are set aside")
        return bool(ends)

    def pass_over(self, settings: PipelineSettings, ends: Offsets) -> int:
        """Does step 2. Returns the number of records set aside.

        Args:
            ends: The ends of the topics.
        """
        count, now_ms = 0, time.time_ns() // 1_000_000
        moved: dict[str, dict[int, int]] = {}
        with self._reader() as read:
            for topic, number, begin, end in _ranges(self._offsets.planned(), ends):
                for record in read(topic, number, begin, end):
                    fault = _fault(record, topic, number, settings)
                    if not fault:
                        break
                    self._write(_dead_letter(record, topic, number, fault, settings, now_ms))
                    _log.warning("record_set_aside", topic=topic, partition=number, offset=record.offset, detail=fault)
                    moved.setdefault(topic, {})[number] = record.offset + 1
                    count += 1
        if moved:
            self._offsets.move(moved)
        return count


def _ranges(begins: Offsets, ends: Offsets) -> Iterator[tuple[str, int, int, int]]:
    """Yields topic, partition, the first offset and the one after the last, where there are records."""
    for topic, by_number in sorted(ends.items()):
        for number, end in sorted(by_number.items()):
            begin = begins.get(topic, {}).get(number, 0)
            if begin < end:
                yield topic, number, begin, end


def _fault(record: RecordFacts, topic: str, number: int, settings: PipelineSettings) -> str:
    """Returns why Spark cannot read a record, for people; empty if it can."""
    limits = settings.limits
    is_event = topic == settings.topics.events
    max_bytes = limits.max_event_record_bytes if is_event else limits.max_message_record_bytes
    if record.size_bytes > max_bytes:
        return fault_of_size(topic, number, record.offset, size_bytes=record.size_bytes, max_bytes=max_bytes)
    if abs(record.timestamp_ms) > _GREATEST_MS:
        return fault_of_time(topic, number, record.offset, timestamp_ms=record.timestamp_ms)
    return ""


def _dead_letter(
    record: RecordFacts, topic: str, number: int, fault: str, settings: PipelineSettings, now_ms: int
) -> list[SinkRecord]:
    """Returns what the state operator returns for a record that reaches no session."""
    client_id = _client_id(record.key, settings.limits.max_client_id_bytes)
    is_event = topic == settings.topics.events
    numbered = numbered_partition(number, settings.events_generation if is_event else settings.messages_generation)
    message = unread(
        None,
        message_id=position(topic, numbered, record.offset),
        accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
    )
    refuse = refuse_event if is_event else refuse_message
    return to_records(
        refuse(message, client_id=client_id, detail=fault, now_ms=now_ms),
        client_id=client_id,
        now_ms=now_ms,
        settings=settings,
        extra_headers=tuple(source_headers(topic, None if client_id else record.key)),
    )


def _client_id(key: bytes | None, max_bytes: int) -> str:
    """Returns the client id of a record; empty for a key that is none."""
    if not key or len(key) > max_bytes:
        return ""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return ""
