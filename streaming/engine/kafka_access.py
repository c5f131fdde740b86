"""Reads and writes single records and offsets of Kafka from the engine's driver, beside the query."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidTimestampError, KafkaError, KafkaTimeoutError
from kafka.producer.future import RecordMetadata

from sinks.host.clock_skew import skew_text
from sinks.kafka.append import TimestampRefused
from sinks.kafka.kafka_python import abandon
from state.records.events import WAKE_UP_KEY
from state.records.record import SinkRecord
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.engine.errors import EngineClockOff

_CONFIRM_MS: Final = 30_000
_READ_S: Final = 10.0
_FRESH_S: Final = 3.0
"""A record is younger than this if it was not there when the topic was last read."""
_BROKERS_TIME: Final = 1
"""Kafka's number of LogAppendTime."""
_MAX_SKEW_S: Final = 300.0
"""Kerberos' limit, too: far more than NTP leaves, and less than a time to live that matters."""
_POLL_MS: Final = 200
_REQUEST_MS: Final = 5_000
_WRITE_TOGETHER: Final = 5_000

Partitions = Mapping[str, Iterable[int]]
"""By topic."""


def write_wake_up(settings: Settings, *, now_s: Callable[[], float] = time.time) -> float:
    """Appends the record that gives an engine its first micro-batch. Raises KafkaUnreachable if Kafka does not confirm it in 30
    s.

    Spark runs a micro-batch without new records only after another one of the same process. An engine that was stopped just after
    a commit would wait for a record, and until one came no timer of a session would fire. The record moves an offset and nothing
    else: streaming/engine/query.py drops it.

    Returns:
        This machine's clock minus the brokers' in seconds, too high by the time of the append; 0 if the topic has CreateTime.
    """
    (stored,) = _write(settings, [{"topic": settings.topics.events, "key": WAKE_UP_KEY, "value": b""}])
    stored_ms: int = stored.timestamp
    return now_s() - stored_ms / 1_000


def write_records(settings: Settings, records: Iterable[SinkRecord]) -> None:
    """Appends records of the engine's output. Raises KafkaUnreachable if Kafka does not confirm them in 30 s."""
    _write(
        settings,
        [
            {
                "topic": record.topic,
                "key": record.key,
                "value": record.value,
                "headers": [(header.key, header.value) for header in record.headers or ()],
                "partition": record.partition,
            }
            for record in records
        ],
    )


def require_right_clock(skew_s: float) -> None:
    """Raises EngineClockOff if messages and sessions would end by a wrong time.

    Args:
        skew_s: The result of `write_wake_up`, in seconds.
    """
    if abs(skew_s) > _MAX_SKEW_S:
        raise EngineClockOff(
            f"{skew_text(skew_s)}. An engine that is ahead ends messages and sessions that should live; one that is behind does "
            "so when its clock is set right. Nothing has been changed. Set the clock of this machine (NTP), or that of the "
            "brokers if all other machines differ from it, and start the engine again"
        )


def _write(settings: Settings, records: list[dict[str, Any]]) -> list[RecordMetadata]:
    """Returns what Kafka says of each record."""
    options = {
        "client_id": "inflight-engine",
        "acks": "all",
        "max_block_ms": _CONFIRM_MS,
        "delivery_timeout_ms": _CONFIRM_MS,
        **settings.kafka.client_options(),
    }
    try:
        producer = KafkaProducer(**options)
        try:
            futures = [producer.send(**record) for record in records]
            return [future.get(timeout=_CONFIRM_MS / 1_000) for future in futures]
        finally:
            abandon(producer)
    except InvalidTimestampError as error:
        raise EngineClockOff(f"Kafka refuses the time of this machine's records; {TimestampRefused.action}") from error
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error


