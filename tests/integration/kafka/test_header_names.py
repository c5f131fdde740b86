"""A header whose name is not UTF-8, on a real broker: Kafka takes it, and confluent-kafka gives none of the record's headers."""

from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from sinks.kafka.group_consumer import ConsumedRecord
from state.errors import UnreadableRecord
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S

TOPIC = "header-names"


class NotUtf8(str):
    """kafka-python writes what this says."""

    __slots__ = ()

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        return b"\xff\xfe"


def test_it_costs_only_its_own_record(kafka: SharedKafka) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(TOPIC, 1, 1)])
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)) as producer:
        for name in ("before", NotUtf8(), "after"):
            producer.send(TOPIC, b"value", key=b"key", headers=[(name, b"1")]).get(DEADLINE_S)
    with closing(
        Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": TOPIC, "enable.auto.commit": False})
    ) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        before, bad, after = (ConsumedRecord(message) for message in consumer.consume(3, DEADLINE_S))
    assert (before.headers, after.headers) == ([("before", b"1")], [("after", b"1")])
    assert (bad.key, bad.value) == (b"key", b"value")
    for _ in range(100):  # the interpreter looks less closely at a call that it knows: an error was left behind
        assert before.headers == [("before", b"1")]
    with pytest.raises(UnreadableRecord):
        _ = bad.headers
