"""Records that Spark cannot read: the plan ends before them, they become dead letters, and the position moves behind them."""

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import pytest
from structlog.testing import capture_logs

from state.records.record import SinkRecord
from state.settings import RecordLimits
from streaming.engine.intake.record_sizes import RecordFacts
from streaming.engine.intake.set_aside import SetAside
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.spark_internals.checkpoint import Offsets

LIMITS = RecordLimits()
SETTINGS = PipelineSettings(commands_partitions=1, limits=LIMITS)
MESSAGES, EVENTS = SETTINGS.topics.messages, SETTINGS.topics.events
MOST, MOST_EVENT = LIMITS.max_message_record_bytes, LIMITS.max_event_record_bytes
LAST_MS = (2**63 - 1) // 1_000


@dataclass
class Log:
    """Checkpoint and topics. begin: None = nothing is committed. planned: where the newest micro-batch ends."""

    records: dict[tuple[str, int], list[RecordFacts]]
    planned_offsets: dict[str, dict[int, int]]
    begin: Offsets | None = None
    planned: bool = True
    written: list[SinkRecord] = field(default_factory=list)
    moves: list[Offsets] = field(default_factory=list)

    def is_planned(self) -> bool:
        return self.planned

    def committed(self) -> Offsets:
        return self.begin or {}

    def planned_(self) -> Offsets:
        return self.planned_offsets

    def move(self, ends: Offsets) -> None:
        self.moves.append(ends)
        for topic, by_number in ends.items():
            self.planned_offsets[topic] |= by_number

    def read(self, topic: str, number: int, begin: int, end: int) -> Iterator[RecordFacts]:
        return (record for record in self.records.get((topic, number), ()) if begin <= record.offset < end)

    def write(self, records: Iterable[SinkRecord]) -> None:
        self.written += records


class LogOffsets:
    """The offset log of a `Log`."""

    def __init__(self, log: Log) -> None:
        self.is_planned, self.committed, self.planned, self.move = log.is_planned, log.committed, log.planned_, log.move


def set_aside(log: Log, starting: Offsets | None = None) -> SetAside:
    return SetAside(LogOffsets(log), partial(nullcontext, log.read), log.write, lambda: starting or {})  # type: ignore[arg-type]


def record(offset: int, size_bytes: int = 100, timestamp_ms: int = 1_000, key: bytes | None = b"c") -> RecordFacts:
    return RecordFacts(offset, timestamp_ms, size_bytes, key)


def of(log: Log, topic: str) -> list[SinkRecord]:
    return [written for written in log.written if written.topic == topic]


@pytest.mark.parametrize(
    ("topic", "bad"),
    [
        (MESSAGES, record(7, MOST + 1)),
        (EVENTS, record(7, MOST_EVENT + 1)),
        (MESSAGES, record(7, timestamp_ms=LAST_MS + 1)),
        (EVENTS, record(7, timestamp_ms=-LAST_MS - 1)),
    ],
)
def test_a_plan_ends_before_the_first_record_that_spark_cannot_read(topic: str, bad: RecordFacts) -> None:
    log = Log({(topic, 1): [record(5), bad, record(8), record(9, MOST_EVENT + 1)]}, {topic: {0: 3, 1: 10}}, {topic: {0: 3, 1: 5}})
    assert set_aside(log).shorten_plan(SETTINGS)
    assert log.planned_offsets == {topic: {0: 3, 1: 7}}
    assert log.written == []


@pytest.mark.parametrize(
    ("topic", "good"), [(MESSAGES, record(7, MOST)), (EVENTS, record(7, MOST_EVENT)), (MESSAGES, record(7, timestamp_ms=LAST_MS))]
)
def test_a_plan_with_readable_records_stays_as_it_is(topic: str, good: RecordFacts) -> None:
    log = Log({(topic, 0): [good]}, {topic: {0: 10}}, {topic: {0: 0}})
    assert not set_aside(log).shorten_plan(SETTINGS)
    assert log.moves == []


def test_records_that_were_read_or_are_not_planned_do_not_count() -> None:
    log = Log({(MESSAGES, 0): [record(1, MOST + 1), record(2), record(3, MOST + 1)]}, {MESSAGES: {0: 3}}, {MESSAGES: {0: 2}})
    assert not set_aside(log).shorten_plan(SETTINGS)
    log.planned, log.begin = False, None
    assert not set_aside(log).shorten_plan(SETTINGS)


def test_the_first_plan_of_a_checkpoint_begins_where_the_query_began() -> None:
    log = Log({(MESSAGES, 0): [record(1, MOST + 1), record(2)]}, {MESSAGES: {0: 3}})
    assert not set_aside(log, {MESSAGES: {0: 2}}).shorten_plan(SETTINGS)
    assert set_aside(log, {MESSAGES: {0: 1}}).shorten_plan(SETTINGS)


def test_the_position_moves_behind_neighbouring_records_and_no_farther() -> None:
    log = Log({(MESSAGES, 0): [record(5, MOST + 1), record(6, MOST + 2), record(7), record(8, MOST + 1)]}, {MESSAGES: {0: 5}})
    with capture_logs() as logs:
        assert set_aside(log).pass_over(SETTINGS, {MESSAGES: {0: 9}}) == 2
    assert log.planned_offsets == {MESSAGES: {0: 7}}
    assert [line["offset"] for line in logs if line["event"] == "record_set_aside"] == [5, 6]
    assert set_aside(log).pass_over(SETTINGS, {MESSAGES: {0: 9}}) == 0


def test_a_message_that_is_set_aside_has_its_outcome_without_its_bytes() -> None:
    log = Log({(MESSAGES, 3): [record(5, MOST + 1)]}, {MESSAGES: {3: 5}})
    set_aside(log).pass_over(SETTINGS, {MESSAGES: {3: 6}})
    (letter,), (receipt,), (ledger,) = (
        of(log, topic) for topic in ("inflight.dead-letters", "inflight.receipts", "inflight.ledger")
    )
    headers = {header.key: header.value or b"" for header in letter.headers or ()}
    assert (letter.key, letter.value) == (b"c", b"")
    assert headers["message-id"] == b"inflight.messages-3-5"
    assert headers["x-source-topic"] == b"inflight.messages"
    assert b"offset 5 in partition 3 of inflight.messages has %d bytes" % (MOST + 1) in headers["x-detail"]
    assert json.loads(receipt.value or b"")["outcome"] == "invalid"
    assert ledger.key == b"c"


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"k" * 1_025])
def test_a_record_without_a_client_keeps_its_key(key: bytes | None) -> None:
    log = Log({(EVENTS, 0): [record(5, timestamp_ms=LAST_MS + 1, key=key)]}, {EVENTS: {0: 5}})
    set_aside(log).pass_over(SETTINGS, {EVENTS: {0: 6}})
    (letter,) = of(log, "inflight.dead-letters")
    headers = {header.key: header.value for header in letter.headers or ()}
    assert (letter.key, headers.get("x-source-key")) == (b"", None if key is None else key[:1_024])
    assert of(log, "inflight.receipts") == []


def test_the_dead_letter_is_written_before_the_position_moves() -> None:
    log = Log({(MESSAGES, 0): [record(5, MOST + 1)]}, {MESSAGES: {0: 5}})

    def fail(records: Iterable[SinkRecord]) -> None:
        raise OSError("Kafka is away")

    aside = SetAside(LogOffsets(log), partial(nullcontext, log.read), fail, dict)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="away"):
        aside.pass_over(SETTINGS, {MESSAGES: {0: 6}})
    assert log.moves == []
