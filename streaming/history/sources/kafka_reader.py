"""Reads ranges of topics with a consumer of our own: assigned by hand, in no group, nothing committed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from sinks.kafka.partitioning import partition_of
from streaming.config.errors import KafkaUnreachable
from streaming.history.errors import NothingFound
from streaming.history.sources.kafka_ranges import Cut, Range, bounded, since

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_REQUEST_MS: Final = 10_000
_POLL_MS: Final = 200
_PATIENCE_S: Final = 30.0
"""Kafka gives no record for so long, although some are there."""
_PORTION: Final = 5_000


class KafkaReader:
    """For the length of `reading`. Methods raise KafkaError."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def ranges(
        self, topics: Sequence[str], *, client_id: str | None = None, since_ms: int | None = None, max_records: int = 0
    ) -> list[Range]:
        """What is there at this moment. client_id: only the partition that its records are in. max_records: the newest of all
        topics together, 0 = all. Raises NothingFound for a topic that does not exist.
        """
        chosen = [TopicPartition(topic, number) for topic in topics for number in self._partitions(topic, client_id)]
        beginnings, ends = self._consumer.beginning_offsets(chosen), self._consumer.end_offsets(chosen)
        times = {} if since_ms is None else self._consumer.offsets_for_times(dict.fromkeys(chosen, since_ms))
        found = [
            since(
                part.topic,
                part.partition,
                beginning=beginnings[part],
                end=ends[part],
                first_since=None if times.get(part) is None else times[part].offset,
                since_ms=since_ms,
            )
            for part in chosen
        ]
        return self._with_times(bounded(found, max_records))

    def records(self, ranges: Sequence[Range], on_progress: Callable[[int, int], None]) -> Iterator[Any]:
        """kafka-python's records, in the order of each partition. on_progress: called now and then with (read, all)."""
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
            elif time.monotonic() > moved_s + _PATIENCE_S:
                raise KafkaTimeoutError(f"nothing came from {next(iter(ends)).topic} for {_PATIENCE_S:.0f} s")

    def _partitions(self, topic: str, client_id: str | None) -> Sequence[int]:
        numbers = sorted(self._consumer.partitions_for_topic(topic) or ())
        if not numbers:
            raise NothingFound(
                f"there is no topic {topic}: check topics.prefix and kafka.bootstrap_servers, or `inflight topics`"
            )
        return numbers if client_id is None else [partition_of(client_id.encode(), len(numbers))]

    def _with_times(self, ranges: list[Range]) -> list[Range]:
        """Those that begin in the middle of a partition's life are complete since their first record."""
        first = {one: int(time.time() * 1_000) for one in ranges if one.cut in (Cut.RETENTION, Cut.BOUND)}
        waiting = {TopicPartition(one.topic, one.partition): one for one in first if one.count}
        self._seek(list(waiting.values()))
        deadline_s = time.monotonic() + _PATIENCE_S
        while waiting:
            for part, records in self._consumer.poll(timeout_ms=_POLL_MS).items():
                if part in waiting and records:
                    first[waiting.pop(part)] = records[0].timestamp
                    self._consumer.pause(part)
            for part in [part for part, one in waiting.items() if self._consumer.position(part) >= one.end]:
                del waiting[part]  # nothing but the ends of transactions
            if time.monotonic() > deadline_s:
                raise KafkaTimeoutError(f"nothing came from {next(iter(waiting)).topic} for {_PATIENCE_S:.0f} s")
        return [replace(one, complete_since_ms=first[one]) if one in first else one for one in ranges]

    def _seek(self, ranges: Sequence[Range]) -> None:
        parts = {TopicPartition(one.topic, one.partition): one.start for one in ranges if one.count}
        self._consumer.assign(list(parts))
        for part, start in parts.items():
            self._consumer.seek(part, start)
        self._consumer.resume(*parts)


@contextmanager
def reading(settings: "Settings") -> Iterator[KafkaReader]:
    """Raises KafkaUnreachable, also for what goes wrong in the block."""
    try:
        consumer = KafkaConsumer(
            **{
                "client_id": "inflight-history",
                "bootstrap_timeout_ms": _REQUEST_MS,
                "request_timeout_ms": _REQUEST_MS,
                **settings.kafka.client_options(),
                "group_id": None,
                "enable_auto_commit": False,
                # What a backend has aborted was never sent.
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
