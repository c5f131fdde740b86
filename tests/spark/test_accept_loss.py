"""Kafka deletes what a stopped engine has not read: it refuses to go on, and goes on with its sessions when it is told to."""

import re
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaAdminClient, TopicPartition

from state.records.ledger import LedgerRow
from streaming.engine.lifecycle.losses import Losses
from tests.spark.child_engine import Engine, engine
from tests.spark.engine_topics import EngineTopics
from tests.support.kafka_topics import read_topic
from tests.support.shared import SharedKafka

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


def delete_all(topics: EngineTopics, topic: str) -> None:
    """Deletes all records, as retention does."""
    admin = KafkaAdminClient(bootstrap_servers=topics.kafka)
    try:
        numbers = range(len(admin.describe_topics([topic])[0]["partitions"]))
        admin.delete_records({TopicPartition(topic, number): -1 for number in numbers})
    finally:
        admin.close()


def test_an_engine_goes_on_with_its_sessions_after_a_loss(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "lost")
    settings = topics.settings(tmp_path)
    with engine(settings) as first:
        topics.connect(1)
        topics.deliver(b"1", before=0)
        assert first.stop() == 0
    for payload in (b"lost-1", b"lost-2"):
        topics.send(payload)
    delete_all(topics, "lost.messages")
    said = Engine(settings).await_failure()
    assert "RecordsGone" in said
    assert "--accept-loss" in said
    with engine(settings, "accept-loss") as second:
        topics.deliver(b"2", before=1)  # the session is still connected
        assert second.stop() == 0
        assert "records_lost" in second.read_log()
    losses = Losses.read(tmp_path)
    assert losses.records == {"lost.messages": 2}
    (newest,) = losses.newest
    assert re.fullmatch(r"lost\.messages-\d from 1 to 3", newest)
    rows = [
        row
        for record in read_topic(topics.kafka, "lost.ledger", lambda found: any(one.key == b"" for one in found))
        for row in msgspec.json.decode(record.value or b"", type=list[LedgerRow])
    ]
    assert [(row.client_id, row.detail) for row in rows if row.transition == "lost"] == [("", newest)]
    with engine(settings) as third:
        topics.deliver(b"3", before=2)
        assert third.stop() == 0
