"""Looks at the sizes of records that no micro-batch has taken, with a consumer of the engine's JVM.

It is the consumer of Spark's jars, because that reads every compression and takes the same options as Spark's source. It belongs
to no group and commits nothing. One call for each poll, and not for each record: a list of Kafka's `ConsumerRecord` as text has
all offsets and sizes. A text that is not as expected is not counted, and what is not counted passes for large.
"""

import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from streaming.engine.intake.batch_size import Chunk

_POLL_RECORDS: Final = 500
"""A poll holds so many records in memory, decompressed. Each call of the JVM takes its time, on a busy machine milliseconds."""
_POLL_MS: Final = 500
_CHUNKS: Final = 1_024
"""A chunk has about so small a part of a micro-batch."""
_BYTES: Final = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_OPTIONS: Final = {
    "client.id": "inflight-engine-sizes",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
    "auto.offset.reset": "none",
    # What an open transaction holds back does not wait for Spark's source either.
    "isolation.level": "read_committed",
    "check.crcs": "false",
    "fetch.max.wait.ms": "10",
}
_LIMITS: Final = {
    "fetch.max.bytes": str(1 << 20),
    "max.partition.fetch.bytes": str(1 << 20),
    "max.poll.records": str(_POLL_RECORDS),
}
_RECORD: Final = re.compile(
    r"ConsumerRecord\(topic = [^,()]*, partition = \d+, [^()]*?offset = (\d+), [^()]*?"
    r"serialized key size = (-?\d+), serialized value size = (-?\d+), headers = "
)


class WaitingRecords:
    """The records of some topics. Connects when it is first asked. Whatever goes wrong is raised (Py4JError and others)."""

    def __init__(self, spark: SparkSession, spark_options: Mapping[str, str], *, max_bytes: int) -> None:
        """spark_options: for Spark's Kafka source, bootstrap servers included. max_bytes: of a micro-batch."""
        self._jvm: Any = spark._jvm
        given = {name.removeprefix("kafka."): value for name, value in spark_options.items() if name.startswith("kafka.")}
        self._options = _OPTIONS | given | _LIMITS
        self._chunk_bytes = max_bytes // _CHUNKS
        self._in_use = threading.Lock()
        self._closed = False
        self._consumer: Any = None
        self._partitions: dict[tuple[str, int], Any] = {}
        self._lists: dict[tuple[str, int], Any] = {}
        self._at: tuple[str, int, int] | None = None
        self._poll_time: Any = None

    def ends(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """The offset after the last record of each partition."""
        with self._in_use:
            self._connect()
            wanted = {number: self._partition(topic, number) for number in partitions}
            found = self._consumer.endOffsets(self._list(*wanted.values()))
            return {number: int(found.get(partition)) for number, partition in wanted.items()}

    def look(self, topic: str, number: int, offset: int) -> list[Chunk]:
        """What one poll from that offset on holds; empty when nothing came."""
        with self._in_use:
            self._connect()
            partition = self._partition(topic, number)
            if self._at != (topic, number, offset):
                self._at = None
                self._consumer.assign(self._only(topic, number))
                self._consumer.seek(partition, offset)
            polled = self._consumer.poll(self._poll_time)
            position = int(self._consumer.position(partition))
            self._at = (topic, number, position)
            text = str(polled.records(partition).toString())
            return chunks(text, count=int(polled.count()), end=position, chunk_bytes=self._chunk_bytes)

    def close(self) -> None:
        with self._in_use:
            self._closed = True
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close(self._jvm.java.time.Duration.ofSeconds(1))

    def _connect(self) -> None:
        if self._closed:
            raise RuntimeError("closed")
        if self._consumer is None:
            properties = self._jvm.java.util.Properties()
            for name, value in self._options.items():
                properties.setProperty(name, value)
            self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
            self._poll_time = self._jvm.java.time.Duration.ofMillis(_POLL_MS)

    def _partition(self, topic: str, number: int) -> Any:
        if (topic, number) not in self._partitions:
            self._partitions[topic, number] = self._jvm.org.apache.kafka.common.TopicPartition(topic, number)
        return self._partitions[topic, number]

    def _only(self, topic: str, number: int) -> Any:
        if (topic, number) not in self._lists:
            self._lists[topic, number] = self._list(self._partition(topic, number))
        return self._lists[topic, number]

    def _list(self, *items: Any) -> Any:
        made = self._jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made


def chunks(text: str, *, count: int, end: int, chunk_bytes: int) -> list[Chunk]:
    """The records of a poll. text: of the Java list of them. count: how many there are. end: the offset behind all of them.

    A chunk ends with the record with which it has chunk_bytes. Of a record counts the length of its text, too, in which each byte
    of a header takes more than one character. Raises ValueError for a text that is not Kafka's, or has a record in a header.
    """
    found = list(_RECORD.finditer(text))
    if len(found) != count:
        raise ValueError(f"{count} records were read, and {len(found)} are in their text: {text[:200]!r}")
    made: list[Chunk] = []
    size = 0
    for place, match in enumerate(found):
        behind = found[place + 1].start() if place + 1 < count else len(text)
        size += max(0, int(match[2])) + max(0, int(match[3])) + behind - match.start()
        if place + 1 == count or size >= chunk_bytes:
            made.append(Chunk(end=end if place + 1 == count else int(match[1]) + 1, size_bytes=size))
            size = 0
    return made
