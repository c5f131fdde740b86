"""What the query says about its micro-batches, as JSON lines in a file that people and the live display of the demo read.

The file is `progress.jsonl` in the data directory. It is renamed to `progress.jsonl.1` when it has a megabyte, so two megabytes
are the most that it can take.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

PROGRESS_FILE: Final = "progress.jsonl"
MAX_FILE_BYTES: Final = 1_000_000
OUTCOMES: Final = "outcomes"
CLIENTS_QUARANTINED: Final = "clients_quarantined"
RESENDS: Final = {"resent": "retry_interval", "replayed": "reconnect"}
"""The names under which streaming/engine/outcome_counts.py counts; of resends by transition, what it is told as."""
_WHOLE: Final = "triggerExecution"
_log: Final = structlog.get_logger(__name__)
_TAIL_BYTES: Final = 65_536


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch. Durations in milliseconds; `rows` came from Kafka; `clients_updated` and `clients_removed` are sessions.

    started: ISO 8601, UTC. duration_ms: the whole micro-batch, of which add_batch_ms is the work and the rest bookkeeping.
    consumer_lag: records in Kafka that this micro-batch did not take, over all partitions.
    end_offsets: by topic and partition, the first record that was not taken.
    state_bytes: of RocksDB's files, 0 where the state store does not say.
    outcomes: receipts written, by outcome; empty where nobody counts them (streaming/engine/outcome_counts.py).
    parts_ms: of the micro-batch, by Spark's names.
    resends: messages that were sent again, by what it was for; counted where outcomes are.
    clients_quarantined: since this micro-batch (state/dead_letters/quarantine.py); 0 where nobody counts.
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


class _Query(Protocol):
    """What of a StreamingQuery is used here: its JVM half, because `recentProgress` would fetch a hundred documents each time."""

    _jsq: Any


class ProgressReader:
    """Hands out what is new since the last call. Spark keeps a hundred micro-batches, so call more often than that."""

    def __init__(self, query: _Query) -> None:
        self._query = query
        self._last_batch_id = -1

    def new(self) -> list[BatchProgress]:
        """The micro-batches that have ended since the last call, oldest first."""
        recent = self._query._jsq.recentProgress()
        found: list[BatchProgress] = []
        for index in range(len(recent) - 1, -1, -1):
            entry = recent[index]
            # The batch id comes back in an idle report; only a micro-batch that ran has a new one.
            if entry.batchId() <= self._last_batch_id:
                break
            document = msgspec.json.decode(entry.json())
            if "addBatch" in document["durationMs"]:
                found.append(batch_progress(document))
        found.reverse()
        if found:
            self._last_batch_id = found[-1].batch_id
        return found


def batch_progress(document: dict[str, Any]) -> BatchProgress:
    """From Spark's StreamingQueryProgress, as JSON."""
    operators: list[dict[str, Any]] = document.get("stateOperators") or []
    durations = document["durationMs"]
    counts = dict(_observed(document, OUTCOMES))
    clients_quarantined = counts.pop(CLIENTS_QUARANTINED, 0)
    resends = {told: counts.pop(transition, 0) for transition, told in RESENDS.items()}
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
        end_offsets=_end_offsets(document.get("sources", ())),
        outcomes={outcome: count for outcome, count in counts.items() if count},
        resends={told: count for told, count in resends.items() if count},
        clients_quarantined=clients_quarantined,
    )


class ProgressFile:
    """Appends lines to `progress.jsonl` of a directory. What cannot be written is left out: no session depends on it."""

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
    """The newest micro-batch that the engine has told about, None before the first; reads only the end of the file."""
    return next(_newest(directory, _TAIL_BYTES), None)


def recent_progress(directory: Path, *, limit_bytes: int) -> list[BatchProgress]:
    """The micro-batches in the last so many bytes of the file, oldest first."""
    return list(_newest(directory, limit_bytes))[::-1]


def _newest(directory: Path, limit_bytes: int) -> Iterator[BatchProgress]:
    """Newest first."""
    for line in _last_lines(directory / PROGRESS_FILE, limit_bytes):
        try:
            yield msgspec.json.decode(line, type=BatchProgress)
        except msgspec.DecodeError:
            continue  # the engine is in the middle of writing it, or it begins before what is read


def _last_lines(path: Path, limit_bytes: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            yield from reversed(file.read().splitlines())
    except OSError:
        return


def _observed(document: dict[str, Any], name: str) -> dict[str, int]:
    """Empty when nothing is counted under that name."""
    found: dict[str, int] | None = document.get("observedMetrics", {}).get(name)
    return found or {}


def _end_offsets(sources: Iterable[dict[str, Any]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for source in sources:
        if isinstance(end := source.get("endOffset"), dict):
            found |= {topic: {int(number): offset for number, offset in offsets.items()} for topic, offsets in end.items()}
    return found


def _consumer_lag(source: dict[str, Any]) -> int:
    """latestOffset − endOffset of Kafka's source, summed over topics and partitions."""
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return 0
    return sum(
        max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )
