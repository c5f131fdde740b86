"""Rows of the same records with Spark and without: questions show of Kafka's records what the archive's tables will have."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from sinks.delta.spec import TableSpec
from state.model import Outcome
from state.records import messages, uplink
from state.records.ledger import LedgerRow, encode_ledger_rows
from state.records.properties import PROPERTIES, PropertyKind
from state.records.receipts import Receipt
from streaming.archive.rows import rows_of_record
from streaming.archive.spark_rows import dead_letter_rows, ledger_rows, receipt_rows, uplink_rows
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, UPLINK

T0 = 1_790_000_000_123
SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
DEATH = b'{"queue":"c","reason":"%s","count":%d,"time":1789999999000,"exchange":"e","routing-keys":["k"]}'
DEATHS = b"[" + DEATH % (b"expired", 3) + b"," + DEATH % (b"rejected", 1) + b"]"


@dataclass(frozen=True, kw_only=True)
class Record:
    topic: str = 't "1"\\\t/\x01'
    value: bytes | None = b"p"
    key: bytes | None = b"c1"
    partition: int = 2
    offset: int = 7
    timestamp: int = T0
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


LETTERS = [
    Record(),
    Record(key=None, value=None),
    Record(key=b"\xff\xc3\xa9", value=b"\xff\x00", headers=[("message-id", b"m\xff"), ("mqtt-topic", "é/b".encode())]),
    Record(headers=[("message-id", b"a"), ("message-id", b"b"), ("content-type", b"c"), ("mqtt-qos", b"1"), ("priority", b"9")]),
    Record(headers=[("message-id", None), ("x-death", DEATHS), ("x-detail", b"why"), ('q"\\\n\x7f', None)]),
    Record(headers=[("x-death", DEATHS), ("x-last-death-time", b"1789999999001"), ("x-last-death-reason", b"maxlen")]),
    Record(headers=[("x-death", b"\xff"), ("x-last-death-time", b"soon"), ("x-replays", b"2"), ("x-replay-of", b"d")]),
    Record(headers=[("x-death", b"[]"), ("x-last-death-time", b"99999999999999999"), ("x-replays", b"1.5"), ("mqtt-qos", b"")]),
    Record(headers=[("x-last-death-time", b" +1789999999002\t"), ("x-replays", b"-1"), ("mqtt-qos", b"99999999999")]),
    Record(headers=[("x-first-death-reason", b"expired"), ("x-first-death-queue", b"q"), ("priority", b"1_0")]),
]
LEDGERS = [
    LedgerRow(client_id="c1", batch_ms=T0, transition="sent", time_ms=T0 + 1, message_id="é", packet_id=3, attempt=1),
    LedgerRow(client_id="c1", batch_ms=T0, transition="connected", time_ms=-1),
    LedgerRow(client_id="", batch_ms=T0, transition="finished", time_ms=T0, outcome="expired", reason_code=135, detail="d"),
]
RECEIPT = Receipt(
    message_id="m", client_id="c1", outcome=Outcome.DELIVERED, reason_code=0, attempts=2, accepted_ms=T0, first_sent_ms=T0 + 1,
    outcome_ms=T0 + 5, recorded_ms=T0 + 9,
    detail="", final=True, destinations=("client:b",), deaths=1, correlation_data=b"\x00", fast_path=True,
    traceparent=None,
)  # fmt: skip


PUBLICATIONS = [
    Record(),
    Record(key=None, value=None),
    Record(headers=[("inflight-id", b"inflight.events-1-41"), ("mqtt-topic", "é/b".encode()), ("mqtt-qos", b"2")]),
    Record(headers=[("inflight-id", b"inflight.events-1-x"), ("client-id", b"d\xff"), ("mqtt-retain", b"true")]),
    Record(headers=[(row.header, b"1") for row in PROPERTIES if row.kind is not PropertyKind.TEXT_PAIRS]),
    Record(headers=[(f"{row.header}a", b"\xff") for row in PROPERTIES if row.kind is PropertyKind.TEXT_PAIRS] * 2),
    Record(headers=[(uplink.MESSAGE_EXPIRY, b"4294967295"), (uplink.CLIENT_ID, b"dev"), (messages.RETAIN, b"false")]),
]


def frame(spark: SparkSession, *records: Record) -> DataFrame:
    rows = [
        (one.key, one.value, one.topic, one.partition, one.offset, to_time(one.timestamp), one.headers or None) for one in records
    ]
    return spark.createDataFrame(rows, SCHEMA)


def to_time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


def by_spark(rows: DataFrame) -> list[dict[str, Any]]:
    return [{name: as_plain(value) for name, value in row.asDict(recursive=True).items()} for row in rows.collect()]


def plain(spec: TableSpec, *records: Record) -> list[dict[str, Any]]:
    return [
        {name: as_plain(value) for name, value in row.items()}
        for record in records
        for row in rows_of_record(spec, record, "inflight.events")
    ]


def as_plain(value: Any) -> Any:
    match value:
        case bytearray():
            return bytes(value)
        case datetime():
            return value.astimezone(UTC)
        case list():
            return [tuple(as_plain(part) for part in (one.values() if isinstance(one, dict) else one)) for one in value]
    return value


def test_dead_letters_have_equal_rows(spark: SparkSession) -> None:
    assert by_spark(dead_letter_rows(frame(spark, *LETTERS))) == plain(DEAD_LETTERS, *LETTERS)


def test_the_ledger_has_equal_rows(spark: SparkSession) -> None:
    record = Record(value=encode_ledger_rows(LEDGERS))
    records = [record, Record(value=b"no ledger\xff"), Record(value=None, key=None), Record(value=b"[]", offset=8)]
    found = plain(LEDGER, *records)
    assert len(found) == len(LEDGERS) + 2
    assert by_spark(ledger_rows(frame(spark, *records))) == found
    assert [row["transition"] for row in found][-2:] == ["unreadable"] * 2


def test_receipts_have_equal_rows(spark: SparkSession) -> None:
    odd = msgspec.structs.replace(RECEIPT, first_sent_ms=None, accepted_ms=-1, outcome_ms=1 << 50, outcome=Outcome.TOO_LARGE)
    records = [Record(value=msgspec.json.encode(receipt)) for receipt in (RECEIPT, odd)]
    records += [Record(value=b"no receipt\xff"), Record(value=msgspec.json.encode([odd])), Record(value=None, key=None)]
    found = plain(RECEIPTS, *records)
    assert [row["outcome"] for row in found] == ["delivered", odd.outcome, *["unreadable"] * 3]
    assert by_spark(receipt_rows(frame(spark, *records))) == found


def test_publications_have_equal_rows(spark: SparkSession) -> None:
    assert by_spark(uplink_rows(frame(spark, *PUBLICATIONS), events_topic="inflight.events")) == plain(UPLINK, *PUBLICATIONS)
