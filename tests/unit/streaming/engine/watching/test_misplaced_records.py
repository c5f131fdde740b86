"""streaming.engine.watching.misplaced_records: which records are checked, what is counted, and what people read."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import murmur2
from structlog.testing import capture_logs

from streaming.config.settings import Settings
from streaming.engine.intake.record_sizes import MOST_KEY_BYTES, RecordFacts
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.misplaced_records import (
    QUIET_S,
    SAMPLE,
    MisplacedRecords,
    PartitionerCheck,
    PartitionSample,
    right_partition,
    sample,
)

PARTITIONS = 4
KEYS = [f"pump-{number}".encode() for number in range(200)]
MESSAGES = Settings().topics.messages


def record(key: bytes | None, offset: int = 0, size_bytes: int = 100) -> RecordFacts:
    return RecordFacts(offset=offset, timestamp_ms=0, size_bytes=size_bytes, key=key)


def wrong_key(number: int) -> bytes:
    return next(key for key in KEYS if right_partition(key, PARTITIONS) != number)


def batch(ends: dict[int, int]) -> BatchProgress:
    return BatchProgress(batch_id=0, started="", duration_ms=0, end_offsets={MESSAGES: ends})


class Log:
    """A partition that has the same key everywhere. read: the ranges that were read."""

    def __init__(self, key: bytes | None, size_bytes: int = 100) -> None:
        self.read_ranges: list[tuple[int, int]] = []
        self.records_read = 0
        self._key = key
        self._size_bytes = size_bytes

    def read(self, topic: str, number: int, begin: int, end: int) -> Iterator[RecordFacts]:
        assert (topic, number) == (MESSAGES, 0)
        self.read_ranges.append((begin, end))
        for offset in range(begin, end):
            self.records_read += 1
            yield record(self._key, offset, self._size_bytes)


def check(tmp_path: Path, found: list[int], now_s: list[float] | None = None) -> PartitionerCheck:
    clock = [1_000.0] if now_s is None else now_s
    settings = Settings(engine={"data_dir": tmp_path})
    return PartitionerCheck(settings, PARTITIONS, on_found=found.append, now_s=lambda: clock[0])


@pytest.mark.parametrize("partitions", [1, 4, 7, 64])
def test_the_right_partition_is_the_one_of_librdkafka_and_java(partitions: int) -> None:
    assert [right_partition(key, partitions) for key in KEYS] == [murmur2(key, partitions) for key in KEYS]


def test_the_page_for_backends_has_partitions_to_compare_with() -> None:
    page = (Path(__file__).parents[5] / "docs" / "guides" / "kafka_clients.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^Check yours: with (\d+) partitions (.+)\.$", page, flags=re.MULTILINE)
    pairs = re.findall(r"`(.+?)` (?:is )?in (\d+)", line[1])
    assert len(pairs) == 3
    assert [(key, right_partition(key.encode(), int(line[0]))) for key, _ in pairs] == [(key, int(n)) for key, n in pairs]


def test_a_record_in_its_own_partition_is_right() -> None:
    records = [record(key) for key in KEYS if right_partition(key, PARTITIONS) == 2]
    assert sample(records, 2, PARTITIONS) == PartitionSample(len(records), [])


def test_a_record_in_another_partition_is_found_with_the_right_one() -> None:
    key = wrong_key(2)
    assert sample([record(key)], 2, PARTITIONS) == PartitionSample(1, [(key, right_partition(key, PARTITIONS))])


@pytest.mark.parametrize("key", [None, b"", b"x" * MOST_KEY_BYTES])
def test_a_record_without_a_client_id_as_its_key_may_be_anywhere(key: bytes | None) -> None:
    assert sample([record(key)], 0, 1_000) == PartitionSample(0, [])


def test_what_was_there_at_the_beginning_is_not_looked_at(tmp_path: Path) -> None:
    found: list[int] = []
    log, checking = Log(wrong_key(0)), check(tmp_path, found)
    checking.look(log.read)
    checking.observe(batch({0: 500}))
    checking.look(log.read)
    assert (log.read_ranges, found) == ([], [])


def test_only_the_newest_records_are_read_and_each_once(tmp_path: Path) -> None:
    found: list[int] = []
    log, checking = Log(wrong_key(0)), check(tmp_path, found)
    for end in (0, 10, 10, 5_000):
        checking.observe(batch({0: end}))
        checking.look(log.read)
    assert log.read_ranges == [(0, 10), (5_000 - SAMPLE, 5_000)]
    assert found == [10, SAMPLE]


def test_of_large_records_fewer_are_read(tmp_path: Path) -> None:
    found: list[int] = []
    log, checking = Log(wrong_key(0), size_bytes=100_000), check(tmp_path, found)
    for end in (0, 50):
        checking.observe(batch({0: end}))
        checking.look(log.read)
    assert log.records_read == 3


def test_a_wrong_partitioner_is_logged_once_with_what_to_do(tmp_path: Path) -> None:
    found: list[int] = []
    log, checking = Log(wrong_key(0)), check(tmp_path, found)
    with capture_logs() as logs:
        for end in (0, 10, 20):
            checking.observe(batch({0: end}))
            checking.look(log.read)
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("wrong_partitioner", "warning")
    assert "docs/guides/kafka_clients.md" in line["action"]
    assert line["examples"] == [f"{wrong_key(0).decode()} in 0 instead of {right_partition(wrong_key(0), PARTITIONS)}"]
    stored = MisplacedRecords.recent(tmp_path, 1_000.0)
    assert (stored.found, stored.checked) == (20, 20)


def test_a_count_ends_after_a_quiet_time_and_the_next_is_logged(tmp_path: Path) -> None:
    found: list[int] = []
    now_s = [1_000.0]
    log, checking = Log(wrong_key(0)), check(tmp_path, found, now_s)
    for end in (0, 10):
        checking.observe(batch({0: end}))
        checking.look(log.read)
    now_s[0] += QUIET_S
    assert MisplacedRecords.recent(tmp_path, now_s[0]) == MisplacedRecords()
    with capture_logs() as logs:
        checking.observe(batch({0: 15}))
        checking.look(log.read)
    assert len(logs) == 1
    assert MisplacedRecords.recent(tmp_path, now_s[0]).found == 5


def test_an_engine_that_begins_goes_on_with_the_count(tmp_path: Path) -> None:
    found: list[int] = []
    for _ in range(2):
        log, checking = Log(wrong_key(0)), check(tmp_path, found)
        for end in (0, 10):
            checking.observe(batch({0: end}))
            checking.look(log.read)
    assert MisplacedRecords.recent(tmp_path, 1_000.0).found == 20


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    found: list[int] = []
    (tmp_path / "misplaced.json.new").mkdir()
    log, checking = Log(wrong_key(0)), check(tmp_path, found)
    for end in (0, 10):
        checking.observe(batch({0: end}))
        checking.look(log.read)
    assert found == [10]


def test_people_read_counts_time_and_escaped_examples() -> None:
    misplaced = MisplacedRecords().with_more(0, PartitionSample(2_000, [(b"pump\x1b", 3)]), 3_600.0)
    assert str(misplaced) == "1 of 2,000 records checked since 01:00:00 UTC, for example pump\\x1b in 0 instead of 3"
