"""Writes routed records with one idempotent producer, and knows which publications are written completely.

A record never gets into a partition behind one that is missing there: its session would take the missing one for a copy when it
comes later (marks). Therefore librdkafka has no time-out for a record, and the first error ends the producer with all that is
undecided. One thread calls all methods; callbacks run in `poll`.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer

from sinks.host.broker_clock import BrokerClock
from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client, reason_of
from sinks.routing.log_ends import Partition
from sinks.routing.matcher import RoutedRecord
from sinks.routing.metrics import MatcherCounters

_log: Final = structlog.get_logger(__name__)
_LINGER_MS: Final = 0.3
"""The records of one poll share a request. An idempotent client that has more than five requests for a partition takes a whole
processor while it waits (sinks/kafka/record_producer.py)."""
_BATCH_BYTES: Final = 65_536
_RECORD_OVERHEAD_BYTES: Final = 1_048_576
_MOST_UNCONFIRMED: Final = 20_000
_MOST_UNCONFIRMED_BYTES: Final = 64 << 20
_POLL_S: Final = 0.05


@dataclass(slots=True, eq=False)
class ReadBatch:
    """Records what one poll has read.

    Attributes:
        ends: By partition, the offset behind the newest record.
        read_s, written_s: Times of `time.monotonic`: of the poll, and when all records were given to the producer.
    """

    ends: Mapping[Partition, int]
    read_s: float
    written_s: float
    unconfirmed: int = 0


@dataclass(frozen=True, slots=True)
class PublicationPosition:
    """Identifies a publication."""

    topic: str
    partition: int
    offset: int


class RoutedWriter:
    """Writes the records of one batch after the other.

    Args:
        clock: Observes the times that brokers give to records; None = another part of the process keeps the clock.

    Attributes:
        too_large: Publications whose records no broker takes; kept over new producers by its owner.
    """

    def __init__(
        self, host: HostSettings, counters: MatcherCounters, clock: BrokerClock | None, too_large: set[PublicationPosition]
    ) -> None:
        self.too_large = too_large
        self._counters = counters
        self._clock = clock
        self._timeout_s = host.append_timeout_ms / 1_000
        self._batches: deque[ReadBatch] = deque()
        self._failed: str | None = None
        self._unconfirmed_bytes = 0
        self._errors = ClientErrors()
        config = {
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "acks": "all",
            "linger.ms": _LINGER_MS,
            "batch.size": _BATCH_BYTES,
            "message.max.bytes": host.max_packet_size_bytes + _RECORD_OVERHEAD_BYTES,
            "message.timeout.ms": 0,
            "queue.buffering.max.messages": 2 * _MOST_UNCONFIRMED,
            "partitioner": "murmur2_random",
        }
        self._client: Any = new_client(Producer, client_config(host.bootstrap_servers, host.kafka_options, self._errors, config))

    @property
    def has_unconfirmed(self) -> bool:
        return bool(self._batches)

    def begin(self, ends: Mapping[Partition, int]) -> ReadBatch:
        """Begins a batch, which counts one unconfirmed record until `end`."""
        now_s = time.monotonic()
        batch = ReadBatch(ends, now_s, now_s, 1)
        self._batches.append(batch)
        return batch

    def end(self, batch: ReadBatch) -> None:
        """Says that all records of a batch are given to `write`."""
        batch.written_s = time.monotonic()
        batch.unconfirmed -= 1
        self.poll()

    def write(self, record: RoutedRecord, batch: ReadBatch, position: PublicationPosition) -> None:
        """Writes a record without waiting for its confirmation; blocks while there are too many of those.

        Raises:
            KafkaFailed: Another producer is the cure.
        """
        while len(self._client) > _MOST_UNCONFIRMED or self._unconfirmed_bytes > _MOST_UNCONFIRMED_BYTES:
            self.poll(_POLL_S)
        size = len(record.value or b"")
        try:
            self._client.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=partial(self._delivered, batch, position, size),
                headers=record.headers,
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise KafkaFailed(str(reason_of(error))) from error
            self._refuse(position)
            return
        except BufferError as error:
            raise KafkaFailed(str(error)) from error
        batch.unconfirmed += 1
        self._unconfirmed_bytes += size

    def poll(self, timeout_s: float = 0) -> None:
        """Handles confirmations. Raises KafkaFailed."""
        try:
            self._client.poll(timeout_s)
        except KafkaException as error:
            raise KafkaFailed(str(reason_of(error))) from error
        if self._failed is not None:
            raise KafkaFailed(self._failed)
        if self._batches and time.monotonic() - self._batches[0].read_s > self._timeout_s and self._batches[0].unconfirmed:
            raise KafkaFailed(f"a routed record was not confirmed within {self._timeout_s:g} s")

    def finished(self) -> dict[Partition, int]:
        """Returns the offsets below which all records are confirmed, as far as they are news."""
        ends: dict[Partition, int] = {}
        while self._batches and not self._batches[0].unconfirmed:
            ends.update(self._batches.popleft().ends)
        return ends

    def flush(self, timeout_s: float) -> None:
        """Waits for confirmations. Raises KafkaFailed."""
        deadline_s = time.monotonic() + timeout_s
        while len(self._client) and time.monotonic() < deadline_s:
            self.poll(_POLL_S)

    def close(self) -> None:
        """Gives up what is undecided."""
        self._failed = "closed"
        self._client.purge()
        self._client.poll(0)

    def _delivered(
        self, batch: ReadBatch, position: PublicationPosition, size: int, error: KafkaError | None, message: Any
    ) -> None:
        self._unconfirmed_bytes -= size
        if error is None:
            batch.unconfirmed -= 1
            self._counters.records_written += 1
            took_s = message.latency() or 0.0
            if not batch.unconfirmed:
                self._counters.match_seconds.add(batch.written_s - batch.read_s + took_s)
            if self._clock is not None:
                kind, broker_ms = message.timestamp()
                if kind == TIMESTAMP_LOG_APPEND_TIME:
                    self._clock.observe(broker_ms, 1_000 * took_s)
        elif self._failed is None:
            self._failed = error.str()
            self._client.purge(blocking=False)  # before this thread does anything else: nothing may get past the missing record
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._refuse(position)

    def _refuse(self, position: PublicationPosition) -> None:
        self.too_large.add(position)
        self._counters.publications_refused["too_large"] += 1
        _log.error(
            "publication_too_large",
            topic=position.topic,
            partition=position.partition,
            offset=position.offset,
            action="raise max.message.bytes of PREFIX.messages; publications like this one reach nobody until then",
        )
