"""The query `archive` on a real Kafka and real Delta tables: every row once, whatever is repeated."""

import calendar
import dataclasses
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sinks.delta.spec import TableSpec
from sinks.delta.tables import DeltaTransaction, append_new, create_table, properties
from state.model import PublishProperties, QoS
from state.records.ledger import LedgerRow
from state.records.uplink import uplink_headers
from state.setting import DAY
from streaming.archive.maintenance import SORTED_UNTIL, Maintenance
from streaming.archive.query import archive_checkpoint, start_archive
from streaming.archive.spark_rows import ledger_rows, receipt_rows
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, TABLES, UPLINK, table_location
from streaming.config.settings import Settings
from streaming.settings import ArchiveSettings
from streaming.topics import ensure_topics
from tests.support.shared import SharedKafka

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0
DATA_PAGE = Path(__file__).parents[2] / "docs" / "operate" / "data.md"
T0 = 1_790_000_000_000
_numbers = itertools.count(1)


class Archive:
    """An archive between topics and tables of its own, which may be started again."""

    def __init__(self, spark: SparkSession, kafka: SharedKafka, directory: Path, **sections: Any) -> None:
        self.spark = spark
        self.settings = Settings(
            kafka={"bootstrap_servers": kafka.bootstrap_servers},
            topics={"prefix": f"archive-{next(_numbers)}"},
            engine={"data_dir": directory},
            archive={"trigger_interval_ms": "1s"},
            **sections,
        )
        ensure_topics(self.settings)
        self.producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
        self.query: StreamingQuery | None = None

    def start(self, before_commit: Callable[[str, int], None] | None = None) -> StreamingQuery:
        self.query = start_archive(self.spark, self.settings, before_commit=before_commit)
        return self.query

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def close(self) -> None:
        self.stop()
        self.producer.close()

    def append(self, topic: str, key: str | None, value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> None:
        name = getattr(self.settings.topics, topic)
        self.producer.send(name, key=None if key is None else key.encode(), value=value, headers=headers or []).get(30)

    def rows(self, spec: TableSpec) -> list[Row]:
        return self.spark.read.format("delta").load(table_location(self.settings.tables_location, spec)).collect()

    def drained(self) -> None:
        """Returns when everything that is in Kafka now has been archived."""
        assert self.query is not None
        deadline = time.monotonic() + DEADLINE_S
        self.query.processAllAvailable()
        assert time.monotonic() < deadline


@pytest.fixture
def archive(spark: SparkSession, kafka: SharedKafka, tmp_path: Path):
    made = Archive(spark, kafka, tmp_path)
    yield made
    made.close()


def ledger_record(client: str, batch_ms: int, *steps: tuple[str, str | None]) -> bytes:
    rows = [
        LedgerRow(client_id=client, batch_ms=batch_ms, transition=transition, time_ms=batch_ms, message_id=message_id)
        for transition, message_id in steps
    ]
    return msgspec.json.encode(rows)


def dead_letter_headers(
    message_id: str, died_ms: int = T0, reason: str = "expired", *more: tuple[str, bytes]
) -> list[tuple[str, bytes]]:
    death = {"queue": "c1", "reason": reason, "count": 1, "time": died_ms, "exchange": "", "routing-keys": ["t"]}
    return [
        ("mqtt-topic", b"t/1"),
        ("mqtt-qos", b"1"),
        ("message-id", message_id.encode()),
        ("x-death", msgspec.json.encode([death])),
        ("x-first-death-reason", reason.encode()),
        ("x-first-death-queue", b"c1"),
        ("x-last-death-reason", reason.encode()),
        *more,
    ]


def receipt(message_id: str, **more: object) -> bytes:
    return msgspec.json.encode({"message_id": message_id, "client_id": "c1", "outcome": "sent", "outcome_ms": T0, **more})


def gateway_publication() -> list[tuple[str, bytes]]:
    return uplink_headers(client_id="c1", inflight_id="c1:7:1", topic="up", qos=QoS.AT_LEAST_ONCE)


def test_every_kind_of_record_becomes_a_row_with_all_its_columns(archive: Archive) -> None:
    archive.append("ledger", "c1", ledger_record("c1", T0, ("connected", None), ("accepted", "m1"), ("sent", "m1")))
    archive.append("dead_letters", "c1", b"\x00\xffbytes", dead_letter_headers("m2"))
    archive.append(
        "uplink",
        "c1",
        b"21.5",
        uplink_headers(
            client_id="c1",
            inflight_id="c1:7:1",
            topic="up/t",
            qos=QoS.AT_LEAST_ONCE,
            retain=True,
            expiry_interval_s=60,
            properties=PublishProperties(
                content_type="text/plain", correlation_data=b"\x00\x01", user_properties=(("k", "v1"), ("k", "v2"))
            ),
        ),
    )
    told = receipt(
        "m1",
        outcome="delivered",
        attempts=2,
        accepted_ms=T0,
        first_sent_ms=T0 + 300,
        outcome_ms=T0 + 900,
        fast_path=True,
        recorded_ms=T0 + 1_500,
    )
    archive.append("receipts", "c1", told)
    archive.start()
    archive.drained()

    ledger = sorted(archive.rows(LEDGER), key=lambda row: row.row_index)
    assert [(row.client_id, row.transition, row.message_id) for row in ledger] == [
        ("c1", "connected", None), ("c1", "accepted", "m1"), ("c1", "sent", "m1"),
    ]  # fmt: skip
    assert {row.batch_ms for row in ledger} == {T0}
    (letter,) = archive.rows(DEAD_LETTERS)
    assert (letter.client_id, letter.message_id, letter.reason, letter.deaths) == ("c1", "m2", "expired", 1)
    assert (letter.topic, letter.qos, letter.priority, bytes(letter.payload)) == ("t/1", 1, 0, b"\x00\xffbytes")
    assert [(header.key, bytes(header.value)) for header in letter.headers] == dead_letter_headers("m2")
    assert (letter.died_ms, letter.first_queue, letter.replay_of) == (T0, "c1", None)
    (up,) = archive.rows(UPLINK)
    assert (up.inflight_id, up.client_id, up.topic, up.qos, up.retain) == ("c1:7:1", "c1", "up/t", 1, True)
    assert (bytes(up.payload), bytes(up.correlation_data), up.message_expiry_s) == (b"21.5", b"\x00\x01", 60)
    assert [tuple(pair) for pair in up.user_properties] == [("k", "v1"), ("k", "v2")]
    assert (up.event_offset, up.content_type) == (None, "text/plain")
    (last_word,) = archive.rows(RECEIPTS)
    assert (last_word.message_id, last_word.outcome, last_word.attempts, last_word.latency_ms) == ("m1", "delivered", 2, 900)
    assert (last_word.fast_path, last_word.recorded_ms) == (True, T0 + 1_500)


def test_the_rows_of_one_client_can_be_deleted_while_the_archive_runs(archive: Archive) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", DATA_PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    archive.start()
    for client in ("pump-7", "pump-8"):
        archive.append("ledger", client, ledger_record(client, T0, ("accepted", "m1")))
    archive.drained()
    exec(program, {"tables": archive.settings.tables_location})
    assert [row.client_id for row in archive.rows(LEDGER)] == ["pump-8"]
    archive.append("ledger", "pump-9", ledger_record("pump-9", T0 + 1, ("accepted", "m2")))
    archive.drained()
    assert sorted(row.client_id for row in archive.rows(LEDGER)) == ["pump-8", "pump-9"]


def test_copies_of_a_re_executed_engine_micro_batch_are_one_row(archive: Archive) -> None:
    events = archive.settings.topics.events

    def write() -> None:
        archive.append("ledger", "c1", ledger_record("c1", T0, ("accepted", "m1"), ("accepted", "m1")))
        archive.append("dead_letters", "c1", b"x", dead_letter_headers("m1"))
        headers = uplink_headers(client_id="c1", inflight_id=f"{events}-2-41", topic="up", qos=QoS.EXACTLY_ONCE)
        archive.append("uplink", "c1", b"qos 2", headers)
        archive.append("uplink", "c1", b"qos 1", gateway_publication())
        archive.append("receipts", "c1", receipt("m1"))

    write()
    write()
    archive.start()
    archive.drained()
    write()
    archive.drained()

    assert [len(archive.rows(spec)) for spec in (LEDGER, DEAD_LETTERS, UPLINK, RECEIPTS)] == [2, 1, 2, 1]
    assert {row.event_offset for row in archive.rows(UPLINK)} == {41, None}


def test_a_second_death_of_the_same_message_is_another_row(archive: Archive) -> None:
    archive.append("dead_letters", "c1", b"x", dead_letter_headers("m1"))
    archive.append("dead_letters", "c1", b"x", dead_letter_headers("m1", T0 + 1))
    archive.start()
    archive.drained()
    assert len(archive.rows(DEAD_LETTERS)) == 2


class Killed(Exception):
    pass


@pytest.mark.promise("archive-once")
def test_each_row_is_there_once_after_kills_before_each_table(archive: Archive) -> None:
    archive.append("ledger", "c1", ledger_record("c1", T0, ("accepted", "m1")))
    archive.append("dead_letters", "c1", b"x", dead_letter_headers("m1"))
    archive.append("uplink", "c1", b"u", gateway_publication())
    archive.append("receipts", "c1", receipt("m1"))
    for spec in TABLES:

        def die(name: str, batch_id: int, victim: str = spec.name) -> None:
            if name == victim:
                raise Killed

        with pytest.raises(Exception, match="Killed"):
            archive.start(die).awaitTermination(DEADLINE_S)
    archive.start()
    archive.drained()
    assert [len(archive.rows(spec)) for spec in TABLES] == [1, 1, 1, 1]


def test_an_archive_without_its_checkpoint_reads_all_and_changes_nothing(archive: Archive) -> None:
    archive.append("ledger", "c1", ledger_record("c1", T0, ("accepted", "m1")))
    archive.append("uplink", "c1", b"u", gateway_publication())
    archive.start()
    archive.drained()
    archive.stop()
    checkpoint = Path(archive_checkpoint(archive.settings))
    checkpoint.rename(checkpoint.with_name("lost"))
    archive.append("ledger", "c1", ledger_record("c1", T0 + 1, ("sent", "m1")))
    archive.start()
    archive.drained()
    assert sorted(row.transition for row in archive.rows(LEDGER)) == ["accepted", "sent"]
    assert len(archive.rows(UPLINK)) == 1


def test_a_table_of_an_older_version_gets_the_columns_that_have_come_since(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / RECEIPTS.name)
    older = tuple(column for column in RECEIPTS.columns if column.name != "fast_path")
    create_table(spark, dataclasses.replace(RECEIPTS, columns=older), location)
    schema = "key binary, value binary, partition int, offset bigint, timestamp timestamp, topic string"
    for version, more in enumerate(({}, {"fast_path": True})):
        told = spark.createDataFrame([(b"c1", receipt(f"m{version}", **more), 0, version, datetime.now(UTC), "receipts")], schema)
        spec = RECEIPTS if more else dataclasses.replace(RECEIPTS, columns=older)
        create_table(spark, spec, location)
        append_new(receipt_rows(told), spec, location, DeltaTransaction(app_id="test", version=version))
    rows = spark.read.format("delta").load(location)
    assert {row.message_id: row.fast_path for row in rows.collect()} == {"m0": None, "m1": True}


def test_upkeep_merges_files_sorts_days_that_are_over_and_deletes_old_ones(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / LEDGER.name)
    create_table(spark, LEDGER, location)
    today = date(2026, 11, 21)
    days = {name: today - timedelta(days=age) for name, age in (("old", 40), ("over", 5), ("running", 0))}
    version = itertools.count()
    for _ in range(2):
        for name, day in days.items():
            start_ms = calendar.timegm(day.timetuple()) * 1_000 + next(version)
            records = spark.createDataFrame(
                [(b"c1", ledger_record("c1", start_ms, ("accepted", name)), 0, 0, datetime.now(UTC))],
                "key binary, value binary, partition int, offset bigint, timestamp timestamp",
            )
            append_new(ledger_rows(records), LEDGER, location, DeltaTransaction(app_id="test", version=next(version)))
    maintenance = Maintenance([LEDGER], {LEDGER.name: location}, ArchiveSettings(retention=30 * DAY))
    maintenance.run(spark, today=today)
    maintenance.run(spark, today=today)

    rows = spark.read.format("delta").load(location)
    assert Counter(row.message_id for row in rows.collect()) == {"over": 2, "running": 2}
    assert len(rows.inputFiles()) == 2
    assert properties(spark, location)[SORTED_UNTIL] == "2026-11-20"


def test_undecodable_records_become_rows_and_stop_nothing(archive: Archive) -> None:
    for value in (b"\xff\xfe", b"{", b"[]", b"[{}]", b'[{"transition":"sent","batch_ms":99999999999999999}]', None, b'"text"'):
        archive.append("ledger", "c1", value)
        archive.append("receipts", "" if value is None else None, value)
        archive.append(
            "dead_letters",
            "" if value is None else None,
            value,
            [("x-death", b"\xff"), ("mqtt-qos", b"many"), ("message-id", b"\xff")],
        )
        archive.append("dead_letters", "c1", value, [("x-death", b'[{"time": 99999999999999999, "count": "x"}]')])
        archive.append("uplink", "" if value is None else None, value, [("mqtt-qos", b"\x00"), ("message-expiry", b"9" * 30)])
        archive.append("uplink", "c1", value)
    archive.append("ledger", "c1", ledger_record("c1", T0, ("accepted", "m1")))
    query = archive.start()
    archive.drained()
    assert query.exception() is None
    transitions = sorted(row.transition for row in archive.rows(LEDGER))
    assert transitions == ["accepted", *["unreadable"] * 6]  # an empty array says nothing
    assert len(archive.rows(UPLINK)) == 14
    assert len(archive.rows(RECEIPTS)) == 7
