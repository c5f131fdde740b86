"""The engine's reader of wake-ups, with a real broker."""

import time
from collections.abc import Iterator

import pytest
from kafka import KafkaProducer

from streaming.engine.pacing.wake_ups import WakeUpReader
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S, wait_until

TOPIC = "wake-up-reader"


@pytest.fixture
def producer(kafka: SharedKafka) -> Iterator[KafkaProducer]:
    create_topics(kafka.bootstrap_servers, TOPIC)
    made = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
    yield made
    made.close()


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def test_it_hears_of_each_wake_up_once_it_reads_the_topic(kafka: SharedKafka, producer: KafkaProducer) -> None:
    producer.send(TOPIC, b"").get(DEADLINE_S)  # an old one
    with WakeUpReader({"bootstrap_servers": kafka.bootstrap_servers}, TOPIC, lambda: True) as reader:
        assert not reader.is_known
        assert reader.wait(now_ms(), DEADLINE_S), "nothing is known"
        reader.start()
        wait_until(lambda: reader.is_known, "the topic is read")
        assert not reader.wait(now_ms(), 0.3)
        for _ in range(2):
            before_ms = now_ms()
            producer.send(TOPIC, b"").get(DEADLINE_S)
            assert reader.wait(before_ms - 1, DEADLINE_S)
            assert reader.since_ms >= before_ms


def test_it_knows_nothing_if_one_process_sends_none_or_kafka_is_away(kafka: SharedKafka, producer: KafkaProducer) -> None:
    all_send = True
    with WakeUpReader({"bootstrap_servers": kafka.bootstrap_servers}, TOPIC, lambda: all_send) as reader:
        reader.start()
        wait_until(lambda: reader.is_known, "the topic is read")
        all_send = False
        assert not reader.is_known
    assert reader.wait(now_ms(), DEADLINE_S), "it has stopped"
    with WakeUpReader({"bootstrap_servers": "127.0.0.1:1"}, TOPIC, lambda: True) as reader:
        reader.start()
        assert reader.wait(now_ms(), DEADLINE_S)
        assert not reader.is_known
