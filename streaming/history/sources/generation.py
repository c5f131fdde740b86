"""Learns the generation of the topic `messages`, which is in ids that are made of positions (decision 50)."""

import contextlib
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient

from state.errors import UnreadableRecord
from state.records.routes import MESSAGES_KEY, MessagesTopic, decode_announcement
from streaming.history.sources.kafka_reader import KafkaReader
from streaming.history.sources.source import SourceLimits
from streaming.topics import topic_id

if TYPE_CHECKING:
    from streaming.config.settings import Settings


def messages_generation(settings: "Settings", reader: KafkaReader) -> int | None:
    """Returns the generation that the engine has announced in `routes`.

    None means that the topic was created again since. An engine of an older version announces nothing; then it is 0.

    Raises KafkaError.
    """
    announced = _announced(settings, reader)
    if announced is None:
        return 0
    admin = KafkaAdminClient(**settings.kafka.client_options())
    try:
        found = next((topic_id(one) for one in admin.describe_topics([settings.topics.messages])), "")
    finally:
        admin.close()
    return announced.generation if not found or not announced.topic_id or found == announced.topic_id else None


def _announced(settings: "Settings", reader: KafkaReader) -> MessagesTopic | None:
    """Reads one partition: each has the announcement."""
    topic, announced = settings.topics.routes, None
    if not reader.has(topic):
        return None
    first = [one for one in reader.ranges([topic], SourceLimits(max_records=0)) if one.partition == 0]
    for record in reader.records(first, lambda done, total: None):
        if record.key == MESSAGES_KEY:
            with contextlib.suppress(UnreadableRecord):
                announced = decode_announcement(record.value or b"")
    return announced
