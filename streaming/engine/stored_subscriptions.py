"""Writes lists and marks of stored sessions to `inflight.subscriptions`, once for each such topic and copy of a checkpoint.

Matchers learn subscriptions from that topic alone, and gateways write to it from the first CONNECT on with `routing.enabled`.
What sessions hold from before is written by the first engine that starts with routing, before its query starts. A file of the
checkpoint names the topic that has it. It is written last, so an interrupted engine writes everything again, which changes
nothing: of two lists or marks of a client the higher one counts. Behind them comes the record `ALL_MARKED`: a gateway knows then
that a client without a mark has no session. Without routing gateways write nothing, so file and record are deleted.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.errors import UnreadableRecord
from state.model import ClientId
from state.records.record import SinkRecord
from state.records.session_marks import ALL_MARKED, encode_mark, mark_key
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.session_codec import decode_session
from state.settings import SessionSettings
from streaming.checkpoint_topics import TopicIds
from streaming.config.settings import Settings
from streaming.engine.kafka_access import write_records
from streaming.spark_internals.checkpoint import CheckpointFiles, committed_offsets
from streaming.spark_internals.state_rows import state_rows

FILE: Final = "inflight.subscriptions"
_CONTENT: Final = "marks"
"""Says what was written: earlier versions wrote no marks, and no such word."""
_SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_log: Final = structlog.get_logger(__name__)


def announce_stored_subscriptions(
    spark: SparkSession, files: CheckpointFiles, settings: Settings, ids: TopicIds, lineage: str
) -> None:
    """Writes the records unless this topic has them. Call it while no other engine runs.

    Args:
        lineage: The checkpoint's lineage: sessions of an older copy may be back whose marks have ended.

    Raises:
        SPARK_ERRORS: The checkpoint cannot be read.
        KafkaUnreachable: Kafka does not take the records.
    """
    topic, written = settings.topics.subscriptions, files.read(FILE)
    if not settings.routing.enabled:
        if written is not None:
            write_records(settings, [SinkRecord(topic, ALL_MARKED, None)])
            files.delete(FILE)
        return
    announced = f"{ids.topics.get(topic) or topic} {_CONTENT} {lineage}".encode()
    if written == announced:
        return
    if committed_offsets(files):
        _log.info("stored_subscriptions_announced", topic=topic, records=_write_lists(spark, files, settings))
    write_records(settings, [SinkRecord(topic, ALL_MARKED, encode_mark(0))])
    files.write(FILE, announced)


def _write_lists(spark: SparkSession, files: CheckpointFiles, settings: Settings) -> int:
    """Returns the number of records."""
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
            {"key": key, "value": value}
            for client_id, blob in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            for key, value in stored_records(client_id, blob)
        ]
        yield pa.RecordBatch.from_pylist(found, schema=_SCHEMA)


def stored_records(client_id: ClientId, blob: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields key and value of the records of a client: the mark of its session, and the list if it has subscriptions."""
    try:
        session = decode_session(blob, client_id=client_id, settings=SessionSettings())
        subscriptions = tuple(session.outbound.subscriptions)
    except UnreadableRecord:  # a quarantined one: it gets no messages, and is there again when it is restored
        yield mark_key(client_id), encode_mark(0)
        return
    if session.established or session.pending_will is not None:
        yield mark_key(client_id), encode_mark(session.newest_connection_id)
    if subscriptions:
        list_id = session.outbound.routing.list_id
        listed = SubscriptionList(
            connection_id=list_id.connection_id,
            version=list_id.version,
            subscriptions=subscriptions,
            is_online=session.connection is not None,
        )
        yield client_id.encode(), encode_subscriptions(listed)
