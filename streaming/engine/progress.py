"""Reports the micro-batches of a query, as JSON lines in a file for people and for the live display of the demo.

The file is `progress.jsonl` in the data directory. At one megabyte it is renamed to `progress.jsonl.1`, so both together have at
most two megabytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from streaming.spark_internals.query_progress import new_reports

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PROGRESS_FILE: Final = "progress.jsonl"
MAX_FILE_BYTES: Final = 1_000_000
RESENDS: Final = {"resent": "retry_interval", "replayed": "reconnect"}
"""Transitions of messages that are sent again, with the reported trigger."""
_WHOLE: Final = "triggerExecution"
_log: Final = structlog.get_logger(__name__)
_TAIL_BYTES: Final = 65_536


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch. Durations are milliseconds.

    Attributes:
        started: ISO 8601, UTC.
        duration_ms: The whole micro-batch, of which `add_batch_ms` is the work and the rest bookkeeping.
        rows: Records of Kafka.
        consumer_lag: Records in Kafka that this micro-batch did not read, over all partitions.
        clients_updated, clients_removed: Sessions.
        state_bytes: The size of RocksDB's files, 0 where the state store does not report it.
        end_offsets: By topic and partition, the first offset that was not read.
        outcomes: Receipts written since the report before, by outcome; empty where nothing counts them
            (streaming/engine/operator/reported_counts.py).
        parts_ms: Parts of the micro-batch by Spark's names.
        resends: Messages that were sent again, by trigger; counted like `outcomes`.
        clients_quarantined: Sessions quarantined by this micro-batch (state/dead_letters/quarantine.py); counted like `outcomes`.
        dropped_connected, dropped_offline: Messages that sessions have dropped since the report before, by outcome, of clients
            that were connected and of others (streaming/engine/operator/reported_drops.py).
        dropped_for: Some of those connected clients.
        backlog_bytes: Large queues of clients that keep up, all together (streaming/engine/operator/reported_backlogs.py).
    """

    batch_id: int
    started: str
    duration_ms: int
    add_batch_ms: int = 0
    rows: int = 0
    consumer_lag: int = 0
    clients_updated: int = 0
    clients_removed: int = 0
    state_commit_ms: int = 0
    state_bytes: int = 0
    end_offsets: dict[str, dict[int, int]] = {}
    outcomes: dict[str, int] = {}
    parts_ms: dict[str, int] = {}
    resends: dict[str, int] = {}
    clients_quarantined: int = 0
    dropped_connected: dict[str, int] = {}
    dropped_offline: dict[str, int] = {}
    dropped_for: tuple[str, ...] = ()
    backlog_bytes: int = 0

    @property
    def called_sessions(self) -> bool:
        """Returns False for a micro-batch of records that are for no session: an idle engine has one regularly."""
        return self.clients_updated + self.clients_removed > 0


class ProgressReader:
    """Returns new micro-batches of a query. Spark keeps the last hundred, so call it more often than that."""

    def __init__(self, query: "StreamingQuery") -> None:
        self._query = query
        self._last_batch_id = -1

    def new(self) -> list[BatchProgress]:
        """Returns the micro-batches that have ended since the last call, oldest first."""
        found = [batch_progress(report) for report in new_reports(self._query, after_batch_id=self._last_batch_id)]
        if found:
            self._last_batch_id = found[-1].batch_id
        return found


def batch_progress(document: dict[str, Any]) -> BatchProgress:
    """Reads Spark's StreamingQueryProgress.

    Args:
        document: Decoded JSON.
    """
    operators: list[dict[str, Any]] = document.get("stateOperators") or []
    durations = document["durationMs"]
    return BatchProgress(
        batch_id=document["batchId"],
        started=document["timestamp"],
        duration_ms=durations.get(_WHOLE, 0),
        parts_ms={part: took_ms for part, took_ms in durations.items() if part != _WHOLE},
        add_batch_ms=durations.get("addBatch", 0),
        rows=document.get("numInputRows", 0),
        consumer_lag=sum(_consumer_lag(source) for source in document.get("sources", ())),
        clients_updated=sum(operator.get("numRowsUpdated", 0) for operator in operators),
        clients_removed=sum(operator.get("numRowsRemoved", 0) for operator in operators),
        state_commit_ms=sum(operator.get("commitTimeMs", 0) for operator in operators),
        state_bytes=sum(operator.get("customMetrics", {}).get("rocksdbSstFileSize", 0) for operator in operators),
        end_offsets={
            topic: {int(number): offset for number, offset in offsets.items()}
            for source in document.get("sources", ())
            for topic, offsets in (source.get("endOffset") or {}).items()
        },
    )


class ProgressFile:
    """Appends lines to `progress.jsonl` of a directory. A line that cannot be written is dropped: no session depends on it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / PROGRESS_FILE

    def append(self, batches: list[BatchProgress]) -> None:
        if not batches:
            return
        lines = b"".join(msgspec.json.encode(batch) + b"\n" for batch in batches)
        try:
            self._append(lines)
        except OSError as error:
            _log.warning("progress_not_written", file=str(self._path), error=str(error))

    def _append(self, lines: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size + len(lines) > MAX_FILE_BYTES:
            self._path.replace(self._path.with_name(f"{PROGRESS_FILE}.1"))
        with self._path.open("ab") as file:
            file.write(lines)


def last_progress(directory: Path) -> BatchProgress | None:
    """Returns the newest reported micro-batch, None before the first. Reads only the end of the file."""
    return next(_newest(directory, _TAIL_BYTES), None)


def recent_progress(directory: Path, *, limit_bytes: int) -> list[BatchProgress]:
    """Returns the micro-batches in the last `limit_bytes` of the file, oldest first."""
    return list(_newest(directory, limit_bytes))[::-1]


def _newest(directory: Path, limit_bytes: int) -> Iterator[BatchProgress]:
    """Yields the newest first."""
    for line in _last_lines(directory / PROGRESS_FILE, limit_bytes):
        try:
            yield msgspec.json.decode(line, type=BatchProgress)
        except msgspec.DecodeError:
            continue  # the engine is just writing it, or it begins before `limit_bytes`


def _last_lines(path: Path, limit_bytes: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            yield from reversed(file.read().splitlines())
    except OSError:
        return


def _consumer_lag(source: dict[str, Any]) -> int:
    """Returns latestOffset − endOffset of Kafka's source, summed over topics and partitions."""
    if not (end := source.get("endOffset")):
        return 0
    return sum(
        max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in (source.get("latestOffset") or {}).items()
        for partition, offset in partitions.items()
    )
