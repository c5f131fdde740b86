"""streaming.checkpoint_topics: what needs no Kafka. With Kafka and engines: tests/spark/test_topic_made_anew.py."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from structlog.testing import capture_logs

from streaming import checkpoint_topics
from streaming.checkpoint_topics import (
    CheckpointUse,
    TopicBounds,
    TopicIds,
    check_checkpoint_topics,
    count_recreated,
    gone_records,
    record_checkpoint_topics,
    recorded_generations,
    recreated_topics,
    replaced_topics,
)
from streaming.config.errors import DamagedCheckpoint, RecordsGone, TopicsReplaced
from streaming.config.settings import Settings
from streaming.spark_internals.checkpoint import Offsets
from streaming.topics import ActualTopic, TopicReport
from tests.unit.streaming.engine.memory_files import MemoryFiles

READ = {"e": {0: 7}, "m": {0: 6, 1: 3}}
IDS = {"e": "id-of-e", "m": "id-of-m"}
USE = CheckpointUse(lost="the sessions", cure="Do this.")


def report(ids: Mapping[str, str], *, cluster: str = "here", partitions: int = 2) -> TopicReport:
    topics = tuple(
        ActualTopic(name=name, partitions=partitions, replication_factor=1, configs={}, topic_id=topic_id)
        for name, topic_id in ids.items()
    )
    return TopicReport(topics=topics, cluster_id=cluster)


def checkpoint(*, committed: bool = True) -> MemoryFiles:
    """Micro-batch 3 was planned last. The ids of the topics are recorded."""
    files = MemoryFiles(found={"offsets/2": b'v1\n{}\n{"e":{"0":5}}\n{"m":{"0":5,"1":3}}'})
    files.found["offsets/3"] = b'v1\n{}\n{"e":{"0":7}}\n{"m":{"0":6,"1":3}}'
    files.planned(3, committed=committed)
    record_checkpoint_topics(files, report(IDS), READ)
    return files


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Offsets]:
    """Both ends of Kafka's partitions; at first what the checkpoint has read is all there is."""
    found: dict[str, Offsets] = {"beginnings": {}, "ends": READ}

    def bounds_of(settings: Settings, asked: Offsets) -> TopicBounds:
        return TopicBounds(
            **{side: {topic: of_topic for topic, of_topic in all_.items() if topic in asked} for side, all_ in found.items()}
        )

    monkeypatch.setattr(checkpoint_topics, "topic_bounds", bounds_of)
    return found


def check(files: MemoryFiles, found: TopicReport | None = None) -> None:
    check_checkpoint_topics(files, Settings(), found or report(IDS), USE)


def refusal(files: MemoryFiles, found: TopicReport | None = None) -> str:
    """Returns the text of the refused start, which changes nothing in the checkpoint."""
    before = dict(files.found)
    with pytest.raises(TopicsReplaced) as refused:
        check(files, found)
    assert files.found == before
    text = str(refused.value)
    assert text.endswith("Do this.")
    assert "othing is lost" not in text
    return text


def test_the_topics_that_a_checkpoint_has_read_fit_it(bounds: dict[str, Offsets]) -> None:
    check(checkpoint())
    check(checkpoint(committed=False))
    bounds["ends"] = {"e": {0: 7}, "m": {0: 9, 1: 3}}
    check(checkpoint())


@pytest.mark.promise("recreated-topic")
def test_a_topic_that_was_made_anew_is_named_with_its_offsets(bounds: dict[str, Offsets]) -> None:
    bounds["ends"] = {"e": {0: 7}, "m": {0: 250, 1: 250}}  # more than was read: only the id tells
    said = refusal(checkpoint(), report(IDS | {"m": "another"}))
    assert "m: deleted and made anew (its id was id-of-m, and is another)" in said
    assert "these offsets: 0: 6, 1: 3" in said
    assert "e: deleted" not in said


