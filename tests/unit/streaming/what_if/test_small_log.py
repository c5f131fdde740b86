"""A log that is read in this process is compared as one that Spark reads; tests/spark/test_small_log.py compares the cells."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from state.records.events import EVENTS_VERSION
from state.records.ledger import encode_ledger_rows
from state.records.record import NEWER_MARK
from streaming.engine.batch_record import NO_CLIENT
from streaming.engine.operator.cells import EVENTS
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.history.sources.kafka_ranges import CutReason, OffsetRange
from streaming.what_if import small_log
from streaming.what_if.micro_batches import MicroBatches
from streaming.what_if.partition_replay import PartitionReplay, WhatIfTask
from streaming.what_if.small_log import SmallLog, read_small_log
from tests.support.simulated_log import Connect, ScriptedDevice, Send, SimulatedLog, SimulatedSystem, Step

SETTINGS = PipelineSettings(commands_partitions=1)
LEDGER = "inflight.ledger"


@dataclass
class KafkaRecord:
    """A record of kafka-python."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = 0
    offset: int = 0
    timestamp: int = 0


@dataclass
class Reader:
    """Has records; the end raises `error`."""

    found: list[KafkaRecord] = field(default_factory=list)
    error: Exception | None = None

    def records(self, ranges: Sequence[OffsetRange], on_progress: Callable[[int, int], None]) -> Iterator[Any]:
        yield from self.found
        if self.error is not None:
            raise self.error


def read(*found: KafkaRecord, count: int = 1, error: Exception | None = None) -> SmallLog | None:
    ranges = [OffsetRange(topic=LEDGER, partition=0, start=0, end=count, cut=CutReason.NOTHING)]
    return read_small_log(Reader(list(found), error), ranges, SETTINGS)  # type: ignore[arg-type]


def kafka_records(log: SimulatedLog) -> list[KafkaRecord]:
    topics = {True: SETTINGS.topics.events, False: SETTINGS.topics.messages}
    records = [
        KafkaRecord(
            topic=topics[one.source == EVENTS],
            key=one.client_id.encode(),
            value=one.value,
            headers=[(header.key, header.value) for header in one.headers],
            partition=one.partition,
            offset=one.offset,
            timestamp=one.timestamp_ms,
        )
        for one in log.records
    ]
    records += [KafkaRecord(LEDGER, client_id.encode(), value, timestamp=at_ms) for client_id, at_ms, value in log.ledger]
    return [*records, KafkaRecord(LEDGER, NO_CLIENT.encode(), encode_ledger_rows(log.batches))]


def test_a_small_log_is_compared_as_its_cells_are() -> None:
    script: list[Step] = [*((at, Send()) for at in range(100, 2_100, 100)), (5_000, Connect()), (30_000, Send(qos=2))]
    log = SimulatedSystem(SETTINGS).run({"c": script, "d": script}, {"c": ScriptedDevice(), "d": ScriptedDevice()}, for_ms=60_000)
    small = read(*kafka_records(log))
    assert small is not None
    (batches,) = small.batch_records()
    assert batches == encode_ledger_rows(log.batches)
    assert {row.batch_ms for row in log.batches} <= set(small.activation_times_ms())
    task = WhatIfTask(present=SETTINGS, other=SETTINGS, batches=MicroBatches.of(log.batches), since_ms=0, is_whole=True)
    found = small.compare(task)
    assert found == PartitionReplay(task).compare(log.cells())
    assert (found.total().before, found.left_out) == ({"delivered": 42}, {})


def test_a_log_with_too_many_records_is_left_to_spark() -> None:
    assert read(count=small_log.MOST_RECORDS) is not None
    assert read(count=small_log.MOST_RECORDS + 1) is None


def test_a_log_with_too_many_bytes_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_log, "MOST_BYTES", 3)
    record = KafkaRecord(SETTINGS.topics.messages, b"c", b"xy")
    assert read(record) is not None
    assert read(record, record) is None


def test_what_only_spark_reads_is_left_to_spark() -> None:
    newer = KafkaRecord(SETTINGS.topics.events, b"c", bytes([EVENTS_VERSION + 1]) + NEWER_MARK)
    assert read(newer) is None
    assert read(error=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "name of a header")) is None
