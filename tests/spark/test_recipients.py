"""A record without a key is for each client that its headers name."""

from datetime import UTC, datetime
from itertools import permutations

import pytest
from pyspark.sql import SparkSession

from state.events import MessageRefused, MessageSubmitted
from state.records.routing import MAX_RECIPIENTS
from streaming.engine.operator.cells import decode_source_record
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.to_events import message_event
from streaming.engine.query import source_records

Headers = list[tuple[str, bytes | None]]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def test_a_record_reaches_every_client_that_it_names_and_no_other(pipeline) -> None:
    messages = pipeline.settings.topics.messages
    clients = [f"fleet-{number}/ü" for number in range(20)]
    pipeline.start()
    for client in (*clients, "not-named"):
        pipeline.connect(client)
    recipients = [(f"recipient-{client}", b"") for client in clients]
    pipeline.send(messages, b"to all", key=None, headers=[("mqtt-topic", b"t"), ("message-id", b"m"), *recipients, ("x", b"1")])
    pipeline.send_message("not-named", b"direct", ("recipient-fleet-0/ü", b""))

    payloads = sorted(publish.payload for publish in pipeline.publishes(21))
    assert payloads == [b"direct", *[b"to all"] * 20]


_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
_ODD_NAMES = ("recipient", 'a,"recipient-', '",\\"recipient-b', "[", "a,", '"', "\\", "recipien\u0301t-\n\0", " recipient-c", "ü")
_FOUR: Headers = [("recipient-a", b""), ("recipient-b/ü", None), ("user-u", b"1"), ("user-u", b"1")]
_ORDERS: list[Headers] = [[*order, ("x", b"1")] for order in permutations(_FOUR)]
_LAST: list[Headers] = [[*headers[:-1][::-1]] for headers in _ORDERS]
_ODD: list[Headers] = [
    [(name, b"\xff\xfe") for name in _ODD_NAMES],
    [*((name, b"") for name in _ODD_NAMES), ("recipient-a", b"")],
]
_NONE: list[Headers] = [[], [("x", None)], [(f"recipient-{number}", b"") for number in range(MAX_RECIPIENTS + 1)]]


def test_each_recipient_gets_all_headers_that_name_no_recipient(spark: SparkSession) -> None:
    settings = PipelineSettings(commands_partitions=1)
    every: list[Headers] = [*_ORDERS, *_LAST, *_ODD, *_NONE, [(f"recipient-{number}", b"") for number in range(MAX_RECIPIENTS)]]
    every = [[("mqtt-topic", b"t"), *headers] for headers in every]
    now, topic = datetime.now(UTC), settings.topics.messages
    rows = [(None, b"p", topic, 0, offset, now, headers) for offset, headers in enumerate(every)]
    rows += [(b"k", b"p", topic, 1, 0, now, every[0]), (b"k", b"p", topic, 1, 1, now, None), (None, b"p", topic, 1, 2, now, None)]
    found = source_records(spark.createDataFrame(rows, _COLUMNS), settings).collect()

    seen: dict[tuple[int, int], dict[str, Headers]] = {}
    for row in found:
        record = decode_source_record(bytes(row.record))
        event = message_event(record, settings, now_ms=0)
        assert isinstance(event, MessageSubmitted | MessageRefused)
        users = [(f"user-{name}", value.encode()) for name, value in event.message.properties.user_properties]
        seen.setdefault((record.partition, record.offset), {})[row.client_id] = [*users, *event.message.headers]
    for offset, headers in enumerate(every):
        recipients = [name.removeprefix("recipient-") for name, _ in headers if name.startswith("recipient-")]
        if not 0 < len(recipients) <= MAX_RECIPIENTS:
            assert list(seen[0, offset]) == [""], headers
            continue
        others = [(name, value or b"") for name, value in headers[1:] if not name.startswith("recipient-")]
        others = sorted(others, key=lambda header: not header[0].startswith("user-"))
        assert seen[0, offset] == dict.fromkeys(recipients, others), headers
    assert [list(seen[1, offset]) for offset in range(3)] == [["k"], ["k"], [""]]
    assert len(found) == sum(map(len, seen.values())), "each row once"
