"""The engine's check of partitions against a real Kafka: a backend with another client's default partitioner is found."""

import itertools
from pathlib import Path

import pytest
from confluent_kafka import Producer

from streaming.config.settings import Settings
from streaming.engine.intake.record_log import record_reader
from streaming.engine.kafka_access import end_offsets
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.misplaced_records import MisplacedRecords, PartitionerCheck
from streaming.topics import ensure_topics
from tests.support.shared import SharedKafka

pytestmark = pytest.mark.integration

_numbers = itertools.count(1)
CLIENTS = [f"pump-{number}" for number in range(40)]


@pytest.mark.promise("other-partitioner")
@pytest.mark.parametrize(
    ("partitioner", "is_right"),
    [
        ("murmur2_random", True),
        ("murmur2", True),
        ("consistent_random", False),  # librdkafka's default, CRC32
        ("fnv1a_random", False),  # sarama's default
    ],
)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_backend_with_another_partitioner_is_found(
    kafka: SharedKafka, tmp_path: Path, partitioner: str, is_right: bool, codec: str
) -> None:
    settings = Settings(
        kafka={"bootstrap_servers": kafka.bootstrap_servers},
        topics={"prefix": f"partitioner-{next(_numbers)}"},
        engine={"data_dir": tmp_path},
    )
    ensure_topics(settings)
    messages, found = settings.topics.messages, list[int]()
    checking = PartitionerCheck(settings, settings.topics.partitions.messages, on_found=found.append)

    def look() -> None:
        known = {messages: dict.fromkeys(range(settings.topics.partitions.messages), 0)}
        checking.observe(BatchProgress(batch_id=0, started="", duration_ms=0, end_offsets=end_offsets(settings, known)))
        with record_reader(settings.kafka.client_options()) as read:
            checking.look(read)

    look()
    backend = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": partitioner, "linger.ms": 50, "compression.type": codec}
    )
    for client in CLIENTS:
        backend.produce(messages, b"now", key=client, headers=[("mqtt-topic", b"t")])
    backend.produce(messages, b"now", headers=[("mqtt-topic", b"t")])  # names nobody: it may be anywhere
    assert backend.flush(30) == 0
    look()
    if is_right:
        assert found == []
        assert MisplacedRecords.read(tmp_path) == MisplacedRecords()
    else:
        stored = MisplacedRecords.read(tmp_path)
        assert sum(found) == stored.found > len(CLIENTS) / 2
        assert stored.checked == len(CLIENTS)
