"""Reads a small log of what-if in this process, without Spark, whose start takes ten times as long as the replay.

It makes the cells that streaming/engine/query.py makes of Kafka's records; tests/spark/test_small_log.py compares both.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from state.model import ClientId, numbered_partition
from state.records.events import EVENTS_VERSION, WAKE_UP_KEY
from state.records.record import NEWER_MARK, Header
from state.records.routing import MAX_RECIPIENTS, RECIPIENT_PREFIX
from streaming.engine.batch_record import NO_CLIENT
from streaming.engine.operator.cells import EVENTS, MESSAGES, SourceRecord
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import UNADDRESSED
from streaming.history.sources.kafka_ranges import OffsetRange
from streaming.history.sources.kafka_reader import KafkaReader
from streaming.what_if.comparison import Comparison
from streaming.what_if.partition_replay import LEDGER, PartitionReplay, WhatIfTask

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

MOST_RECORDS: Final = 100_000
MOST_BYTES: Final = 64 << 20
"""More would be quicker with Spark, which has several processes, and would not fit in memory."""
_HEADER_BYTES: Final = 16
"""Counted for a header beside its name and value, as the engine's query counts it."""
_TIME: Final = re.compile(rb'"batch_ms":(\d+)')


class SmallLog:
    """The records of the ranges, in memory."""

    def __init__(self) -> None:
        self._cells: defaultdict[ClientId, list[bytes]] = defaultdict(list)
        self._batches: list[bytes] = []
        self._times_ms: set[int] = set()

    def add(self, client_id: ClientId, record: SourceRecord) -> None:
        self._cells[client_id].append(msgspec.json.encode(record))

    def add_ledger(self, record: Any) -> None:
        value = record.value or b""
        self._times_ms.update(map(int, _TIME.findall(value)))
        if record.key == NO_CLIENT.encode():
            self._batches.append(value)
        elif record.key is not None:
            found = SourceRecord(LEDGER, record.partition, record.offset, record.timestamp, (), value)
            self.add(record.key.decode(errors="replace"), found)

    def batch_records(self) -> list[bytes]:
        return self._batches

    def activation_times_ms(self) -> set[int]:
        return self._times_ms

    def compare(self, task: WhatIfTask) -> Comparison:
        return PartitionReplay(task).compare(sorted(self._cells.items()))


def read_small_log(reader: KafkaReader, ranges: Sequence[OffsetRange], settings: PipelineSettings) -> SmallLog | None:
    """Returns the records of the ranges; None = Spark has to read them: they are too many or too large, or one is in a form that
    stops the engine's query.

    Raises KafkaError.
    """
    if sum(one.count for one in ranges) > MOST_RECORDS:
        return None
    log, read_bytes = SmallLog(), 0
    try:
        for record in reader.records(ranges, lambda read, total: None):
            read_bytes += len(record.value or b"") + _size_bytes(record.headers or ())
            if read_bytes > MOST_BYTES:
                return None
            if record.topic not in (settings.topics.messages, settings.topics.events):
                log.add_ledger(record)
            elif _is_newer(record, settings):
                return None
            else:
                for client_id, found in source_records_of(record, settings):
                    log.add(client_id, found)
    except UnicodeDecodeError:  # kafka-python cannot read the name of a header that Spark can
        return None
    return log


def source_records_of(record: Any, settings: PipelineSettings) -> Iterator[tuple[ClientId, SourceRecord]]:
    """Yields the client and the cell's content of each recipient of a record of messages or events, as the engine's query does.

    Args:
        record: Of kafka-python.
    """
    limits, is_event = settings.limits, record.topic == settings.topics.events
    if is_event and record.key == WAKE_UP_KEY:
        return
    largest = limits.max_event_record_bytes if is_event else limits.max_message_record_bytes
    generation = settings.events_generation if is_event else settings.messages_generation
    for key, headers, recipient in _for_each_recipient(record, is_event=is_event):
        client_id = _client_id(key, limits.max_client_id_bytes)
        size = len(key or b"") + len(record.value or b"") + _size_bytes(headers)
        fits = size <= largest
        unaddressed = None if client_id is not None or key is None else key if fits else key[: limits.max_client_id_bytes]
        yield (
            UNADDRESSED if client_id is None else client_id,
            SourceRecord(
                source=EVENTS if is_event else MESSAGES,
                partition=numbered_partition(record.partition, generation),
                offset=record.offset,
                timestamp_ms=record.timestamp,
                headers=tuple(Header(name, value) for name, value in headers) if fits else (),
                value=record.value if fits else None,
                key=unaddressed,
                recipient=recipient,
                bytes_left_out=0 if fits else size,
            ),
        )


def _for_each_recipient(record: Any, *, is_event: bool) -> Iterable[tuple[bytes | None, Headers, bytes | None]]:
    headers: Headers = record.headers or ()
    if record.key is None and not is_event:
        named = [one for one in headers if one[0].startswith(RECIPIENT_PREFIX)]
        if named and len(named) <= MAX_RECIPIENTS:
            others = [one for one in headers if not one[0].startswith(RECIPIENT_PREFIX)]
            return [(name[len(RECIPIENT_PREFIX) :].encode(), others, value or b"") for name, value in named]
    return [(record.key, headers, None)]


def _client_id(key: bytes | None, max_bytes: int) -> ClientId | None:
    """Returns None for a key that is no client id: none, an empty, a too long, or a non-UTF-8 one."""
    if key is None or not 1 <= len(key) <= max_bytes:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _size_bytes(headers: Headers) -> int:
    return sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)


def _is_newer(record: Any, settings: PipelineSettings) -> bool:
    value = record.value or b""
    is_ours = record.topic == settings.topics.events and value[1:].startswith(NEWER_MARK)
    return settings.stop_at_newer_events and is_ours and value[0] > EVENTS_VERSION
