"""Finds records of `inflight.messages` in another partition than that of their key: a backend has another partitioner.

Order is kept in one partition only, so such a backend, beside one with Kafka's own hash, breaks the order of a client's messages,
and nothing else shows that. Every key of the topic has one right partition, murmur2 of it modulo their number
(docs/guides/kafka_clients.md).

The check costs the same under any load: after a micro-batch that has read new records, at most every five seconds, it looks at
the last `SAMPLE` of them in each partition, or at fewer if they are large. That is 10 µs for a key, less than a thousandth of a
core for four partitions. So it does not count all such records, but a backend that writes one record in a hundred is found
within seconds. What was in the topic when the engine began is not looked at: a partition may have been added since.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import structlog
from kafka.partitioner.default import murmur2

from sinks.escaping import escaped
from streaming.background import KafkaPoller
from streaming.config.settings import Settings
from streaming.engine.data_file import DataFile
from streaming.engine.intake.record_log import ReadRecords, record_reader
from streaming.engine.intake.record_sizes import MOST_KEY_BYTES, RecordFacts
from streaming.engine.progress import BatchProgress

SAMPLE: Final = 100
"""Records of each partition that one look checks at most."""
QUIET_S: Final = 900.0
"""The count ends when nothing was found for this long. A later record begins a new one."""
EXAMPLES: Final = 3
ACTION: Final = (
    "a backend's Kafka client does not use Kafka's own hash of the key (murmur2), as sarama, kafka-go and librdkafka do not by "
    "default: set its partitioner (docs/guides/kafka_clients.md). Until then messages of one client may overtake each other"
)
_POSITIVE: Final = 0x7FFF_FFFF
_SAMPLE_BYTES: Final = 256 << 10
_log: Final = structlog.get_logger(__name__)


class PartitionSample(NamedTuple):
    """The result of a look at one partition.

    Attributes:
        checked: Records with a key.
        wrong: (key, its right partition) of each record that is in the wrong one.
    """

    checked: int
    wrong: list[tuple[bytes, int]]


def right_partition(key: bytes, partitions: int) -> int:
    """Returns the partition that Java's client, and every other one with its hash, gives a key."""
    number: int = (murmur2(key) & _POSITIVE) % partitions
    return number


def sample(records: Iterable[RecordFacts], number: int, partitions: int) -> PartitionSample:
    """Checks records of partition `number`. One without a key, or with a key that is no client id, may be anywhere."""
    keys = [record.key for record in records if record.key and len(record.key) < MOST_KEY_BYTES]
    right = ((key, right_partition(key, partitions)) for key in keys)
    return PartitionSample(len(keys), [(key, partition) for key, partition in right if partition != number])


class MisplacedRecords(DataFile, frozen=True, kw_only=True):
    """Records in a wrong partition that were found without a pause of `QUIET_S`.

    Attributes:
        since_s, newest_s: Times of the first and the newest look that has found one, in seconds since 1970.
        found, checked: Records in the wrong partition, and all that these looks have checked.
        examples: For people, the newest last.
    """

    file: ClassVar = "misplaced.json"
    since_s: float = 0.0
    newest_s: float = 0.0
    found: int = 0
    checked: int = 0
    examples: tuple[str, ...] = ()

    @classmethod
    def recent(cls, data_dir: Path, now_s: float) -> "MisplacedRecords":
        """Returns what is found at this time; nothing if the newest one is older than `QUIET_S`."""
        found = cls.read(data_dir)
        return found if now_s - found.newest_s < QUIET_S else cls()

    def with_more(self, number: int, one: PartitionSample, now_s: float) -> "MisplacedRecords":
        """Returns the count with a look at partition `number`."""
        earlier = self if now_s - self.newest_s < QUIET_S else MisplacedRecords(since_s=now_s)
        named = dict.fromkeys(f"{_shown(key)} in {number} instead of {right}" for key, right in one.wrong)
        others = (text for text in earlier.examples if text not in named)
        return MisplacedRecords(
            since_s=earlier.since_s,
            newest_s=now_s,
            found=earlier.found + len(one.wrong),
            checked=earlier.checked + one.checked,
            examples=(*others, *named)[-EXAMPLES:],
        )

    def __str__(self) -> str:
        """Returns the counts, the time and the examples for people."""
        since = datetime.fromtimestamp(self.since_s, UTC).strftime("%H:%M:%S")
        return f"{self.found:,} of {self.checked:,} records checked since {since} UTC, for example {', '.join(self.examples)}"


class PartitionerCheck(KafkaPoller):
    """Checks samples of new records in a `with`, on a thread.

    Args:
        partitions: Of `inflight.messages`, as the engine reads it.
        on_found: Called with the number of misplaced records of a look.
        now_s: Returns Unix time in seconds.
    """

    _unknown = "partitioner_unknown"

    def __init__(
        self,
        settings: Settings,
        partitions: int,
        *,
        on_found: Callable[[int], None] = lambda count: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("inflight-partitioner")
        self._options = {**settings.kafka.client_options(), "max_partition_fetch_bytes": _SAMPLE_BYTES}
        self._topic = settings.topics.messages
        self._data_dir = settings.engine.data_dir
        self._partitions = partitions
        self._on_found = on_found
        self._now_s = now_s
        self._ends: dict[int, int] = {}
        self._checked: dict[int, int] = {}
        self._found = MisplacedRecords.recent(self._data_dir, now_s())

    def observe(self, batch: BatchProgress) -> None:
        """Call it after each micro-batch, from any thread."""
        ends = batch.end_offsets.get(self._topic)
        if ends is not None:
            self._ends = ends

    def look(self, read: ReadRecords) -> None:
        """Checks what has come since the last call. Raises what `read` raises."""
        for number, end in self._ends.items():
            begin = max(self._checked.setdefault(number, end), end - SAMPLE)
            self._checked[number] = end
            if begin < end and (one := sample(_few(read(self._topic, number, begin, end)), number, self._partitions)).wrong:
                self._note(number, one)

    def _note(self, number: int, one: PartitionSample) -> None:
        known = self._found
        self._found = known.with_more(number, one, self._now_s())
        self._on_found(len(one.wrong))
        if self._found.since_s != known.since_s:
            _log.warning("wrong_partitioner", topic=self._topic, examples=list(self._found.examples), action=ACTION)
        try:
            self._found.write(self._data_dir)
        except OSError as error:
            _log.warning("misplaced_not_written", error=str(error), action="the metric misplaced_records counts them")

    def _connect(self) -> Any:
        stack = ExitStack()
        return stack, stack.enter_context(record_reader(self._options))

    def _poll(self, client: Any) -> None:
        _, read = client
        self.look(read)

    def _close(self, client: Any) -> None:
        stack, _ = client
        stack.close()


def _few(records: Iterable[RecordFacts]) -> Iterable[RecordFacts]:
    """Yields records until they are `_SAMPLE_BYTES` long together."""
    size_bytes = 0
    for record in records:
        yield record
        size_bytes += record.size_bytes
        if size_bytes >= _SAMPLE_BYTES:
            return


def _shown(key: bytes) -> str:
    return escaped(key.decode(errors="replace"))
