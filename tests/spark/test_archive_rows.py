"""Rows of the same records with Spark and without: `inflight trace` shows what the archive's tables have."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from state.model import Outcome
from state.records.ledger import LedgerRow, encode_ledger_rows
from state.records.receipts import Receipt
from streaming.archive.rows import (
    dead_letter_rows,
    ledger_rows,
    plain_dead_letter_row,
    plain_ledger_rows,
    plain_receipt_rows,
    receipt_rows,
)

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


def frame(spark: SparkSession, *records: Record) -> DataFrame:
    rows = [
        (one.key, one.value, one.topic, one.partition, one.offset, to_time(one.timestamp), one.headers or None) for one in records
    ]
    return spark.createDataFrame(rows, SCHEMA)


def to_time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


def by_spark(rows: DataFrame, names: set[str]) -> list[dict[str, Any]]:
    return [
        {name: as_plain(value) for name, value in row.asDict(recursive=True).items() if name in names} for row in rows.collect()
    ]


def as_plain(value: Any) -> Any:
    match value:
        case bytearray():
            return bytes(value)
        case datetime():
            return value.astimezone(UTC)
        case list():
            return [(one["key"], as_plain(one["value"])) for one in value]
    return value


def test_dead_letters_have_equal_rows(spark: SparkSession) -> None:
    plain = [plain_dead_letter_row(record) | {"headers": record.headers or None} for record in LETTERS]
    assert by_spark(dead_letter_rows(frame(spark, *LETTERS)), set(plain[0])) == plain


def test_the_ledger_has_equal_rows(spark: SparkSession) -> None:
    record = Record(value=encode_ledger_rows(LEDGERS))
    plain = plain_ledger_rows(record)
    assert len(plain) == len(LEDGERS)
    assert by_spark(ledger_rows(frame(spark, record)), set(plain[0])) == plain


def test_receipts_have_equal_rows(spark: SparkSession) -> None:
    odd = msgspec.structs.replace(RECEIPT, first_sent_ms=None, accepted_ms=-1, outcome_ms=1 << 50, outcome=Outcome.TOO_LARGE)
    records = [Record(value=msgspec.json.encode(receipt)) for receipt in (RECEIPT, odd)]
    records.append(Record(value=msgspec.json.encode([odd, RECEIPT, odd]), offset=9))
    plain = [row for record in records for row in plain_receipt_rows(record)]
    assert len(plain) == 5
    rows = receipt_rows(frame(spark, *records))
    assert by_spark(rows, set(plain[0])) == plain
    hashes = [row["record_hash"] for row in rows.collect()]
    assert len(set(hashes)) == len(hashes), "a message id may be in an array twice"
