"""The raw batches of a topic are read through the private parts of kafka-python, in every codec of Kafka."""

import uuid

import confluent_kafka
import pytest

from streaming.engine.intake.record_log import record_reader
from tests.integration.kafka.test_codecs import CODECS
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka


@pytest.mark.parametrize("codec", CODECS)
def test_a_range_of_the_log_gives_size_and_key_of_each_record(kafka: SharedKafka, codec: str) -> None:
    topic = f"record-log-{uuid.uuid4().hex[:8]}"
    create_topics(kafka.bootstrap_servers, topic, partitions=2)
    config = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "message.max.bytes": 4_000_000}
    config["enable.idempotence"] = True  # on a busy machine a request may be repeated
    producer = confluent_kafka.Producer(config)
    for _ in range(3):  # batches
        for number in range(10):
            producer.produce(topic, bytes(number * 100_000), b"key-%d" % number, partition=1)
        producer.flush()
    with record_reader({"bootstrap_servers": kafka.bootstrap_servers}) as read:
        found = list(read(topic, 1, 5, 25))
        assert list(read(topic, 1, 7, 7)) == []
        assert [record.offset for record in read(topic, 1, 29, 30)] == [29], "a reader reads several ranges"
    assert [record.offset for record in found] == list(range(5, 25))
    assert [record.key for record in found] == [b"key-%d" % (number % 10) for number in range(5, 25)]
    assert all(0 < record.size_bytes - record.offset % 10 * 100_000 < 100 for record in found)
