"""A small log is read without Spark (streaming/what_if/small_log.py), into the same cells."""

from collections import namedtuple
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from state.records.events import WAKE_UP_KEY
from state.records.routing import RECIPIENT_PREFIX
from streaming.engine.operator.cells import SourceRecord, decode_source_record
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.query import source_records
from streaming.what_if.small_log import source_records_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
AT_MS = 1_700_000_000_123
KafkaRecord = namedtuple("KafkaRecord", "topic partition offset timestamp key value headers")
"""With the fields of kafka-python's."""
EVERY_BYTE = bytes(range(256))


def test_a_record_has_the_same_cells_with_and_without_spark(spark) -> None:
    settings = PipelineSettings(commands_partitions=1, messages_generation=2)
    limits = replace(settings.limits, max_record_bytes=2_000, max_payload_bytes=500, max_headers_bytes=500)
    settings = replace(settings, limits=limits)
    messages, events = settings.topics.messages, settings.topics.events
    several = [("mqtt-topic", b"t"), ("recipient-a/ü", b"1"), ("recipient-b", None), ("recipient-", b""), ("x", EVERY_BYTE)]
    contents = [
        (messages, "c/ü😀".encode(), EVERY_BYTE, [("mqtt-topic", b"t"), ("null", None)]),
        (messages, b"c", None, []),
        (messages, None, b"to several", several),
        (messages, None, b"to nobody", [("mqtt-topic", b"t")]),
        (messages, None, b"to too many", [(f"recipient-{number}", b"") for number in range(3_000)]),
        (messages, b"c", b"named by key", several),
        (messages, b"c", b"x" * 2_001, [("mqtt-topic", b"t")]),
        (messages, b"", b"no id", []),
        (messages, b"\xff", b"no UTF-8", []),
        (messages, b"k" * 1_025, b"too long", []),
        (messages, b"k" * 1_025, b"x" * 2_000, []),
        (events, b"c", b"x" * 2_500, []),
        (events, b"c", b"x" * (limits.max_event_record_bytes + 1), []),
        (events, None, b"event", several),
        (events, WAKE_UP_KEY, b"", []),
    ]
    records = [
        KafkaRecord(topic, number % 3, number, AT_MS + number, key, value, headers)
        for number, (topic, key, value, headers) in enumerate(contents)
    ]
    rows = [(one.key, one.value, *one[:3], datetime.fromtimestamp(one.timestamp / 1_000, UTC), one.headers) for one in records]
    by_spark = [
        (row["client_id"], decode_source_record(bytes(row["record"])))
        for row in source_records(spark.createDataFrame(rows, SCHEMA), settings).collect()
    ]
    by_python = [found for record in records for found in source_records_of(record, settings)]
    assert list(map(without_recipients, by_python)) == list(map(without_recipients, by_spark))
    assert len(by_python) == len(records) + 2 - 1, "three recipients, and no wake-up"


def without_recipients(cell: tuple[str, SourceRecord]) -> tuple[str, SourceRecord]:
    """Leaves out what is not read: the other recipients in the cell of one."""
    client_id, record = cell
    if record.recipient is None:
        return cell
    headers = tuple(header for header in record.headers if not header.key.startswith(RECIPIENT_PREFIX))
    return client_id, msgspec.structs.replace(record, headers=headers)
