"""Says in `inflight.throttle` which partitions of publications wait, so that whoever publishes to them waits too.

It has a producer of its own, made for the first wait: what Kafka does not take here costs no routed record. A lost record costs
little, because it is repeated while the partition waits, and holds for seconds only (state/records/throttle.py).
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client
from sinks.log_throttle import LogThrottle
from sinks.routing.log_ends import Partition
from state.records.throttle import PARTITION_REPEATED_S, encode_throttle, partition_key

_log: Final = structlog.get_logger(__name__)
_TIMEOUT_MS: Final = 3_000
_FLUSH_S: Final = 1.0
_REASON: Final = "publications of this partition wait for a client that is connected and behind"


class WaitAnnouncer:
    """Writes the records of partitions that begin to wait, wait on, or have waited. One thread calls all methods.

    Args:
        now_ms: Returns the brokers' time, in ms since 1970.
        new_producer: Makes the producer.
    """

    def __init__(
        self,
        host: HostSettings,
        topic: str,
        now_ms: Callable[[], int],
        *,
        new_producer: Callable[[HostSettings], Any] | None = None,
    ) -> None:
        self._host = host
        self._topic = topic
        self._now_ms = now_ms
        self._new_producer = new_producer or _producer
        self._client: Any = None
        self._said: dict[Partition, tuple[int, float]] = {}
        """By partition that was said to wait, since when, and when to say it again."""
        self._failures = LogThrottle(_log.warning, "wait_not_announced", "more_waits_not_announced")

    def announce(self, waiting: Collection[Partition], now_s: float) -> None:
        """Says which partitions wait now. Call it often.

        Args:
            now_s: Seconds of a monotonic clock.
        """
        if not waiting and not self._said:
            return
        for partition in [each for each in self._said if each not in waiting]:
            del self._said[partition]
            self._write(partition, None)
        for partition in waiting:
            since_ms, again_s = self._said.get(partition, (self._now_ms(), now_s))
            if now_s >= again_s:
                self._said[partition] = since_ms, now_s + PARTITION_REPEATED_S
                self._write(partition, encode_throttle(_REASON, since_ms, is_progressing=True))
        if self._client is not None:
            self._client.poll(0)

    def close(self) -> None:
        """Says that no partition waits here any more."""
        self.announce((), time.monotonic())
        if self._client is not None:
            self._client.flush(_FLUSH_S)

    def _write(self, partition: Partition, value: bytes | None) -> None:
        try:
            self._client = self._client or self._new_producer(self._host)
            self._client.produce(self._topic, value, partition_key(*partition).encode(), on_delivery=self._delivered)
        except (KafkaException, KafkaFailed, BufferError) as error:
            self._failures.line(error=str(error))

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failures.line(error=error.str(), action="give matchers the right to write to PREFIX.throttle")


def _producer(host: HostSettings) -> Any:
    config = {"acks": "all", "message.timeout.ms": _TIMEOUT_MS, "linger.ms": 0, "partitioner": "murmur2_random"}
    return new_client(Producer, client_config(host.bootstrap_servers, host.kafka_options, ClientErrors(), config))