def test_a_checkpoint_of_another_kafka_names_both_clusters(bounds: dict[str, Offsets]) -> None:
    said = refusal(checkpoint(), report({"e": "x", "m": "y"}, cluster="there"))
    assert "written with another Kafka (cluster here); 127.0.0.1:9092 is cluster there" in said.replace("localhost", "127.0.0.1")
    assert "set kafka.bootstrap_servers" in said


def test_topics_of_another_prefix_are_not_read_by_these_offsets(bounds: dict[str, Offsets]) -> None:
    said = refusal(checkpoint(), report({"e": "id-of-e", "other.messages": "z"}))
    assert "m: the checkpoint has read it, and the configuration does not name it" in said


def test_fewer_partitions_than_were_read_are_a_topic_made_anew(bounds: dict[str, Offsets]) -> None:
    files = checkpoint()
    del files.found["inflight.topics"]
    assert "m: made anew: it has 1 partitions, and the checkpoint has read 2" in refusal(files, report(IDS, partitions=1))


@pytest.mark.parametrize(("recorded", "cause"), [(True, "it is the same topic, so Kafka"), (False, "it was made anew, or Kafka")])
def test_an_end_before_what_was_read_stops_the_start(bounds: dict[str, Offsets], recorded: bool, cause: str) -> None:
    files = checkpoint()
    if not recorded:
        del files.found["inflight.topics"]
    bounds["ends"] = {"e": {0: 7}, "m": {0: 5, 1: 3}}
    said = refusal(files)
    assert "m-0 ends at 5, and was read up to 6" in said
    assert cause in said


@pytest.mark.parametrize(("committed", "first"), [(True, 6), (False, 5)])
@pytest.mark.promise("restored-checkpoint")
def test_a_start_without_records_that_were_not_read_is_refused(bounds: dict[str, Offsets], committed: bool, first: int) -> None:
    bounds.update(beginnings={"m": {0: 9, 1: 3}}, ends={"e": {0: 9}, "m": {0: 9, 1: 9}})
    with pytest.raises(RecordsGone, match=rf"(?s)has not read:\n  m-0 from {first} to 9\n.*gone for the sessions.*Do this\.$"):
        check(checkpoint(committed=committed))


def test_a_loss_that_is_accepted_does_not_stop_the_start(bounds: dict[str, Offsets]) -> None:
    bounds.update(beginnings={"e": {0: 0}, "m": {0: 9, 1: 3}}, ends={"e": {0: 9}, "m": {0: 9, 1: 9}})
    files = checkpoint()
    with pytest.raises(RecordsGone, match=r"Do that\. Or: Do this\.$"):
        check_checkpoint_topics(files, Settings(), report(IDS), replace(USE, accept="Do that."))
    check_checkpoint_topics(files, Settings(), report(IDS), replace(USE, is_loss_accepted=True))
    (gone,) = gone_records(files, Settings(), report(IDS))
    assert (str(gone), gone.count, gone.count_text) == ("m-0 from 6 to 9", 3, "3")
    assert gone_records(MemoryFiles(), Settings(), report(IDS)) == []


def test_a_recreated_topic_is_a_loss_that_can_be_accepted(bounds: dict[str, Offsets]) -> None:
    files, recreated = checkpoint(committed=False), report(IDS | {"m": "another"}, partitions=3)
    with pytest.raises(TopicsReplaced, match=r"(?s)m: deleted and made anew.*Do that\. Or: Do this\.$"):
        check_checkpoint_topics(files, Settings(), recreated, replace(USE, accept="Do that."))
    bounds.update(beginnings={"e": {0: 0}, "m": {0: 0, 1: 2, 2: 0}}, ends={"e": {0: 9}, "m": {0: 1, 1: 2, 2: 0}})
    check_checkpoint_topics(files, Settings(), recreated, replace(USE, is_loss_accepted=True))
    assert recreated_topics(files, Settings(), recreated) == {"m": {0: 0, 1: 2, 2: 0}}
    assert recreated_topics(files, Settings(), report(IDS)) == {}
    assert [str(one) for one in gone_records(files, Settings(), recreated)] == [
        "m-0 from 5 on, in the deleted topic (unknown, at least 1)",
        "m-1 from 3 on, in the deleted topic (unknown)",
        "m-1 from 0 to 2",
    ]


