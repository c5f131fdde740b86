"""A history without processes: topics that a consumer reads from memory, and the tables of an archive, written by deltalake."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError

from sinks.delta.spec import PARTITION
from state.records.dead_letters import LAST_DEATH
from streaming.archive.rows import rows_of_record
from streaming.archive.tables import TABLES, topics_of
from streaming.config.settings import Settings
from streaming.history.relations import schema_of
from streaming.history.sources import kafka_reader

T0 = 1_790_000_000_000


class Record(NamedTuple):
    """The part of kafka-python's record that is read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Topics:
    """The topics of a Kafka, with one partition each unless a record says otherwise; offsets without a record are gone or marks.

    Attributes:
        read: The records that consumers have been given.
    """

    def __init__(self) -> None:
        self.records: dict[TopicPartition, list[Record]] = defaultdict(list)
        self.read: list[Record] = []
        self.is_away = False

    def add(self, *records: Record) -> None:
        for record in records:
            self.records[TopicPartition(record.topic, record.partition)].append(record)

    def consumer(self, **_: Any) -> "Consumer":
        if self.is_away:
            raise KafkaConnectionError("nobody listens")
        return Consumer(self)


class Consumer:
    """The part of kafka-python's consumer that a reader uses."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {part.partition for part in self._topics.records if part.topic == topic} | {0}

    def beginning_offsets(self, parts: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {part: min((one.offset for one in self._topics.records[part]), default=0) for part in parts}

    def end_offsets(self, parts: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {part: max((one.offset + 1 for one in self._topics.records[part]), default=0) for part in parts}

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        found = {}
        for part, time_ms in times.items():
            later = [one.offset for one in self._topics.records[part] if one.timestamp >= time_ms]
            found[part] = SimpleNamespace(offset=min(later)) if later else None
        return found

    def assign(self, parts: list[TopicPartition]) -> None:
        self._positions = dict.fromkeys(parts, 0)

    def seek(self, part: TopicPartition, offset: int) -> None:
        self._positions[part] = offset

    def position(self, part: TopicPartition) -> int:
        return self._positions[part]

    def pause(self, *parts: TopicPartition) -> None:
        self._paused.update(parts)

    def resume(self, *parts: TopicPartition) -> None:
        self._paused.difference_update(parts)

    def poll(self, **_: Any) -> dict[TopicPartition, list[Record]]:
        found = {}
        for part, position in self._positions.items():
            records = [one for one in self._topics.records[part] if one.offset >= position]
            if records and part not in self._paused:
                found[part] = records
                self._positions[part] = records[-1].offset + 1
                self._topics.read += records
        return found

    def close(self, **_: Any) -> None:
        pass


def topics_of_all_readers(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Returns topics that every reader of this process reads."""
    made = Topics()
    monkeypatch.setattr(kafka_reader, "KafkaConsumer", made.consumer)
    monkeypatch.setattr(kafka_reader, "check_listening", lambda settings: None)
    return made


def settings_in(data_dir: Path, **sections: Any) -> Settings:
    """Returns settings whose tables are in a directory."""
    return Settings(engine={"data_dir": str(data_dir)}, **sections)


def archive(settings: Settings, *records: Record) -> None:
    """Makes the tables of the archive, with the rows of these records."""
    topics_by_table = topics_of(settings)
    for spec in TABLES:
        rows = [
            row
            for record in records
            if record.topic in topics_by_table[spec.name]
            for row in rows_of_record(spec, record, settings.topics.events)
        ]
        table = pa.Table.from_pylist(rows, schema=schema_of(spec.columns))
        write_deltalake(f"{settings.tables_location}/{spec.name}", table, partition_by=[PARTITION], mode="append")


def ledger(client_id: str, *transitions: str, at: int = 0, time_ms: int = T0, partition: int = 0, **fields: Any) -> Record:
    """Returns a record of the ledger with rows of one micro-batch."""
    rows = [
        {"client_id": client_id, "batch_ms": time_ms, "transition": name, "time_ms": time_ms, **fields} for name in transitions
    ]
    return Record("inflight.ledger", partition, at, time_ms, client_id.encode(), json.dumps(rows).encode(), [])


def receipt(
    client_id: str, message_id: str, outcome: str = "delivered", *, at: int = 0, time_ms: int = T0, took_ms: int = 5
) -> Record:
    value = {
        "message_id": message_id, "client_id": client_id, "outcome": outcome, "reason_code": 0, "attempts": 1,
        "accepted_ms": time_ms - took_ms, "first_sent_ms": time_ms - 1, "outcome_ms": time_ms, "detail": "", "final": True,
        "destinations": [], "deaths": 0, "correlation_data": None,
    }  # fmt: skip
    return Record("inflight.receipts", 0, at, time_ms, client_id.encode(), json.dumps(value).encode(), [])


def letter(client_id: str, message_id: str, died_ms: int, *more: tuple[str, bytes], value: bytes = b"p", at: int = 0) -> Record:
    headers = [("message-id", message_id.encode()), ("mqtt-topic", b"t"), (f"{LAST_DEATH}reason", b"expired"), *more]
    headers.append((f"{LAST_DEATH}time", b"%d" % died_ms))
    return Record("inflight.dead-letters", 0, at, died_ms, client_id.encode(), value, headers)


def publication(client_id: str, topic: str, payload: bytes, *, at: int = 0, time_ms: int = T0) -> Record:
    headers = [("inflight-id", f"gw-{at}".encode()), ("client-id", client_id.encode()), ("mqtt-topic", topic.encode())]
    return Record("inflight.uplink", 0, at, time_ms, client_id.encode(), payload, headers)


def session(client_id: str, **changes: Any) -> dict[str, Any]:
    """Returns a row of `inflight sessions`."""
    row = {
        "client_id": client_id, "connected": True, "inflight": 0, "queued": 0, "queued_bytes": 0, "oldest_unacked": None,
        "next_deadline": "2026-09-21T14:13:20.000Z", "state_bytes": 100, "partition_id": 0, "quarantined": False,
    }  # fmt: skip
    return row | changes


def at_offsets(records: Iterable[Record]) -> list[Record]:
    """Returns the records one behind the other, from offset 0."""
    return [record._replace(offset=offset) for offset, record in enumerate(records)]
