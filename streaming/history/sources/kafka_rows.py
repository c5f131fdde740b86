"""Finds what records of Kafka say about one message, each row once, without Spark.

The engine may have written a record twice, because its micro-batch was executed again. The copy has another offset and the same
content, by which it is recognised here as in the archive.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from state.model import numbered_partition
from state.records.messages import MESSAGE_ID, TOPIC
from state.records.publications import SHARE
from state.records.record import position
from state.records.routing import RECIPIENT_PREFIX
from state.records.uplink import INFLIGHT_ID
from streaming.archive.cells import KafkaRecord, PlainCells
from streaming.archive.rows import message_id_of, plain_dead_letter_row, plain_ledger_rows, plain_receipt_row
from streaming.history.sources.source import MessageRows, Row

if TYPE_CHECKING:
    from streaming.settings import TopicSettings

REPLAYED: Final = "dead_letter_replayed"
"""The transition in the ledger of a dead letter that somebody has sent again."""


class RowsOfMessage:
    """Collects the rows of one message in `rows`.

    Args:
        client_id: None = of every client.
        generation: The generation of the topic `messages`, which the sessions give to messages without an id of their own;
            None = they read another topic of that name.
    """

    def __init__(self, message_id: str, topics: "TopicSettings", client_id: str | None, *, generation: int | None = 0) -> None:
        self.rows = MessageRows()
        self._message_id = message_id
        self._client_id = client_id
        self._topics = topics
        self._generation = generation
        # As it stands in the JSON of the ledger and of receipts, so that most records need not be decoded.
        self._id_in_json = msgspec.json.encode(message_id)
        self._seen: set[tuple[str, bytes | None, bytes | None]] = set()

    def add(self, record: KafkaRecord) -> None:
        """Adds what a record of one of the topics says about the message. Skips bytes that nobody can read."""
        if record.topic == self._topics.messages:
            self._add_submitted(record)
            return
        if self._client_id is not None and (record.key or b"").decode(errors="replace") != self._client_id:
            return
        topics, rows = self._topics, self.rows
        if record.topic == topics.ledger:
            if self._is_new(record):
                rows.ledger.extend(row for row in plain_ledger_rows(record) if row["message_id"] == self._message_id)
        elif record.topic == topics.receipts:
            if self._is_new(record) and (row := plain_receipt_row(record)) and row["message_id"] == self._message_id:
                rows.receipts.append(row)
        elif record.topic in (topics.uplink, topics.publications):
            is_uplink = record.topic == topics.uplink
            if _publication_id(record, is_uplink=is_uplink) == self._message_id:
                self._add_published(record, is_uplink=is_uplink)
        elif message_id_of(PlainCells(record)) == self._message_id:
            row = plain_dead_letter_row(record)
            if all(row["dead_letter_id"] != known["dead_letter_id"] for known in rows.dead_letters):
                rows.dead_letters.append(row)

    def _add_published(self, record: KafkaRecord, *, is_uplink: bool) -> None:
        publisher = (record.key or b"").decode(errors="replace") if is_uplink else ""
        row = _published_row(record, publisher)
        # The engine may have written it twice. Of a backend a second one is a second attempt.
        if not is_uplink or not any(row["publisher"] == known["publisher"] for known in self.rows.published):
            self.rows.published.append(row)

    def _add_submitted(self, record: KafkaRecord) -> None:
        of = PlainCells(record)
        if of.first(of.header(MESSAGE_ID), self._default_id(record)) != self._message_id:
            return
        for client_id in recipients_of(record):
            if self._client_id in (None, client_id):
                self.rows.submitted.append({"client_id": client_id, **_place(of)})

    def _default_id(self, record: KafkaRecord) -> str | None:
        if self._generation is None:
            return None
        return position(record.topic, numbered_partition(record.partition, self._generation), record.offset)

    def _is_new(self, record: KafkaRecord) -> bool:
        """True if the record names the message and is no copy of an earlier one."""
        content = (record.topic, record.key, record.value)
        if self._id_in_json not in (record.value or b"") or content in self._seen:
            return False
        self._seen.add(content)
        return True


def recipients_of(record: KafkaRecord) -> list[str]:
    """Returns the clients that a record of `inflight.messages` is for."""
    if record.key is not None:
        return [record.key.decode(errors="replace")]
    return [name.removeprefix(RECIPIENT_PREFIX) for name, _ in record.headers if name.startswith(RECIPIENT_PREFIX)]


def _publication_id(record: KafkaRecord, *, is_uplink: bool) -> str:
    """Returns the message id that the publication has with every client."""
    of = PlainCells(record)
    message_id: str = of.first(of.header(INFLIGHT_ID), of.position()) if is_uplink else message_id_of(of)
    return message_id


def _published_row(record: KafkaRecord, publisher: str) -> Row:
    of = PlainCells(record)
    return {
        "publisher": publisher,
        "topic": of.first(of.header(TOPIC), ""),
        "share": of.first(of.header(SHARE), ""),
        **_place(of),
    }


def _place(of: PlainCells) -> Row:
    return {
        "time_ms": of.time_ms,
        "kafka_topic": of.topic,
        "kafka_partition": of.partition,
        "kafka_offset": of.offset,
    }
