"""Measures the sizes of records that no micro-batch has read, batch by batch, with a consumer of its own.

Batches are not parsed (record_log.py), so 20,000 small records are measured in some ten milliseconds.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from kafka import TopicPartition

from streaming.engine.intake.batch_size import Chunk
from streaming.engine.intake.record_log import RawFetches
from streaming.engine.intake.record_sizes import BatchFacts, batches

_WAIT_S: Final = 0.5
"""A partition without an answer for so long counts as silent."""
_ENDS_MS: Final = 2_000
"""kafka-python asks a former leader for the ends again and again in this time."""
_CHUNKS: Final = 1_024
"""A full micro-batch has at most about so many chunks."""


class WaitingRecords:
    """The records of some topics. Connects at the first call. All methods raise KafkaError, ValueError, OSError and others.

    Args:
        client_options: Options of kafka-python, bootstrap servers included.
        max_bytes: The largest size of a micro-batch.
    """

    def __init__(self, client_options: Mapping[str, Any], *, max_bytes: int) -> None:
        self._options = client_options
        self._chunk_bytes = max_bytes // _CHUNKS
        self._in_use = threading.Lock()
        self._closed = False
        self._fetches: RawFetches | None = None

    def ends(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """Returns the offset after the last record of each partition."""
        with self._client() as fetches:
            found = fetches.consumer.end_offsets([TopicPartition(topic, number) for number in partitions], timeout_ms=_ENDS_MS)
            return {partition.partition: end for partition, end in found.items()}

    def measure(self, topic: str, number: int, offset: int) -> list[Chunk]:
        """Returns the sizes of some records from that offset on; empty when none came. The first chunk may begin before it."""
        with self._client() as fetches:
            partition = TopicPartition(topic, number)
            fetches.consumer.assign([partition])
            fetches.consumer.seek(partition, offset)
            answers = (data for found, data in fetches.wait(_WAIT_S) if found == partition)
            # An answer may be late, from before another question.
            found = [batch for data in answers for batch in batches(data) if batch.end > offset]
            return chunks(found, chunk_bytes=self._chunk_bytes)

    def close(self) -> None:
        with self._in_use:
            self._closed = True
            self._disconnect()

    @contextmanager
    def _client(self) -> Iterator[RawFetches]:
        """Yields the client. After a failure the next one is new: an old one may ask a former leader for five minutes."""
        with self._in_use:
            if self._closed:
                raise RuntimeError("closed")
            if self._fetches is None:
                self._fetches = RawFetches(
                    self._options, client_id="inflight-engine-sizes", bootstrap_timeout_ms=2_000, fetch_max_wait_ms=10
                )
            try:
                yield self._fetches
            except BaseException:
                self._disconnect()
                raise

    def _disconnect(self) -> None:
        fetches, self._fetches = self._fetches, None
        if fetches is not None:
            fetches.close()


def chunks(found: Iterable[BatchFacts], *, chunk_bytes: int) -> list[Chunk]:
    """Groups batches, in order, into chunks of at least `chunk_bytes`, except the last."""
    made: list[Chunk] = []
    size = 0
    for batch in found:
        if size >= chunk_bytes or not made:
            made.append(Chunk(end=batch.end, size_bytes=0))
            size = 0
        size += batch.size_bytes
        made[-1] = Chunk(end=batch.end, size_bytes=size)
    return made
