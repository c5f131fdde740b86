"""Bytes in `inflight.messages` and `inflight.events` never stop the query, whatever they are."""

import json
import random
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession

from state.events import ClientConnected, PubAckReceived
from state.records.events import WAKE_UP_KEY, encode_event
from state.settings import RecordLimits
from streaming.engine.operator.cells import decode_source_record
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.query import source_records

TOPIC = ("mqtt-topic", b"t")
BAD_KEYS = [None, b"", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"k" * 1_025]


def garbage(count: int) -> list[bytes]:
    """Returns random bytes, and good records that were damaged: cut off, or with one bit flipped."""
    source = random.Random(42)
    good = encode_event(ClientConnected(connection_id=1, commands_partition=0))
    damaged = [good[: source.randrange(len(good))] for _ in range(count // 3)]
    for _ in range(count // 3):
        wrong = bytearray(good)
        wrong[source.randrange(len(wrong))] ^= 1 << source.randrange(8)
        damaged.append(bytes(wrong))
    # 0xC1 is not msgpack at all; deep nesting would be a stack overflow in a careless decoder.
    noise = [source.randbytes(source.randrange(200)) for _ in range(count // 3)]
    return [*damaged, *noise, b"\x01\xc1", b"\x01" + b"\x91" * 5_000]


def test_records_whose_key_is_no_client_id_become_dead_letters(pipeline) -> None:
    topics = pipeline.settings.topics
    pipeline.start()
    pipeline.send(topics.events, b"", key=WAKE_UP_KEY)  # ours: no dead letter
    for key in BAD_KEYS:
        pipeline.send(topics.messages, b"payload", key=key, headers=[TOPIC, ("x-mine", b"\xff\x00")])
        pipeline.send(topics.events, encode_event(PubAckReceived(connection_id=1, packet_id=1)), key=key)

    letters = pipeline.read(topics.dead_letters, 2 * len(BAD_KEYS))
    assert len(letters) == 2 * len(BAD_KEYS)
    assert {letter.key for letter in letters} == {b""}
    headers = [dict(letter.headers) for letter in letters]
    assert all(json.loads(header["x-death"])[0]["reason"] == "invalid" for header in headers)
    of_messages = [header for header in headers if header["x-source-topic"] == topics.messages.encode()]
    assert [header.get("x-source-key") for header in of_messages].count(b"\xff\xfe") == 1
    assert all((header["mqtt-topic"], header["x-mine"]) == (b"t", b"\xff\x00") for header in of_messages)
    receipts = [json.loads(record.value or b"") for record in pipeline.read(topics.receipts, len(BAD_KEYS))]
    assert {receipt["outcome"] for receipt in receipts} == {"invalid"}


@pytest.mark.promise("dead-letter-fits")
def test_a_dead_letter_is_as_large_as_its_topic_takes_and_not_larger(pipeline) -> None:
    """The limit of the topic was lowered after the message was accepted."""
    topics, most = pipeline.settings.topics, 20_000
    with closing(KafkaAdminClient(bootstrap_servers=pipeline.bootstrap_servers)) as admin:
        limit = {"max.message.bytes": str(most)}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topics.dead_letters, limit)])
    pipeline.settings = replace(pipeline.settings, limits=RecordLimits(dead_letter_topic_bytes=most))
    pipeline.start()
    many = [(f"h{number}", b"v" * 90) for number in range(100)]
    pipeline.send_message("away", b"p" * 100_000, ("expiration", b"0"), *many)

    (letter,) = pipeline.read(topics.dead_letters, 1)
    found = dict(letter.headers)
    assert found["x-truncated-from-bytes"] == b"100000"
    assert found["x-truncated-from-headers"] == b"103"
    size = len(letter.value or b"") + sum(len(name) + len(value) for name, value in letter.headers)
    assert most - 2_000 < size < most


@pytest.mark.promise("any-record")
def test_garbage_in_both_topics_does_not_stop_the_query(pipeline) -> None:
    topics = pipeline.settings.topics
    pipeline.start()
    pipeline.connect("good")
    bytes_of_nobody = garbage(300)
    for number, noise in enumerate(bytes_of_nobody):
        pipeline.producer.send(topics.events, noise, key=b"client-%d" % (number % 7))
        pipeline.producer.send(topics.messages, noise, key=noise[:40], headers=[("mqtt-topic", noise), (noise[:5].hex(), noise)])
    pipeline.producer.flush()
    pipeline.send_message("good", b"after all that")

    assert [publish.payload for publish in pipeline.publishes(1)] == [b"after all that"]
    assert pipeline.read(topics.dead_letters, 300)


def test_a_record_that_is_too_large_leaves_its_bytes_in_the_jvm(pipeline) -> None:
    topics, most = pipeline.settings.topics, pipeline.settings.limits.max_record_bytes
    hostile = KafkaProducer(bootstrap_servers=pipeline.bootstrap_servers, compression_type="gzip", max_request_size=1 << 30)
    headers = [TOPIC, ("message-id", b"mine")]
    sent = [
        hostile.send(topic, bytes(size), key=b"c", headers=headers if topic == topics.messages else None).get(60)
        for topic, size in ((topics.messages, most + 1), (topics.events, 4 * most + 1), (topics.messages, 20 * most))
    ]
    sent.append(hostile.send(topics.messages, b"", key=b"c", headers=[TOPIC, *[("", b"")] * 500_000]).get(60))
    pipeline.start()
    letters = pipeline.read(topics.dead_letters, 4)
    hostile.close()
    assert {letter.value for letter in letters} == {b""}
    details = " ".join(dict(letter.headers)["x-detail"].decode() for letter in letters)
    for record in sent:
        assert f"offset {record.offset} in partition {record.partition} of {record.topic} has " in details
    receipts = [json.loads(record.value or b"") for record in pipeline.read(topics.receipts, 3)]
    assert [(receipt["client_id"], receipt["outcome"]) for receipt in receipts] == [("c", "invalid")] * 3


def test_the_size_of_a_record_has_each_byte_of_its_headers_values(spark: SparkSession) -> None:
    limits = RecordLimits(max_payload_bytes=1, max_headers_bytes=1, max_record_bytes=100)
    settings = PipelineSettings(commands_partitions=1, limits=limits)
    columns = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>"
    )
    headers = [("é", b"\xff\x00\xc3"), ("b", None), ("b", b"")]
    counted = len(b"k") + 3 * 16 + 3 + 3
    rows = [(b"k", bytes(100 - counted + more), settings.topics.messages, 0, more, datetime.now(UTC), headers) for more in (0, 1)]
    found = [
        decode_source_record(bytes(row.record))
        for row in source_records(spark.createDataFrame(rows, columns), settings).collect()
    ]
    assert [record.bytes_left_out for record in sorted(found, key=lambda record: record.offset)] == [0, 101]
