"""Records in the ledger when each micro-batch was executed, and which records of Kafka it read.

A session is a function of its events and of the time of each activation. The ledger has the times; with these rows it says which
events each activation had, so that `inflight what-if` can repeat it (docs/decisions/0048). Spark's own offset log says the same
for the last hundred micro-batches only.

1. A row has no client: `transition` is `micro_batch`, `batch_ms` the time, `time_ms` that of the micro-batch before it, and
   `detail` the offsets that were read, as JSON.
2. A micro-batch without records has no row.
3. The rows of a second are one record. It is written after the micro-batch is committed, so all its other rows are before it.
4. After a start the newest entries of the offset log are written again, because a killed engine may have left them out. A reader
   drops the copies.
5. Rows that Kafka does not confirm are written later. The sessions do not wait for them.
"""

from collections.abc import Callable, Iterator
from typing import Final, Self, TypeAlias

import msgspec
import structlog
from kafka.errors import KafkaError
from pyspark.sql import SparkSession

from state.records.ledger import LedgerRow, encode_ledger_rows
from streaming.background import BackgroundLoop
from streaming.config.settings import Settings
from streaming.engine.kafka_access import TopicLog
from streaming.engine.progress import BatchProgress
from streaming.spark_internals.checkpoint import CheckpointFiles, LoggedBatch, logged_batch

MICRO_BATCH: Final = "micro_batch"
NO_CLIENT: Final = ""
OffsetsRead: TypeAlias = dict[str, dict[int, tuple[int, int]]]
"""By topic and partition: the first offset that was read, and the one after the last."""

_REPEATED: Final = 20
"""Entries that are written again after a start. An engine reports a micro-batch within a second."""
_MOST_WAITING: Final = 10_000
_EVERY_S: Final = 1.0
_BLOCK_MS: Final = 5_000
_DELIVERY_MS: Final = 10_000
_log: Final = structlog.get_logger(__name__)


def batch_row(batch: LoggedBatch, before: LoggedBatch | None) -> LedgerRow | None:
    """Returns the row of a micro-batch; None if it read nothing.

    Args:
        before: The micro-batch before it; None = it is the first.
    """
    starts = {} if before is None else before.ends
    read: OffsetsRead = {}
    for topic, ends in batch.ends.items():
        begins = starts.get(topic, {})
        moved = {number: (begins.get(number, 0), end) for number, end in ends.items() if end > begins.get(number, 0)}
        if moved:
            read[topic] = moved
    if not read:
        return None
    return LedgerRow(
        client_id=NO_CLIENT,
        batch_ms=batch.batch_ms,
        transition=MICRO_BATCH,
        time_ms=batch.batch_ms if before is None else before.batch_ms,
        detail=msgspec.json.encode(read).decode(),
    )


def offsets_read(row: LedgerRow) -> OffsetsRead:
    """Returns what a row of `batch_row` says was read. Raises msgspec.DecodeError."""
    return msgspec.json.decode(row.detail, type=OffsetsRead)


class BatchRecorder(BackgroundLoop):
    """Writes the rows of an engine, from `start` on, on a thread of its own.

    Args:
        write: Appends a record of the ledger. Raises KafkaError if Kafka does not confirm it.
        close: Closes the client that `write` uses.
    """

    _join_s = 5.0

    def __init__(self, files: CheckpointFiles, write: Callable[[bytes], None], close: Callable[[], None] = lambda: None) -> None:
        super().__init__("inflight-batch-recorder")
        self._files = files
        self._write = write
        self._close = close
        self._newest = -1
        self._last_id: int | None = None
        self._last: LoggedBatch | None = None
        self._waiting: list[LedgerRow] = []

    @classmethod
    def of(cls, settings: Settings, spark: SparkSession, location: str) -> Self:
        topic = settings.topics.ledger
        log = TopicLog(settings, topic, client_id="inflight-batches", max_block_ms=_BLOCK_MS, delivery_timeout_ms=_DELIVERY_MS)
        return cls(CheckpointFiles(spark, location), lambda value: log.write(topic, [(NO_CLIENT.encode(), value)]), log.close)

    def observe(self, batch: BatchProgress) -> None:
        """Call it after each micro-batch, from any thread."""
        self._newest = batch.batch_id

    def write_new(self) -> None:
        """Writes what is new. Raises KafkaError; the rows are then written by the next call."""
        self._waiting = [*self._waiting, *self._new_rows()][-_MOST_WAITING:]
        if self._waiting:
            self._write(encode_ledger_rows(self._waiting))
            self._waiting = []

    def _new_rows(self) -> Iterator[LedgerRow]:
        newest = self._newest
        first = max(0, newest - _REPEATED) if self._last_id is None else self._last_id + 1
        for batch_id in range(first, newest + 1):
            batch = logged_batch(self._files, batch_id)
            if batch is not None and (self._last is not None or batch_id == 0):
                row = batch_row(batch, self._last)
                if row is not None:
                    yield row
            self._last_id, self._last = batch_id, batch

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_EVERY_S):
                self._try_to_write()
            self._try_to_write()
        finally:
            self._close()

    def _try_to_write(self) -> None:
        try:
            self.write_new()
        except KafkaError as error:
            _log.warning("batches_not_recorded", error=repr(error), action="they are written again in a second")
        except Exception as error:  # noqa: BLE001 - the sessions continue without it
            _log.warning("batches_not_recorded", error=repr(error), action="`inflight what-if` takes the times of the ledger")
