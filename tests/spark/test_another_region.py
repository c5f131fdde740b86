"""Topics that were mirrored to another Kafka, and an engine there (docs/operate/disasters.md). A plain copier mirrors them.

MirrorMaker itself is not tried: it would need Kafka Connect. The copier keeps names, partitions, keys, values and headers, as
MirrorMaker does with IdentityReplicationPolicy. Offsets and the id of the Kafka are others.
"""

from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaProducer

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from streaming.config.settings import Settings
from streaming.topics import ensure_topics
from tests.spark.child_engine import Engine, engine
from tests.spark.engine_topics import EngineTopics
from tests.support.kafka_topics import read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
PREFIX = "region"


def mirror(source: str, target: str) -> None:
    settings = Settings(kafka={"bootstrap_servers": target}, topics={"prefix": PREFIX})
    report = ensure_topics(settings)
    with closing(KafkaProducer(bootstrap_servers=target, acks="all")) as producer:
        producer.send(settings.topics.receipts, b"{}", key=b"nobody", partition=0).get(30)  # so that offsets differ, as they do
        for topic in report.topics:
            for record in read_topic(source, topic.name):
                producer.send(topic.name, record.value, record.key, list(record.headers), record.partition)
        producer.flush(30)


def delivered(topics: EngineTopics) -> Counter[str]:
    receipts = [msgspec.json.decode(record.value or b"") for record in read_topic(topics.kafka, f"{PREFIX}.receipts")]
    return Counter(receipt["message_id"] for receipt in receipts if receipt.get("outcome") == "delivered")


@pytest.mark.promise("another-kafka")
def test_an_engine_in_another_region_loses_no_message_and_repeats_some(kafka: SharedKafka, tmp_path: Path) -> None:
    here = EngineTopics(kafka, PREFIX)
    settings = here.settings(tmp_path / "here")
    with engine(settings) as first:
        here.connect(1)
        here.deliver(b"before", before=0)
        here.send(b"waiting")
        here.sent(2)
        first.kill()
    here.send(b"unread")  # nobody has read it here
    with EmbeddedKafka(tmp_path / "there", jars=ensure_jars()) as other:
        there = EngineTopics(SharedKafka(other.bootstrap_servers), PREFIX)
        mirror(here.kafka, there.kafka)
        said = Engine(there.settings(tmp_path / "here")).await_failure()
        assert "TopicsReplaced" in said, "the old checkpoint does not fit"
        with engine(there.settings(tmp_path / "new")) as second:
            there.connect(2)
            answered: set[int] = set()

            def all_answered() -> bool:
                for number, one in enumerate(there.sent(0)):
                    if one.connection_id == 2 and number not in answered:
                        answered.add(number)
                        there.acknowledge(one)
                return {"before", "waiting", "unread"} <= delivered(there).keys()

            wait_until(all_answered, "what was mirrored is delivered")
            assert second.stop() == 0
        times = delivered(there)
        assert (times["waiting"], times["unread"]) == (1, 1)
        assert times["before"] == 2, "the new session does not know that it was delivered"
