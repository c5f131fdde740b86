"""Asks Kafka itself how many records wait for the query: a query that hangs reports nothing."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition

from streaming.config.settings import Settings
from streaming.engine.background import KafkaPoller
from streaming.engine.progress import BatchProgress
from streaming.spark_internals.checkpoint import Offsets

_ANSWER_S: Final = 10.0
"""An older answer says nothing about Kafka now."""


class ConsumerLag(KafkaPoller):
    """Polls every five seconds in a `with`, on a thread."""

    _unknown = "consumer_lag_unknown"

    def __init__(
        self,
        settings: Settings,
        partitions: Mapping[str, int],
        end: Offsets,
        *,
        on_lag: Callable[[Mapping[str, int]], None] = lambda lag: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """partitions: by topic, how many the query reads. end: where it begins, as far as known.

        on_lag: called after each poll with the waiting records by topic, without those of open transactions.
        """
        super().__init__("inflight-consumer-lag")
        self._options: dict[str, Any] = {
            **settings.kafka.client_options(),
            "client_id": "inflight-engine-lag",
            "group_id": None,
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }
        self._partitions = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
        self._end = end
        self._on_lag = on_lag
        self._clock_s = clock_s
        self._answered_s = clock_s()

    def observe(self, batch: BatchProgress) -> None:
        """Call it after each micro-batch, from any thread."""
        self._end = batch.end_offsets

    def kafka_answers(self) -> bool:
        """Returns True if Kafka has answered lately. Any thread may call it."""
        return self._clock_s() - self._answered_s < _ANSWER_S

    def _connect(self) -> Any:
        return KafkaConsumer(**self._options)

    def _poll(self, client: Any) -> None:
        newest = client.end_offsets(self._partitions)
        self._answered_s = self._clock_s()
        self._on_lag(waiting(newest, self._end))

    def _close(self, client: Any) -> None:
        client.close(autocommit=False, timeout_ms=1_000)


def waiting(newest: Mapping[TopicPartition, int], end: Offsets) -> dict[str, int]:
    """Returns the waiting records by topic. newest: the offsets after the last records. An unknown end counts as read."""
    found: dict[str, int] = {}
    for (topic, number), offset in newest.items():
        read = end.get(topic, {}).get(number, offset)
        found[topic] = found.get(topic, 0) + max(0, offset - read)
    return found
