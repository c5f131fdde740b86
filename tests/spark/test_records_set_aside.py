"""Records that Spark cannot read do not stop the engine: each becomes a dead letter without its bytes, and the others go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from tests.spark.child_engine import engine
from tests.spark.engine_topics import EngineTopics
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka

BOMB_BYTES = 200 << 20
"""More than a heap of 512 MiB can take in: the consumer holds a record twice, and Spark copies it."""
LAST_MS = 2**63 - 1


class HostileTopics(EngineTopics):
    """Topics with a producer that writes what Inflight's own never does."""

    def __init__(self, kafka: SharedKafka, prefix: str) -> None:
        super().__init__(kafka, prefix)
        self.hostile = KafkaProducer(bootstrap_servers=self.kafka, acks="all", compression_type="gzip", max_request_size=1 << 30)

    def send_hostile(self, topic: str, value: bytes, *, timestamp_ms: int | None = None) -> tuple[str, int, int]:
        """Returns topic, partition and offset of the record."""
        name = f"{self.prefix}.{topic}"
        sent = self.hostile.send(name, value, key=b"h", headers=[("mqtt-topic", b"t")], timestamp_ms=timestamp_ms).get(60)
        return name, sent.partition, sent.offset

    def allow_any_time(self, topic: str) -> None:
        config = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(LAST_MS)}
        admin = KafkaAdminClient(bootstrap_servers=self.kafka)
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, f"{self.prefix}.{topic}", config)])
        admin.close()

    def dead_letters(self, count: int) -> dict[tuple[str, int, int], ReadRecord]:
        """Returns the dead letters by the position of the record, as soon as there are `count`."""
        found = read_topic(self.kafka, f"{self.prefix}.dead-letters", lambda records: len(records) >= count, within_s=120)
        ids = [dict(record.headers)["message-id"].decode().rsplit("-", 2) for record in found]
        return {
            (topic, int(partition), int(offset)): record for (topic, partition, offset), record in zip(ids, found, strict=True)
        }


@pytest.fixture
def topics(kafka: SharedKafka, request: pytest.FixtureRequest) -> Iterator[HostileTopics]:
    made = HostileTopics(kafka, f"aside-{request.node.name[5:35].strip('_').replace('_', '-')}")
    yield made
    made.hostile.close()


def check(letter: ReadRecord, position: tuple[str, int, int], says: str) -> None:
    topic, partition, offset = position
    detail = dict(letter.headers)["x-detail"].decode()
    assert f"offset {offset} in partition {partition} of {topic}" in detail
    assert says in detail
    assert (letter.key, letter.value) == (b"h", b"")


@pytest.mark.faults
@pytest.mark.promise("record-too-large")
def test_a_record_that_no_heap_can_hold_becomes_a_dead_letter(topics: HostileTopics, tmp_path: Path) -> None:
    with engine(topics.settings(tmp_path)) as running:
        topics.connect(1)
        topics.deliver(b"before", before=0)
        bombs = [topics.send_hostile(topic, bytes(BOMB_BYTES)) for topic in ("messages", "events")]
        letters = topics.dead_letters(2)
        topics.deliver(b"after", before=1)
        assert running.stop() == 0
    assert sorted(letters) == sorted(bombs)
    for bomb in bombs:
        check(letters[bomb], bomb, " 2097152")
    topics.outcomes(3)


@pytest.mark.servers
def test_timestamps_at_the_ends_of_64_bits_become_dead_letters(topics: HostileTopics, tmp_path: Path) -> None:
    with engine(topics.settings(tmp_path)) as running:
        topics.allow_any_time("messages")
        topics.connect(1)
        topics.deliver(b"before", before=0)
        late = topics.send_hostile("messages", b"late", timestamp_ms=LAST_MS)
        topics.deliver(b"after", before=1)
        assert running.stop() == 0
    check(topics.dead_letters(1)[late], late, str(LAST_MS))
