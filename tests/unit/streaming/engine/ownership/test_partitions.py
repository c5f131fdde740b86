"""streaming.engine.ownership.partitions: what needs neither Kafka nor Spark. With both: tests/spark/test_added_partitions.py."""

import json
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from streaming import background
from streaming.checkpoint_topics import TopicIds
from streaming.config.errors import TopicsReplaced
from streaming.config.settings import Settings
from streaming.engine.errors import PartitionsChanged
from streaming.engine.ownership import partitions
from streaming.engine.ownership.partitions import (
    AddedPartitions,
    PartitionWatch,
    added_partitions,
    changed,
    record_partitions,
    recorded_partitions,
    watched_ids,
)
from tests.support.waiting import wait_until
from tests.unit.streaming.engine.memory_files import MemoryFiles

TOPICS = ("m", "e")
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"e":{"0":7}}\n{"m":{"0":5,"1":3}}'


def test_old_partitions_are_read_when_a_micro_batch_ends_at_their_end() -> None:
    added = AddedPartitions(old={"m": 2, "e": 1}, ends={"m": {0: 5, 1: 3}, "e": {0: 7}})
    assert not added.are_old_read({})
    assert not added.are_old_read({"m": {0: 5, 1: 2}, "e": {0: 7}})
    assert not added.are_old_read({"m": {0: 5, 1: 3}})
    assert added.are_old_read({"m": {0: 6, 1: 3}, "e": {0: 7}})


@pytest.mark.parametrize("now", [{"m": 4, "e": 2}, {"m": 4}, {}])
def test_the_same_number_and_an_unknown_topic_are_no_change(now: dict[str, int]) -> None:
    assert changed({"m": 4, "e": 2}, now) is None


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_partitions_is_reported_with_an_instruction(count: int) -> None:
    said = changed({"m": 4, "e": 2}, {"m": 4, "e": count})
    assert said is not None
    assert said.startswith(f"e has {count} partitions now, and had 2 when this engine started. It stops")
    assert "start it again" in said


def test_the_partitions_of_a_checkpoint_are_written_when_they_change() -> None:
    files = MemoryFiles()
    assert recorded_partitions(files, TOPICS) is None
    for counts in ({"m": 4, "e": 2}, {"e": 2, "m": 4}, {"m": 5, "e": 2}):
        record_partitions(files, counts)
        assert recorded_partitions(files, TOPICS) == counts
    assert files.written == ["inflight.partitions"] * 2


@pytest.mark.parametrize("torn", [b"", b'{"m": 4, "e', b"\0\0", b"\xff"])
def test_a_torn_file_of_partitions_is_remade_from_the_offset_log(torn: bytes) -> None:
    files = MemoryFiles(found={"inflight.partitions": torn, "offsets/3": OFFSETS})
    files.planned(3, committed=False)
    assert recorded_partitions(files, TOPICS) == {"e": 1, "m": 2}
    assert added_partitions(files, Settings(), {"m": 2, "e": 1}) is None
    with pytest.raises(PartitionsChanged, match="m: fewer partitions than the checkpoint /checkpoint/ has read"):
        added_partitions(files, Settings(), {"m": 1, "e": 1})
    record_partitions(files, {"m": 2, "e": 1})
    assert json.loads(files.found["inflight.partitions"]) == {"m": 2, "e": 1}


def test_a_failed_watch_is_logged_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [AttributeError("a mistake of the client"), {"m": 4}, {"m": 5}]

    class Admin:
        def __init__(self, **options: Any) -> None: ...

        def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, Exception):
                raise answer
            return [{"name": name, "partitions": [{}] * count} for name, count in answer.items()]

        def close(self) -> None: ...

    def has_seen() -> bool:
        try:
            watch.check()
        except PartitionsChanged:
            return True
        return False

    monkeypatch.setattr(partitions, "KafkaAdminClient", Admin)
    monkeypatch.setattr(background, "_POLL_S", 0.01)
    with capture_logs() as logs, PartitionWatch(Settings(), {"m": 4}, TopicIds(topics={"m": "one"})) as watch:
        wait_until(has_seen, "the change")
    assert [(line["event"], line["log_level"]) for line in logs] == [("partitions_unknown", "warning")]
    assert "a mistake of the client" in logs[0]["error"]


def test_a_topic_that_is_made_anew_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        def __init__(self, **options: Any) -> None: ...

        def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
            assert topics == ["m", "ledger"]
            return [
                {"name": "m", "partitions": [{}] * 4, "topic_id": UUID(int=1)},
                {"name": "ledger", "partitions": [{}], "topic_id": UUID(int=3)},
            ]

        def close(self) -> None: ...

    monkeypatch.setattr(partitions, "KafkaAdminClient", Admin)
    monkeypatch.setattr(background, "_POLL_S", 0.01)
    ids = TopicIds(topics={"m": str(UUID(int=1)), "ledger": str(UUID(int=2))})
    with PartitionWatch(Settings(), {"m": 4}, ids) as watch:

        def error() -> str:
            try:
                watch.check()
            except TopicsReplaced as stopped:
                return str(stopped)
            return ""

        assert wait_until(error, "the watch sees the new topic").startswith("ledger: deleted and made anew while the engine ran.")


@pytest.mark.parametrize("is_routing", [False, True])
def test_topics_that_an_engine_writes_at_its_start_are_watched(is_routing: bool) -> None:
    settings = Settings(routing={"enabled": is_routing})
    topics = settings.topics
    read = {topics.messages, topics.events, topics.commands, topics.leases}
    ids = TopicIds(topics=dict.fromkeys((*read, topics.routes, topics.subscriptions, topics.ledger), "1"))
    written = {topics.routes, topics.subscriptions} if is_routing else {topics.routes}
    assert watched_ids(settings, ids).topics.keys() == read | written
