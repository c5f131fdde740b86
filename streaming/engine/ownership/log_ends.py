"""Where the partitions of topics begin and end in Kafka at this moment."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings

Partitions = Mapping[str, Iterable[int]]
"""By topic."""


def oldest_offsets(settings: Settings, partitions: Partitions) -> dict[str, dict[int, int]]:
    """Of the oldest record that is left, or the next one. Raises KafkaUnreachable."""
    return _asked(settings, partitions, lambda consumer, asked: consumer.beginning_offsets(asked))


def end_offsets(settings: Settings, partitions: Partitions) -> dict[str, dict[int, int]]:
    """Behind the last record that may be read: of a transaction that is committed. Raises KafkaUnreachable."""
    return _asked(settings, partitions, lambda consumer, asked: consumer.end_offsets(asked))


def _asked(
    settings: Settings, partitions: Partitions, ask: Callable[[Any, list[TopicPartition]], Mapping[TopicPartition, int]]
) -> dict[str, dict[int, int]]:
    consumer: Any = None
    try:
        consumer = KafkaConsumer(
            **settings.kafka.client_options() | {"group_id": None, "isolation_level": "read_committed", "metrics_enabled": False}
        )
        found = ask(consumer, [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers])
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
    finally:
        if consumer is not None:
            consumer.close()
    return {topic: {number: found[TopicPartition(topic, number)] for number in numbers} for topic, numbers in partitions.items()}
