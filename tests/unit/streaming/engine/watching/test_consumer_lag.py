"""streaming.engine.watching.consumer_lag; tests/spark/test_watchdog.py has a real Kafka."""

from kafka import TopicPartition

from streaming.config.settings import Settings
from streaming.engine.watching.consumer_lag import ConsumerLag, waiting


def test_waiting_records_are_counted_by_topic() -> None:
    newest = {TopicPartition("m", 0): 10, TopicPartition("m", 1): 7, TopicPartition("e", 0): 3}
    assert waiting(newest, {"m": {0: 4, 1: 7}, "e": {0: 0}}) == {"m": 6, "e": 3}


def test_a_partition_with_an_unknown_end_has_nothing_waiting() -> None:
    newest = {TopicPartition("m", 0): 10, TopicPartition("m", 1): 2}
    assert waiting(newest, {"m": {1: 9}}) == {"m": 0}


def test_kafka_answers_until_it_has_not_for_ten_seconds() -> None:
    now_s = 100.0
    lag = ConsumerLag(Settings(), {"m": 1}, {}, clock_s=lambda: now_s)
    assert lag.kafka_answers()
    now_s += 10
    assert not lag.kafka_answers()
