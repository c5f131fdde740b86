"""Measures the sizes of records that no micro-batch has read, with a consumer of its own.

The consumer is librdkafka's. That reads every compression, and 20,000 small records in 100 ms, most of it outside Python. It
belongs to no group and commits nothing. Like Spark's source it reads committed records only.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import ClientErrors, client_config, headers_of, new_client
from state.errors import UnreadableRecord
from streaming.engine.intake.batch_size import Chunk

_POLL_RECORDS: Final = 2_000
_POLL_S: Final = 0.5
"""A partition without an answer for so long counts as silent."""
_MORE_S: Final = 0.005
"""How long a poll that has records waits for more."""
_ANSWER_S: Final = 2.0
_CHUNKS: Final = 1_024
"""A full micro-batch has about so many chunks."""
_RECORD_BYTES: Final = 64
"""Counted for a record beside its key, value and headers: Kafka's own fields."""
_HEADER_BYTES: Final = 8
"""Counted for a header beside its name and value."""
_UNREAD_HEADERS_BYTES: Final = 1 << 20
"""Counted for headers that cannot be read: Kafka's default for the largest record."""
_CONFIG: Final = {
    "client.id": "inflight-engine-sizes",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Records of an open transaction do not wait for Spark's source either.
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "fetch.message.max.bytes": 1 << 20,
    # The consumer reads ahead and buffers this much.
    "queued.max.messages.kbytes": 4_096,
}


class WaitingRecords:
    """The records of some topics. Connects at the first call. All methods raise KafkaException, TimeoutError and others."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, Any], *, group_id: str, max_bytes: int) -> None:
        """options: section [kafka] in librdkafka's terms. max_bytes: the bound of a micro-batch.

        group_id: required by librdkafka even of a consumer without a group; one that the ACLs let us read.
        """
        self._bootstrap_servers = bootstrap_servers
        self._options = options
        self._group_id = group_id
        self._chunk_bytes = max_bytes // _CHUNKS
        self._in_use = threading.Lock()
        self._closed = False
        self._consumer: Any = None
        self._at: tuple[str, int, int] | None = None

    def ends(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """Returns the offset after the last record of each partition."""
        with self._in_use:
            consumer = self._connected()
            consumer.poll(0)  # serves callbacks; nothing is assigned yet
            return {number: self._end(consumer, topic, number) for number in partitions}

    def measure(self, topic: str, number: int, offset: int, count: int) -> list[Chunk]:
        """Returns the sizes of some of the next `count` records from that offset on; empty when none came."""
        with self._in_use:
            consumer = self._connected()
            if self._at != (topic, number, offset):
                self._at = None
                consumer.assign([TopicPartition(topic, number, offset)])
            found, end = self._read(consumer, offset, min(count, _POLL_RECORDS))
            self._at = (topic, number, end)
            return chunks(found, end=end, chunk_bytes=self._chunk_bytes)

    def pause(self) -> None:
        """Stops reading until the next call."""
        with self._in_use:
            self._at = None
            if self._consumer is not None:
                self._consumer.unassign()

    def close(self) -> None:
        with self._in_use:
            self._closed = True
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close()

    def _connected(self) -> Any:
        if self._closed:
            raise RuntimeError("closed")
        if self._consumer is None:
            config = client_config(self._bootstrap_servers, self._options, ClientErrors(), _CONFIG)
            self._consumer = new_client(Consumer, {**config, "group.id": self._group_id, "auto.offset.reset": "error"})
        return self._consumer

    def _end(self, consumer: Any, topic: str, number: int) -> int:
        bounds = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_S)
        if bounds is None:
            raise TimeoutError(f"the end of {topic}, partition {number}, is not known within {_ANSWER_S:g} s")
        end: int = bounds[1]
        return end

    def _read(self, consumer: Any, offset: int, most: int) -> tuple[list[tuple[int, int]], int]:
        """Returns offset and size of each record, and the offset after all of them.

        The latter may be beyond the last record: transaction markers have offsets and are no records.
        """
        found: list[tuple[int, int]] = []
        end, deadline = offset, time.monotonic() + _POLL_S
        while len(found) < most and (left_s := deadline - time.monotonic()) > 0:
            messages = consumer.consume(most - len(found), _MORE_S) if found else consumer.consume(1, left_s)
            if found and not messages:
                break
            for message in messages:
                error = message.error()
                if error is None:
                    found.append((message.offset(), size_bytes(message)))
                    end = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found, max(end, message.offset())
                else:
                    raise KafkaException(error)
        return found, end


def size_bytes(message: Any) -> int:
    """Returns the decompressed size of a record."""
    total: int = _RECORD_BYTES + len(message) + len(message.key() or b"")
    try:
        headers = headers_of(message)
    except UnreadableRecord:
        return total + _UNREAD_HEADERS_BYTES
    for name, value in headers:
        total += _HEADER_BYTES + len(name) + len(value or b"")
    return total


def chunks(records: Iterable[tuple[int, int]], *, end: int, chunk_bytes: int) -> list[Chunk]:
    """Groups records into chunks of at least `chunk_bytes`, except the last.

    records: offset and size of each, in order. end: the offset after all of them.
    """
    made: list[Chunk] = []
    size, place = 0, None
    for offset, record_bytes in records:
        size += record_bytes
        place = offset + 1
        if size >= chunk_bytes:
            made.append(Chunk(end=place, size_bytes=size))
            size, place = 0, None
    if place is not None:
        made.append(Chunk(end=end, size_bytes=size))
    elif made:
        made[-1] = Chunk(end=end, size_bytes=made[-1].size_bytes)
    return made
