"""Writes to Kafka for the load generators, with librdkafka, so that a generator uses little CPU."""

from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

Headers = Sequence[tuple[str, bytes]]
_FLUSH_S: Final = 120.0


class Sender:
    """Sends records. `flush` raises RuntimeError if Kafka did not confirm a record.

    linger_ms: how long a record waits for others. A key goes to the same partition as with Java's and Inflight's own producers.
    """

    def __init__(self, bootstrap_servers: str, *, linger_ms: int = 1) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
                "enable.metrics.push": False,
                "log_level": 0,  # the server is stopped before the generator
            }
        )
        self._failed: KafkaError | None = None

    def send(self, topic: str, value: bytes, *, key: bytes, headers: Headers = ()) -> None:
        self._producer.produce(topic, value, key, headers=list(headers), on_delivery=self._delivered)
        self._producer.poll(0)

    def flush(self) -> None:
        """Returns when Kafka has confirmed all."""
        left = self._producer.flush(_FLUSH_S)
        if left or self._failed is not None:
            raise RuntimeError(f"Kafka has not confirmed {left} records: {self._failed or 'no answer'}")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._failed = self._failed or error
