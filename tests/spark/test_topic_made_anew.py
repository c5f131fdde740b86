"""`messages` is deleted and made anew, while its engine runs and while it does not: no new record is skipped in silence."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaAdminClient

from streaming.config.settings import Settings
from streaming.topics import ensure_topics
from tests.spark.child_engine import Engine, engine
from tests.spark.engine_topics import EngineTopics
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


def make_anew(settings: dict[str, Any], topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=settings["kafka"]["bootstrap_servers"])
    try:
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics(), f"{topic} is deleted")
    finally:
        admin.close()
    ensure_topics(Settings(**settings))


def send(topics: EngineTopics, name: str, count: int) -> set[str]:
    """Sends messages that end at once. Returns their ids."""
    ids = {f"{name}{number}" for number in range(count)}
    for message_id in sorted(ids):
        topics.send(message_id.encode(), b"c", ("expiration", b"1"))
    return ids


def await_receipts(topics: EngineTopics, ids: set[str]) -> None:
    def have_ended(records: list[ReadRecord]) -> bool:
        return ids <= {msgspec.json.decode(record.value or b"")["message_id"] for record in records}

    read_topic(topics.kafka, f"{topics.prefix}.receipts", have_ended)


@pytest.mark.promise("recreated-topic")
def test_no_record_of_a_topic_made_anew_is_skipped(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "made-anew")
    settings, messages = topics.settings(tmp_path), "made-anew.messages"
    with engine(settings) as first:
        await_receipts(topics, send(topics, "old", 20))
        make_anew(settings, messages)
        new = send(topics, "new", 30)
        said = first.await_failure()
    assert "TopicsReplaced" in said, said[-3_000:]
    assert f"{messages}: deleted and made anew" in said

    spark_log = tmp_path / "logs" / "spark.log"
    before, began_s = spark_log.stat().st_size, time.monotonic()
    said = Engine(settings).await_failure()
    print(f"refused after {time.monotonic() - began_s:.1f} s")
    assert f"{messages}: deleted and made anew" in said, said[-3_000:]
    assert "othing is lost" not in said
    assert "failOnDataLoss" not in said
    assert spark_log.stat().st_size == before, "Spark was not started"

    (tmp_path / "checkpoint" / "sessions").rename(tmp_path / "put-aside")
    with engine(settings) as second:
        await_receipts(topics, new)
        assert second.stop() == 0


def test_a_checkpoint_of_another_kafka_is_refused_at_once(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "another-kafka")
    settings = topics.settings(tmp_path)
    with engine(settings) as first:
        assert first.stop() == 0
    ids = tmp_path / "checkpoint" / "sessions" / "inflight.topics"
    known = msgspec.json.decode(ids.read_bytes())
    assert known["cluster"]
    assert all(known["topics"].values())
    ids.write_bytes(msgspec.json.encode(known | {"cluster": "the-other-one"}))
    said = Engine(settings).await_failure()
    assert "it was written with another Kafka (cluster the-other-one)" in said
    ids.unlink()  # as an older version leaves it
    with engine(settings) as second:
        assert second.stop() == 0
    assert msgspec.json.decode(ids.read_bytes()) == known
