"""Declares the tables of the archive, which docs/operate/archive.md describes and people write SQL against.

Names and meanings never change; columns are only added at the end, before `date`.
"""

from typing import TYPE_CHECKING, Final

from sinks.delta.spec import ColumnSpec, CopyBound, TableSpec
from state.records.properties import CONTENT_TYPE, USER_PROPERTIES, Property, PropertyKind
from state.records.uplink import UPLINK_PROPERTIES

if TYPE_CHECKING:
    from streaming.config.settings import Settings

GATEWAY_COPY_WITHIN_MS: Final = 300_000
"""A gateway gives up a record after `gateway.append_timeout_ms`, so a copy of it is never older than this."""


def _columns(*columns: tuple[str, str, str]) -> tuple[ColumnSpec, ...]:
    return tuple(ColumnSpec(name=name, sql_type=sql_type, comment=comment) for name, sql_type, comment in columns)


_PROPERTY_TYPES: Final = {
    PropertyKind.FLAG: "INT",
    PropertyKind.TEXT: "STRING",
    PropertyKind.TOPIC_NAME: "STRING",
    PropertyKind.BINARY: "BINARY",
    PropertyKind.TEXT_PAIRS: "ARRAY<STRUCT<name: STRING, value: STRING>>",
}


def _property(row: Property) -> tuple[str, str, str]:
    """Returns the column of an MQTT 5 property."""
    absent = "in order" if row.kind is PropertyKind.TEXT_PAIRS else "null = not given"
    comment = f"MQTT 5: {row.meaning}; {absent}" if row.meaning else f"MQTT 5, {absent}"
    return row.field, _PROPERTY_TYPES[row.kind], comment


_POSITION: Final = (
    ("kafka_partition", "INT", "where the record was in its topic (of the first copy that was archived)"),
    ("kafka_offset", "BIGINT", "see kafka_partition; orders the rows of one client within a micro-batch"),
)

LEDGER: Final = TableSpec(
    name="ledger",
    comment="One row for each transition of a message or a session, in the session's own words",
    columns=_columns(
        ("client_id", "STRING", "whose session; empty for a record that named no client"),
        ("message_id", "STRING", "null for what happens to the session itself"),
        ("time", "TIMESTAMP", "when the client answered or a gateway sent (fast_sent), else when the session did it, UTC"),
        (
            "transition",
            "STRING",
            "accepted, queued, sent, fast_sent, resent, replayed, pubrec, pubrel_sent, refused, overdue, finished, connected, …",
        ),
        ("attempt", "INT", "how often the message had been sent; 0 = does not apply"),
        ("packet_id", "INT", "MQTT packet id, null = none"),
        ("outcome", "STRING", "with transition finished: delivered, expired, rejected, maxlen, …"),
        ("reason_code", "INT", "MQTT 5 reason code of what caused the transition; 0 = success or none"),
        ("detail", "STRING", "for people; empty = nothing to add"),
        ("batch_ms", "BIGINT", "time of the session's micro-batch, ms since 1970; with client_id it names the activation"),
        ("row_index", "INT", "position of the row in its record, from 0"),
        (
            "record_hash",
            "BIGINT",
            "xxhash64 of client id and value of the record: with row_index, client_id and batch_ms the row's key",
        ),
        *_POSITION,
        ("date", "DATE", "day of batch_ms, UTC; the partition"),
    ),
    key=("client_id", "batch_ms", "record_hash", "row_index"),
    bounds=(CopyBound(column="batch_ms"),),
    cluster_by="message_id",
)

DEAD_LETTERS: Final = TableSpec(
    name="dead_letters",
    comment="Messages that were not delivered, whole: `inflight replay` sends them again from here",
    columns=_columns(
        ("dead_letter_id", "STRING", "hash of the record's content: the same for a copy"),
        ("client_id", "STRING", "whose queue the message died in (key of the record)"),
        ("message_id", "STRING", "the message's id, the same in all its lives"),
        ("time", "TIMESTAMP", "when the dead letter was written to Kafka, UTC"),
        ("reason", "STRING", "rejected, expired, maxlen, delivery_limit, too-large, session_ended, invalid, quarantined"),
        ("deaths", "INT", "how often the message has died, all queues and reasons together"),
        ("first_reason", "STRING", "x-first-death-reason"),
        ("first_queue", "STRING", "x-first-death-queue"),
        ("detail", "STRING", "what was wrong, for people (x-detail)"),
        ("topic", "STRING", "MQTT topic"),
        ("qos", "INT", "0, 1, 2"),
        ("priority", "INT", "0…255"),
        (CONTENT_TYPE.field, "STRING", "null = not given"),
        ("payload", "BINARY", "as it was sent"),
        ("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", "all headers of the record, in order"),
        ("x_death", "STRING", "the death history, JSON, newest first"),
        ("replay_of", "STRING", "the dead letter from which `inflight replay` had sent this message; null = never replayed"),
        ("replays", "INT", "how often `inflight replay` had sent this message before it died this time"),
        ("died_ms", "BIGINT", "when the message died, ms since 1970: the same for a copy"),
        ("kafka_topic", "STRING", "the dead letter topic"),
        *_POSITION,
        ("date", "DATE", "day of died_ms, UTC; the partition"),
    ),
    key=("dead_letter_id",),
    bounds=(CopyBound(column="died_ms"),),
    cluster_by="message_id",
)

