"""`inflight.leases` as the engine reads it, and the endings that it writes to `inflight.events`."""

import time
from collections.abc import Iterable
from typing import Any, Final, Protocol

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from sinks.kafka.producers import abandon
from state.errors import NewerRecord, UnreadableRecord
from state.events import ConnectionLost
from state.records.events import encode_event
from state.records.leases import Lease, decode_lease
from streaming.config.settings import Settings
from streaming.engine.leases.connections import OpenConnection

_READ_S: Final = 10.0
_POLL_MS: Final = 200
_REQUEST_MS: Final = 5_000
_TOGETHER: Final = 5_000


class LeaseTopic(Protocol):
    """Each method raises KafkaError when Kafka does not do it, and may be called again then."""

    def read(self) -> list[tuple[str, Lease | None]]:
        """What is new, up to the end that the topic has at this moment; after a failure everything once more.

        Raises NewerRecord where a newer version has a lease: nobody here can say who has none.
        """

    def tell_lost(self, connections: Iterable[OpenConnection], reason: str) -> None:
        """ConnectionLost to the session of each; back when all are in the log."""

    def forget(self, lease_ids: Iterable[str]) -> None:
        """Tombstones."""

    def close(self) -> None: ...


class KafkaLeaseTopic:
    """LeaseTopic on Kafka; connects when it is first used."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.topics.leases
        self._events = settings.topics.events
        self._options: dict[str, Any] = {
            "client_id": "inflight-leases",
            "bootstrap_timeout_ms": _REQUEST_MS,
            "request_timeout_ms": _REQUEST_MS,
            **settings.kafka.client_options(),
        }
        self._consumer: KafkaConsumer | None = None
        self._partitions: list[TopicPartition] = []
        self._producer: KafkaProducer | None = None

    def read(self) -> list[tuple[str, Lease | None]]:
        try:
            consumer = self._consumer or self._open()
            found: list[tuple[str, Lease | None]] = []
            ends = consumer.end_offsets(self._partitions)
            deadline = time.monotonic() + _READ_S
            while any(consumer.position(partition) < ends[partition] for partition in self._partitions):
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(f"{self._topic} was not read to its end within {_READ_S:.0f} s")
                for records in consumer.poll(timeout_ms=_POLL_MS).values():
                    found += [(record.key.decode(errors="replace"), lease_of(record.value)) for record in records if record.key]
        except (KafkaError, NewerRecord):
            self.close()
            raise
        return found

    def tell_lost(self, connections: Iterable[OpenConnection], reason: str) -> None:
        self._write(
            self._events,
            (
                (client_id.encode(), encode_event(ConnectionLost(connection_id=connection_id, reason=reason)))
                for client_id, connection_id, _ in connections
            ),
        )

    def forget(self, lease_ids: Iterable[str]) -> None:
        self._write(self._topic, ((lease_id.encode(), None) for lease_id in lease_ids))

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        producer, self._producer = self._producer, None
        if consumer is not None:
            consumer.close(autocommit=False)
        if producer is not None:
            abandon(producer)

    def _open(self) -> KafkaConsumer:
        consumer = self._consumer = KafkaConsumer(
            **self._options, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        numbers = consumer.partitions_for_topic(self._topic)
        if not numbers:
            raise KafkaTimeoutError(f"topic {self._topic} does not exist; create it with `inflight topics`")
        self._partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
        consumer.assign(self._partitions)
        consumer.seek_to_beginning(*self._partitions)
        return consumer

    def _write(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        try:
            producer = self._producer = self._producer or KafkaProducer(
                **self._options, acks="all", max_block_ms=_REQUEST_MS, delivery_timeout_ms=2 * _REQUEST_MS
            )
            futures: list[Any] = []
            for key, value in records:
                futures.append(producer.send(topic, key=key, value=value))
                if len(futures) >= _TOGETHER:
                    _await(futures)
            _await(futures)
        except KafkaError:
            self.close()
            raise


def _await(futures: list[Any]) -> None:
    for future in futures:
        future.get(timeout=2 * _REQUEST_MS / 1_000)
    futures.clear()


def lease_of(value: bytes | None) -> Lease | None:
    """What cannot be read is nobody's lease, but a newer version's is somebody's: raises NewerRecord."""
    try:
        return None if value is None else decode_lease(value)
    except NewerRecord:
        raise
    except UnreadableRecord:
        return None
