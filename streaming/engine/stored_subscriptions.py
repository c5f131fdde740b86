"""Writes the subscriptions of stored sessions to `inflight.subscriptions`, once for each such topic.

Matchers learn subscriptions from that topic alone, and gateways write to it from the first SUBSCRIBE on with `routing.enabled`.
What sessions hold from before is written by the first engine that starts with routing, before its query starts. A file of the
checkpoint names the topic that has them. It is written last, so an interrupted engine writes all lists again, which changes
nothing: of two lists of a client the higher one counts. Without routing gateways write no lists, so the file is deleted.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.errors import UnreadableRecord
from state.model import ClientId
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.session_codec import decode_session
from state.settings import SessionSettings
from streaming.checkpoint_topics import TopicIds
from streaming.config.settings import Settings
from streaming.spark_internals.checkpoint import CheckpointFiles, committed_offsets
from streaming.spark_internals.state_rows import state_rows

FILE: Final = "inflight.subscriptions"
_SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_log: Final = structlog.get_logger(__name__)


def announce_stored_subscriptions(spark: SparkSession, files: CheckpointFiles, settings: Settings, ids: TopicIds) -> None:
    """Writes the lists unless this topic has them. Call it while no other engine runs.

    Raises SPARK_ERRORS if the checkpoint cannot be read or Kafka does not take the records.
    """
    if not settings.routing.enabled:
        files.delete(FILE)
        return
    topic = settings.topics.subscriptions
    topic_id = (ids.topics.get(topic) or topic).encode()
    if files.read(FILE) == topic_id:
        return
    if committed_offsets(files):
        _log.info("stored_subscriptions_announced", topic=topic, clients=_write_lists(spark, files, settings))
    files.write(FILE, topic_id)


def _write_lists(spark: SparkSession, files: CheckpointFiles, settings: Settings) -> int:
    """Returns the number of clients that have subscriptions."""
    rows = state_rows(spark, files.path()).select("client_id", "blob")
    lists = rows.mapInArrow(_lists, "key binary, value binary").withColumn("topic", F.lit(settings.topics.subscriptions)).cache()
    try:
        lists.write.format("kafka").options(**settings.kafka.spark_options(), **{"kafka.acks": "all"}).save()
        return lists.count()
    finally:
        lists.unpersist()


def _lists(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = [
            {"key": client_id.encode(), "value": value}
            for client_id, blob in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            if (value := stored_list(client_id, blob)) is not None
        ]
        yield pa.RecordBatch.from_pylist(found, schema=_SCHEMA)


def stored_list(client_id: ClientId, blob: bytes) -> bytes | None:
    """Returns the value of a client's record; None if it has no subscriptions, or no session that can be read."""
    try:
        session = decode_session(blob, client_id=client_id, settings=SessionSettings())
        subscriptions = tuple(session.outbound.subscriptions)
    except UnreadableRecord:
        return None  # a quarantined one: it gets no messages
    if not subscriptions:
        return None
    list_id = session.outbound.routing.list_id
    return encode_subscriptions(
        SubscriptionList(
            connection_id=list_id.connection_id,
            version=list_id.version,
            subscriptions=subscriptions,
            is_online=session.connection is not None,
        )
    )
