"""The list of the newest messages, from the ledger of a real Kafka."""

import uuid

from kafka import KafkaProducer

from state.records.ledger import LedgerRow, encode_ledger_rows
from streaming.config.settings import Settings
from streaming.history.recent import newest_messages
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka

T0 = 1_700_000_000_000


def row(message_id: str | None, transition: str, batch_ms: int, time_ms: int | None = None) -> LedgerRow:
    """time_ms: None = that of the micro-batch."""
    at_ms = T0 + (batch_ms if time_ms is None else time_ms)
    return LedgerRow(client_id="pump", batch_ms=T0 + batch_ms, transition=transition, time_ms=at_ms, message_id=message_id)


def test_the_newest_messages_come_first_with_their_last_step(kafka: SharedKafka) -> None:
    settings = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": f"newest-{uuid.uuid4().hex[:8]}"})
    create_topics(kafka.bootstrap_servers, settings.topics.ledger, partitions=2)
    records = [
        [row("old", "sent", 0), row("old", "resent", 6), row("old", "finished", 7, 5)],
        [row("new", "queued", 3), row(None, "connected", 9)],
        [row("new", "sent", 8)],
        [row("older", "finished", 1)],
    ]
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
    for number, rows in enumerate(records):
        producer.send(settings.topics.ledger, partition=number % 2, key=b"pump", value=encode_ledger_rows(rows)).get(30)
    producer.close()
    progress: list[tuple[int, int]] = []
    found = newest_messages(settings, max_records=100, most=2, on_progress=lambda done, of: progress.append((done, of)))
    assert [(found.message_id, found.step.step, found.step.time_ms) for found in found.steps] == [
        ("new", "sent", T0 + 8),
        ("old", "finished", T0 + 5),
    ]
    assert "4 records" in found.source
    assert progress[-1] == (4, 4)
