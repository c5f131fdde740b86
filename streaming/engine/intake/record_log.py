"""Reads the raw batches of Kafka's log, as the broker stores them.

kafka-python's consumer decompresses whole batches, so its answers are taken before it parses them. Checked against kafka-python
3.0.12: `Fetcher.send_fetches` and the queue `Fetcher._completed_fetches` are private; a test reads each codec with them.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError, for_code

from streaming.engine.intake.record_sizes import BatchFacts, RecordFacts, batches

_ANSWER_S: Final = 10.0
_AGAIN_S: Final = 0.1
"""A fetch cannot be sent before the leader is known, and nothing tells of that."""
_OPTIONS: Final[dict[str, Any]] = {
    "client_id": "inflight-engine-log",
    "group_id": None,
    "enable_auto_commit": False,
    "allow_auto_create_topics": False,
    # Records of an open transaction are none for Spark's source either.
    "isolation_level": "read_committed",
    "metrics_enabled": False,
}

ReadRecords = Callable[[str, int, int, int], Iterator[RecordFacts]]
"""Gets topic, partition, the first offset and the one after the last. Raises KafkaError, ValueError, EOFError or OSError."""


@contextmanager
def record_reader(client_options: Mapping[str, Any]) -> Iterator[ReadRecords]:
    """Yields a reader, whose ranges are read one after the other.

    Args:
        client_options: For kafka-python, bootstrap servers included.
    """
    with closing(RawFetches(client_options, bootstrap_timeout_ms=5_000, fetch_max_wait_ms=100)) as fetches:
        yield partial(_read_records, fetches)


def _read_records(fetches: "RawFetches", topic: str, number: int, begin: int, end: int) -> Iterator[RecordFacts]:
    partition = TopicPartition(topic, number)
    fetches.consumer.assign([partition])
    while begin < end:
        fetches.consumer.seek(partition, begin)
        found = list(batches(_fetched(fetches, partition)))
        if not found:
            raise ValueError(f"the answer at offset {begin} in partition {number} of {topic} has no whole batch")
        yield from _within(found, begin, end)
        begin = max(begin, found[-1].end)


def _within(found: list[BatchFacts], begin: int, end: int) -> Iterator[RecordFacts]:
    for batch in found:
        for record in batch.records:
            if record.offset >= end:
                return
            if record.offset >= begin:
                yield record


def _fetched(fetches: "RawFetches", wanted: TopicPartition) -> bytes:
    """Returns the answer to one fetch. Raises KafkaTimeoutError if none with records came in ten seconds."""
    deadline = time.monotonic() + _ANSWER_S
    while (left_s := deadline - time.monotonic()) > 0:
        for partition, data in fetches.wait(left_s):
            if partition == wanted:  # an answer may be late, from before another range
                return data
    raise KafkaTimeoutError(f"Kafka did not return a record within {_ANSWER_S:g} s")


class RawFetches:
    """A consumer in no group that commits nothing, and its answers, which it does not parse. Its `poll` may not be called.

    Args:
        client_options: Options of kafka-python, bootstrap servers included. They override `more`.
        more: More options of the consumer.

    Raises:
        KafkaError: No broker answers, or an option is of no use.
    """

    def __init__(self, client_options: Mapping[str, Any], **more: Any) -> None:
        self.consumer: Any = KafkaConsumer(**_OPTIONS | more | dict(client_options))
        self._fetcher = self.consumer._fetcher
        self._answered = threading.Event()

    def wait(self, timeout_s: float) -> list[tuple[TopicPartition, bytes]]:
        """Returns what has come from the consumer's positions on, at the time-out nothing. Raises KafkaError."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._answered.clear()
            # An answer that was not picked up keeps its partition out of the next fetch, which then waits for the others alone.
            if found := list(self._found()):
                return found
            for future in self._fetcher.send_fetches():
                future.add_both(lambda _: self._answered.set())
            if (left_s := deadline - time.monotonic()) <= 0:
                return []
            self._answered.wait(min(left_s, _AGAIN_S))

    def close(self) -> None:
        self.consumer.close(autocommit=False, timeout_ms=1_000)

    def _found(self) -> Iterator[tuple[TopicPartition, bytes]]:
        while self._fetcher._completed_fetches:
            fetch = self._fetcher._completed_fetches.popleft()
            if fetch.partition_data.error_code:
                raise for_code(fetch.partition_data.error_code)()
            if fetch.partition_data.records:
                yield fetch.topic_partition, bytes(fetch.partition_data.records)