def test_a_loss_of_all_topics_can_be_accepted(bounds: dict[str, Offsets]) -> None:
    files, recreated = checkpoint(), report({"e": "new", "m": "new"})
    bounds.update(beginnings={"e": {0: 0, 1: 0}, "m": {0: 0, 1: 0}}, ends={})
    check_checkpoint_topics(files, Settings(), recreated, replace(USE, is_loss_accepted=True))
    assert [one.topic for one in gone_records(files, Settings(), recreated)] == ["e", "m", "m"]


@pytest.mark.parametrize("cluster", ["there", "here"])
def test_another_kafka_and_a_checkpoint_without_sessions_are_no_loss(bounds: dict[str, Offsets], cluster: str) -> None:
    """The address may be wrong; and without a committed micro-batch there is nothing to go on with."""
    files = checkpoint(committed=cluster == "there")
    if cluster == "here":
        files.found = {name: data for name, data in files.found.items() if name != "offsets/2"}
    with pytest.raises(TopicsReplaced, match=r"not changed\. Do this\.$"):
        check_checkpoint_topics(
            files,
            Settings(),
            report({"e": "x", "m": "y"}, cluster=cluster),
            replace(USE, accept="Do that.", is_loss_accepted=True),
        )


def test_generations_count_how_often_a_topic_was_recreated() -> None:
    files = checkpoint()
    assert recorded_generations(files) == {}
    count_recreated(files, ["m"])
    count_recreated(files, ["m", "e"])
    assert recorded_generations(files) == {"m": 2, "e": 1}


@pytest.mark.parametrize("data", [b"", b'{"m":', b"\xff", b"[]"])
def test_damaged_generations_stop_the_start(bounds: dict[str, Offsets], data: bytes) -> None:
    files = checkpoint()
    files.found["inflight.generations"] = data
    with pytest.raises(DamagedCheckpoint, match=r"inflight\.generations is damaged: .*Put back a copy"):
        check(files)


def test_a_new_checkpoint_fits_all_topics(bounds: dict[str, Offsets]) -> None:
    bounds.update(beginnings={"m": {0: 9}}, ends={})
    files = MemoryFiles()
    check(files, report({}))
    files.found["inflight.topics"] = msgspec.json.encode(TopicIds(cluster="there", topics={"m": "old"}))
    check(files)


@pytest.mark.parametrize("data", [None, b"", b'{"cluster":"he', b"\xff", b"[]"])
def test_a_checkpoint_without_ids_gets_them_at_its_first_start(bounds: dict[str, Offsets], data: bytes | None) -> None:
    files = checkpoint()
    del files.found["inflight.topics"]
    if data is not None:
        files.found["inflight.topics"] = data
    with capture_logs() as logs:
        check(files, report({"e": "1", "m": "2"}))
        record_checkpoint_topics(files, report({"e": "1", "m": "2", "other": "3"}), READ)
    assert "checkpoint_topics_recorded" in [line["event"] for line in logs]
    assert msgspec.json.decode(files.found["inflight.topics"]) == {"cluster": "here", "topics": {"e": "1", "m": "2"}}
    assert "made anew" in refusal(files)


def test_ids_are_written_only_when_they_change() -> None:
    files = checkpoint()
    record_checkpoint_topics(files, report(IDS), READ)
    assert files.written == ["inflight.topics"]


def test_brokers_without_topic_ids_are_taken_as_the_same(bounds: dict[str, Offsets]) -> None:
    check(checkpoint(), report({"e": "", "m": ""}, cluster=""))
    assert replaced_topics(TopicIds(topics={"m": ""}), TopicIds(topics={"m": "new"})) == []
    assert replaced_topics(TopicIds(topics={"m": "old"}), TopicIds()) == []