def end_offsets(settings: Settings, partitions: Partitions) -> dict[str, dict[int, int]]:
    """Returns the offset after the last record that may be read: of a committed transaction. Raises KafkaUnreachable."""
    consumer: Any = None
    try:
        consumer = KafkaConsumer(
            **settings.kafka.client_options() | {"group_id": None, "isolation_level": "read_committed", "metrics_enabled": False}
        )
        found = consumer.end_offsets(
            [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
        )
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
    finally:
        if consumer is not None:
            consumer.close()
    return {topic: {number: found[TopicPartition(topic, number)] for number in numbers} for topic, numbers in partitions.items()}


class TopicLog:
    """Reads one topic as far as it goes, and writes to any. Connects at first use.

    After a KafkaError both clients are closed. The next `read` then returns the whole topic once more. kafka-python's idempotent
    producer is of no use after a failure (docs/guides/producer.md), so the next `write` has another one. A topic that was
    deleted and made anew is read from its beginning.
    """

    def __init__(self, settings: Settings, topic: str, *, client_id: str, max_block_ms: int, delivery_timeout_ms: int) -> None:
        self._topic = topic
        self._options: dict[str, Any] = {
            "client_id": client_id,
            "bootstrap_timeout_ms": _REQUEST_MS,
            "request_timeout_ms": _REQUEST_MS,
            **settings.kafka.client_options(),
        }
        self._producer_options = {"acks": "all", "max_block_ms": max_block_ms, "delivery_timeout_ms": delivery_timeout_ms}
        self._delivery_s = delivery_timeout_ms / 1_000
        self._partitions: list[TopicPartition] = []
        self._consumer: KafkaConsumer | None = None
        self._producer: KafkaProducer | None = None
        self._read_s: float | None = None
        """When the last `read` ended, on a monotonic clock; None = none has."""
        self.skew_s: float | None = None
        """This machine's clock minus the brokers', by the newest record of the last `read`; None = it says nothing about that."""

    def read(self) -> list[tuple[bytes, bytes | None]]:
        """Returns key and value of the records with a key since the last call, up to the present end. Raises KafkaError."""
        try:
            consumer = self._consumer or self._open()
            found: list[tuple[bytes, bytes | None]] = []
            times_ms: list[int] = []
            ends = consumer.end_offsets(self._partitions)
            if any(consumer.position(partition) > ends[partition] for partition in self._partitions):
                # The topic was made anew. Its new records would be skipped up to the old position, without an error.
                self.close()
                consumer = self._open()
                ends = consumer.end_offsets(self._partitions)
            deadline = time.monotonic() + _READ_S
            while any(consumer.position(partition) < ends[partition] for partition in self._partitions):
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(f"{self._topic} was not read to its end within {_READ_S:.0f} s")
                for records in consumer.poll(timeout_ms=_POLL_MS).values():
                    found += [(record.key, record.value) for record in records if record.key]
                    times_ms += [record.timestamp for record in records if record.timestamp_type == _BROKERS_TIME]
        except KafkaError:
            self.close()
            raise
        now_s, before_s = time.monotonic(), self._read_s
        is_fresh = before_s is not None and now_s - before_s <= _FRESH_S
        self.skew_s = time.time() - max(times_ms) / 1_000 if is_fresh and times_ms else None
        self._read_s = now_s
        return found

    def append(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Writes to the topic itself. Returns when Kafka has confirmed all records. Raises KafkaError."""
        self.write(self._topic, records)

    def write(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Returns when Kafka has confirmed all records. Raises KafkaError."""
        try:
            producer = self._producer = self._producer or KafkaProducer(**self._options | self._producer_options)
            futures: list[Any] = []
            for key, value in records:
                futures.append(producer.send(topic, key=key, value=value))
                if len(futures) >= _WRITE_TOGETHER:
                    self._await(futures)
            self._await(futures)
        except KafkaError:
            self.close()
            raise

    def close(self) -> None:
        self._read_s = None
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

    def _await(self, futures: list[Any]) -> None:
        for future in futures:
            future.get(timeout=self._delivery_s)
        futures.clear()
