"""Finds what records of Kafka say about one message, each row once, without Spark.

The engine may have written a record twice, because its micro-batch was executed again. The copy has another offset and the same
content, by which it is recognised here as in the archive.
"""

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from state.records.dead_letters import TABLE
from streaming.archive.cells import KafkaRecord, PlainCells
from streaming.archive.rows import message_id_of, plain_dead_letter_row, plain_ledger_rows, plain_receipt_row
from streaming.history.sources.source import MessageRows, Row

if TYPE_CHECKING:
    from streaming.settings import TopicSettings

REPLAYED: Final = "dead_letter_replayed"
"""The transition in the ledger of a dead letter that somebody has sent again."""
_REPLAYED: Final = REPLAYED.encode()


class RowsOfMessage:
    """Collects the rows of one message in `rows`. client_id: None = of every client."""

    def __init__(self, message_id: str, topics: "TopicSettings", client_id: str | None) -> None:
        self.rows = MessageRows()
        self._message_id = message_id
        self._client_id = client_id
        self._topics = topics
        # As it stands in the JSON of the ledger and of receipts, so that most records need not be decoded.
        self._id_in_json = msgspec.json.encode(message_id)
        self._seen: set[tuple[str, bytes | None, bytes | None]] = set()

    def add(self, record: KafkaRecord) -> None:
        """Adds what a record of one of the topics says about the message. Skips bytes that nobody can read."""
        if self._client_id is not None and (record.key or b"").decode(errors="replace") != self._client_id:
            return
        topics, rows = self._topics, self.rows
        if record.topic == topics.ledger:
            if self._is_new(record):
                rows.ledger.extend(row for row in plain_ledger_rows(record) if row["message_id"] == self._message_id)
        elif record.topic == topics.receipts:
            row = plain_receipt_row(record) if self._is_new(record) else None
            if row is not None and row["message_id"] == self._message_id:
                rows.receipts.append(row)
        elif message_id_of(PlainCells(record)) == self._message_id:
            if record.topic == topics.messages:
                rows.submitted.append(_submitted_row(record))
            else:
                row = plain_dead_letter_row(record)
                if all(row["dead_letter_id"] != known["dead_letter_id"] for known in rows.dead_letters):
                    rows.dead_letters.append(row)

    def _is_new(self, record: KafkaRecord) -> bool:
        """True if the record names the message and is no copy of an earlier one."""
        content = (record.topic, record.key, record.value)
        if self._id_in_json not in (record.value or b"") or content in self._seen:
            return False
        self._seen.add(content)
        return True


def _submitted_row(record: KafkaRecord) -> Row:
    """Returns the row of a record of `inflight.messages`."""
    of = PlainCells(record)
    return {
        "client_id": of.first(of.key, ""),
        "time_ms": of.time_ms,
        "kafka_topic": of.topic,
        "kafka_partition": of.partition,
        "kafka_offset": of.offset,
    }


def letters_of(records: Iterable[KafkaRecord], client_id: str | None, bound_tables: Container[bytes]) -> Iterator[Row]:
    """Yields the dead letters of `inflight.dead-letters`, each once; `time` in ms since 1970.

    Args:
        client_id: Only those that died in this client's queue; None = all.
        bound_tables: Tables of their own, whose dead letters are left out.
    """
    seen: set[str] = set()
    for record in records:
        if client_id is not None and (record.key or b"").decode(errors="replace") != client_id:
            continue
        if PlainCells(record).raw_header(TABLE) in bound_tables:
            continue
        row = plain_dead_letter_row(record)
        if row["dead_letter_id"] not in seen:
            seen.add(row["dead_letter_id"])
            yield row | {"time": record.timestamp}


def replays_of(records: Iterable[KafkaRecord]) -> Iterator[str]:
    """Yields the ids of dead letters that records of the ledger say were replayed."""
    for record in records:
        if _REPLAYED in (record.value or b""):
            rows = plain_ledger_rows(record)
            yield from (row["detail"].partition(" ")[0] for row in rows if row["transition"] == REPLAYED)
