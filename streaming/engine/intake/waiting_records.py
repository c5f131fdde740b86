"""Looks at the sizes of records that no micro-batch has taken, with a consumer of its own.

It is librdkafka's: that reads every compression, and 20,000 small records in a tenth of a second, most of it outside Python. It
belongs to no group and commits nothing. It reads as Spark's source does, only what is committed.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import Failures, client_config, headers_of, make
from state.errors import UnreadableRecord
from streaming.engine.intake.batch_size import Chunk

_POLL_RECORDS: Final = 2_000
_POLL_S: Final = 0.5
"""A partition that says nothing for so long counts as silent."""
_MORE_S: Final = 0.005
"""How long a poll waits for more when it has something."""
_ANSWER_S: Final = 2.0
_CHUNKS: Final = 1_024
"""A chunk has about so small a part of a micro-batch."""
_RECORD_BYTES: Final = 64
"""What a record counts beside key, value and headers: Kafka's own fields."""
_HEADER_BYTES: Final = 8
"""The same of a header."""
_UNREAD_HEADERS_BYTES: Final = 1 << 20
"""Of headers that cannot be read: as large as a record is by Kafka's default."""
_CONFIG: Final = {
    "client.id": "inflight-engine-sizes",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # What an open transaction holds back does not wait for Spark's source either.
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "fetch.message.max.bytes": 1 << 20,
    # It reads ahead, and holds this much.
    "queued.max.messages.kbytes": 4_096,
}


class WaitingRecords:
    """The records of some topics. Connects when it is first asked. Whatever goes wrong is raised (KafkaException and others).

    options: of [kafka], as librdkafka has them. group_id: librdkafka wants one, also of who joins none and commits nothing; it is
    one that we are allowed to read. max_bytes: of a micro-batch.
    """

    def __init__(self, bootstrap_servers: str, options: Mapping[str, Any], *, group_id: str, max_bytes: int) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._options = options
        self._group_id = group_id
        self._chunk_bytes = max_bytes // _CHUNKS
        self._in_use = threading.Lock()
        self._closed = False
        self._consumer: Any = None
        self._at: tuple[str, int, int] | None = None

    def ends(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """The offset after the last record of each partition."""
        with self._in_use:
            consumer = self._connected()
            consumer.poll(0)  # what it has to say; nothing is read yet
            return {number: self._end(consumer, topic, number) for number in partitions}

    def look(self, topic: str, number: int, offset: int, count: int) -> list[Chunk]:
        """Some of the next `count` records from that offset on, which are there; empty when nothing came."""
        with self._in_use:
            consumer = self._connected()
            if self._at != (topic, number, offset):
                self._at = None
                consumer.assign([TopicPartition(topic, number, offset)])
            found, end = self._read(consumer, offset, min(count, _POLL_RECORDS))
            self._at = (topic, number, end)
            return chunks(found, end=end, chunk_bytes=self._chunk_bytes)

    def rest(self) -> None:
        """Until the next call nothing is read."""
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
            config = client_config(self._bootstrap_servers, self._options, Failures(), _CONFIG)
            self._consumer = make(Consumer, {**config, "group.id": self._group_id, "auto.offset.reset": "error"})
        return self._consumer

    def _end(self, consumer: Any, topic: str, number: int) -> int:
        bounds = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_S)
        if bounds is None:
            raise TimeoutError(f"the end of {topic}, partition {number}, is not known within {_ANSWER_S:g} s")
        end: int = bounds[1]
        return end

    def _read(self, consumer: Any, offset: int, most: int) -> tuple[list[tuple[int, int]], int]:
        """Offset and size of each, and the offset behind all of them. Markers of transactions have offsets and are no records."""
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
    """Of a record, decompressed."""
    total: int = _RECORD_BYTES + len(message) + len(message.key() or b"")
    try:
        headers = headers_of(message)
    except UnreadableRecord:
        return total + _UNREAD_HEADERS_BYTES
    for name, value in headers:
        total += _HEADER_BYTES + len(name) + len(value or b"")
    return total


def chunks(records: Iterable[tuple[int, int]], *, end: int, chunk_bytes: int) -> list[Chunk]:
    """records: offset and size of each, in order. end: the offset behind all of them.

    A chunk ends with the record with which it has chunk_bytes.
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
