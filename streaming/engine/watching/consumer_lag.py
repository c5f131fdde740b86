"""Asks Kafka itself how many records wait for the query: a query that hangs reports nothing.

A partition has two ends: the last stable offset, up to which the query may read, and the high watermark. What is between them is
held back by an open transaction.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from kafka import KafkaConsumer, TopicPartition

from streaming.background import KafkaPoller
from streaming.checkpoint_topics import by_topic
from streaming.config.settings import Settings
from streaming.engine.progress import BatchProgress
from streaming.spark_internals.checkpoint import Offsets

LagObserver: TypeAlias = Callable[[Mapping[str, int], Mapping[str, int]], None]

_ANSWER_S: Final = 10.0
"""An older answer says nothing about Kafka now."""
_ENDS_MS: Final = 2_000
"""After this the clients connect again. Those of kafka-python ask a former leader without a pause, and learn of no other one."""


class ConsumerLag(KafkaPoller):
    """Measures the backlog of the query every five seconds in a `with`, on a thread.

    Args:
        partitions: How many partitions of each topic the query reads.
        end: The offsets at which the query begins, as far as known.
        on_lag: Called after each poll with the waiting records by topic, and with those of them that open transactions hold back.
    """

    _unknown = "consumer_lag_unknown"

    def __init__(
        self,
        settings: Settings,
        partitions: Mapping[str, int],
        end: Offsets,
        *,
        on_lag: LagObserver = lambda lag, held: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
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
        with ExitStack() as undo:
            stable = KafkaConsumer(**self._options)
            undo.callback(_close, stable)
            newest = KafkaConsumer(**self._options | {"isolation_level": "read_uncommitted"})
            undo.pop_all()
        return stable, newest

    def _poll(self, client: Any) -> None:
        stable, newest = client
        # First the watermarks: what is confirmed between the two questions is not held back.
        watermarks = newest.end_offsets(self._partitions, timeout_ms=_ENDS_MS)
        ends = stable.end_offsets(self._partitions, timeout_ms=_ENDS_MS)
        self._answered_s = self._clock_s()
        later = {partition: max(offset, ends[partition]) for partition, offset in watermarks.items()}
        self._on_lag(waiting(later, self._end), waiting(watermarks, by_topic(ends)))

    def _close(self, client: Any) -> None:
        for consumer in client:
            _close(consumer)


def _close(consumer: Any) -> None:
    consumer.close(autocommit=False, timeout_ms=1_000)


def waiting(newest: Mapping[TopicPartition, int], end: Offsets) -> dict[str, int]:
    """Returns the waiting records by topic. An unknown end counts as read.

    Args:
        newest: The offsets after the last records.
    """
    found: dict[str, int] = {}
    for (topic, number), offset in newest.items():
        read = end.get(topic, {}).get(number, offset)
        found[topic] = found.get(topic, 0) + max(0, offset - read)
    return found