UPLINK: Final = TableSpec(
    name="uplink",
    comment="Publications of devices, each once",
    columns=_columns(
        ("inflight_id", "STRING", "unique per publication"),
        ("client_id", "STRING", "who published"),
        ("time", "TIMESTAMP", "when the record was written to Kafka, UTC"),
        ("topic", "STRING", "MQTT topic"),
        ("qos", "INT", "0, 1, 2"),
        ("retain", "BOOLEAN", "the RETAIN flag"),
        ("payload", "BINARY", "as the device sent it"),
        *(_property(row) for row in UPLINK_PROPERTIES if row is not USER_PROPERTIES),
        ("message_expiry_s", "BIGINT", "MQTT 5 Message Expiry Interval in seconds, null = not given"),
        _property(USER_PROPERTIES),
        ("event_offset", "BIGINT", "of the event that the engine made this of; null = written by a gateway"),
        ("appended_ms", "BIGINT", "time of the record, ms since 1970; null = written by the engine"),
        *_POSITION,
        ("date", "DATE", "day of time, UTC; the partition"),
    ),
    key=("inflight_id",),
    # The engine may write a copy of an event at any later time, a gateway only while it retries an append.
    bounds=(CopyBound(column="event_offset"), CopyBound(column="appended_ms", slack=GATEWAY_COPY_WITHIN_MS)),
    cluster_by="client_id",
)

RECEIPTS: Final = TableSpec(
    name="receipts",
    comment="The last word about each message: outcome, attempts and times",
    columns=_columns(
        ("client_id", "STRING", "whom the message was for"),
        ("message_id", "STRING", "the message's id"),
        ("outcome", "STRING", "delivered, sent (QoS 0), expired, rejected, maxlen, delivery_limit, too-large, …"),
        ("reason_code", "INT", "MQTT 5 reason code, 0 = success or none"),
        ("attempts", "INT", "how often it was sent"),
        ("accepted", "TIMESTAMP", "when Kafka took the message, UTC"),
        ("first_sent", "TIMESTAMP", "null = never sent"),
        ("time", "TIMESTAMP", "when the client answered, or the session ended the message (outcome_ms of the receipt), UTC"),
        ("latency_ms", "BIGINT", "time − accepted"),
        ("detail", "STRING", "for people"),
        ("outcome_ms", "BIGINT", "time as ms since 1970"),
        ("record_hash", "BIGINT", "xxhash64 of client id and value of the record"),
        *_POSITION,
        ("fast_path", "BOOLEAN", "whether a gateway sent it first, before the session had read it; null = of an older version"),
        ("recorded_ms", "BIGINT", "when the session recorded the outcome: time of its micro-batch, ms since 1970"),
        ("date", "DATE", "day of time, UTC; the partition"),
    ),
    key=("client_id", "message_id", "outcome_ms", "record_hash"),
    bounds=(CopyBound(column="recorded_ms"),),
    cluster_by="message_id",
)

TABLES: Final = (LEDGER, DEAD_LETTERS, UPLINK, RECEIPTS)


def table_location(tables_location: str, spec: TableSpec) -> str:
    """Returns where a table is: in a directory of its own below `tables_location`."""
    return f"{tables_location.rstrip('/')}/{spec.name}"


def topics_of(settings: "Settings") -> dict[str, tuple[str, ...]]:
    """Returns the topics that each table is made of."""
    topics = settings.topics
    return {
        LEDGER.name: (topics.ledger,),
        DEAD_LETTERS.name: (topics.dead_letters, *settings.dead_letter_topics),
        UPLINK.name: (topics.uplink,),
        RECEIPTS.name: (topics.receipts,),
    }
