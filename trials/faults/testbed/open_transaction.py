"""A backend that begins a Kafka transaction, writes, and leaves it open for a while."""

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

_WITHIN_S = 30.0
_TIMEOUT_MS = 120_000
"""The broker would abort it after this: longer than any fault lasts."""


class OpenTransaction:
    """Holds back everything behind its records: a reader of committed records stops at the first one that is undecided."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._servers = bootstrap_servers
        self._producer: Producer | None = None

    def begin(self) -> None:
        """Writes one record into each partition of the topic. Raises KafkaException."""
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": "faults-open-transaction",
                "transaction.timeout.ms": _TIMEOUT_MS,
            }
        )
        producer.init_transactions(_WITHIN_S)
        producer.begin_transaction()
        admin = AdminClient({"bootstrap.servers": self._servers})
        partitions = admin.list_topics(self._topic, _WITHIN_S).topics[self._topic].partitions
        for partition in partitions:
            producer.produce(self._topic, b"never read", b"nobody", partition)
        assert producer.flush(_WITHIN_S) == 0
        self._producer = producer

    def abort(self) -> None:
        """Raises KafkaException."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.abort_transaction(_WITHIN_S)
