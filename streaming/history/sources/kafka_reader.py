"""Reads ranges of topics with a consumer of its own, which is in no group and commits nothing."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from sinks.kafka.first_contact import first_contact
from sinks.kafka.kafka_python import FailFastClient
from sinks.kafka.partitioning import partition_of
from streaming.config.errors import KafkaUnreachable
from streaming.history.errors import NothingFound
from streaming.history.sources.kafka_ranges import ArchivedUntil, CutReason, OffsetRange, after_archived, newest, range_since
from streaming.history.sources.source import SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_REQUEST_MS: Final = 10_000
_POLL_MS: Final = 200
_STALLED_S: Final = 30.0
"""How long Kafka may give no record although there are some."""
_PORTION: Final = 5_000
_WRITTEN_WITHIN_MS: Final = 600_000
"""How long after an event its record is written at most, with clocks that differ. A later time costs only reading more."""


class KafkaReader:
    """Reads topics within a `reading` block. Methods raise KafkaError."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def has(self, topic: str) -> bool:
        """Returns True if the topic exists: before `inflight topics` has run, those of routing do not."""
        return bool(self._consumer.partitions_for_topic(topic))

    def ranges(
        self,
        topics: Sequence[str],
        limits: SourceLimits,
        archived: Mapping[tuple[str | None, int], ArchivedUntil] | None = None,
    ) -> list[OffsetRange]:
        """Returns what Kafka has at this moment within the limits, which hold for all topics together.

        With a client id only the partition that its records are in is read. Raises NothingFound for a topic that does not exist.

        Args:
            archived: What is in a table, by (topic, partition); a topic None stands for all topics. It is left out.
        """
        since_ms = limits.since_ms
        chosen = [TopicPartition(topic, number) for topic in topics for number in self._partitions(topic, limits.client_id)]
        beginnings, ends = self._consumer.beginning_offsets(chosen), self._consumer.end_offsets(chosen)
        times = {} if since_ms is None else self._consumer.offsets_for_times(dict.fromkeys(chosen, since_ms))
        found = [
            range_since(
                part.topic,
                part.partition,
                beginning=beginnings[part],
                end=ends[part],
                first_since=None if times.get(part) is None else times[part].offset,
                since_ms=since_ms,
            )
            for part in chosen
        ]
        return self._with_times(newest(self._without_archived(found, archived or {}), limits.max_records))

    def records(self, ranges: Sequence[OffsetRange], on_progress: Callable[[int, int], None]) -> Iterator[Any]:
        """Yields kafka-python's records, in order within each partition.

        Args:
            on_progress: Called repeatedly with (read, all).
        """
        ends = {TopicPartition(one.topic, one.partition): one.end for one in ranges if one.count}
        total = sum(one.count for one in ranges)
        self._seek(ranges)
        moved_s, left_before = time.monotonic(), total
        while ends:
            for part, records in self._consumer.poll(timeout_ms=_POLL_MS, max_records=_PORTION).items():
                yield from (record for record in records if record.offset < ends.get(part, 0))
            positions = {part: self._consumer.position(part) for part in ends}
            done = [part for part, end in ends.items() if positions[part] >= end]
            self._consumer.pause(*done)
            for part in done:
                del ends[part]
            left = sum(end - positions[part] for part, end in ends.items())
            on_progress(total - left, total)
            if left < left_before:
                moved_s, left_before = time.monotonic(), left
            elif time.monotonic() > moved_s + _STALLED_S:
                raise KafkaTimeoutError(f"nothing came from {next(iter(ends)).topic} for {_STALLED_S:.0f} s")

    def _without_archived(
        self, ranges: list[OffsetRange], archived: Mapping[tuple[str | None, int], ArchivedUntil]
    ) -> list[OffsetRange]:
        known = {
            TopicPartition(one.topic, one.partition): until
            for one in ranges
            if (until := archived.get((one.topic, one.partition), archived.get((None, one.partition)))) is not None
        }
        times = {part: until.time_ms + _WRITTEN_WITHIN_MS for part, until in known.items()}
        later = self._consumer.offsets_for_times(times) if times else {}
        found = []
        for one in ranges:
            part = TopicPartition(one.topic, one.partition)
            first_later = None if later.get(part) is None else later[part].offset
            found.append(after_archived(one, known[part], first_later) if part in known else one)
        return found

    def _partitions(self, topic: str, client_id: str | None) -> Sequence[int]:
        numbers = sorted(self._consumer.partitions_for_topic(topic) or ())
        if not numbers:
            raise NothingFound(
                f"there is no topic {topic}: check topics.prefix and kafka.bootstrap_servers, or `inflight topics`"
            )
        return numbers if client_id is None else [partition_of(client_id.encode(), len(numbers))]

    def _with_times(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Returns the ranges with `complete_since_ms`: one that leaves older records out is complete since its first record."""
        left_out = (CutReason.RETENTION, CutReason.MAX_RECORDS)
        first = {one: int(time.time() * 1_000) for one in ranges if one.cut in left_out}
        waiting = {TopicPartition(one.topic, one.partition): one for one in first if one.count}
        self._seek(list(waiting.values()))
        deadline_s = time.monotonic() + _STALLED_S
        while waiting:
            for part, records in self._consumer.poll(timeout_ms=_POLL_MS).items():
                if part in waiting and records:
                    first[waiting.pop(part)] = records[0].timestamp
                    self._consumer.pause(part)
            for part in [part for part, one in waiting.items() if self._consumer.position(part) >= one.end]:
                del waiting[part]  # it has only the ends of transactions
            if time.monotonic() > deadline_s:
                raise KafkaTimeoutError(f"nothing came from {next(iter(waiting)).topic} for {_STALLED_S:.0f} s")
        return [replace(one, complete_since_ms=first[one]) if one in first else one for one in ranges]

    def _seek(self, ranges: Sequence[OffsetRange]) -> None:
        parts = {TopicPartition(one.topic, one.partition): one.start for one in ranges if one.count}
        self._consumer.assign(list(parts))
        for part, start in parts.items():
            self._consumer.seek(part, start)
        self._consumer.resume(*parts)


def check_listening(settings: "Settings") -> None:
    """Raises KafkaUnreachable within seconds if nobody listens at Kafka's addresses; a client would try for longer."""
    if (why := first_contact(settings.kafka.bootstrap_servers)) is not None:
        raise KafkaUnreachable.without_contact(settings.kafka.bootstrap_servers, why)


@contextmanager
def reading(settings: "Settings") -> Iterator[KafkaReader]:
    """Gives a reader. Raises KafkaUnreachable, for errors within the block too."""
    check_listening(settings)
    try:
        consumer = KafkaConsumer(
            **{
                "client_id": "inflight-history",
                "kafka_client": FailFastClient,
                "bootstrap_timeout_ms": _REQUEST_MS,
                "request_timeout_ms": _REQUEST_MS,
                **settings.kafka.client_options(),
                "group_id": None,
                "enable_auto_commit": False,
                # An aborted transaction was never sent.
                "isolation_level": "read_committed",
                "auto_offset_reset": "earliest",  # retention may delete what was about to be read
                "metrics_enabled": False,
            }
        )
        try:
            yield KafkaReader(consumer)
        finally:
            consumer.close(autocommit=False)
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
