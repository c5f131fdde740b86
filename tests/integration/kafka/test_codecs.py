"""Records that are compressed with any codec of Kafka, by any client, are read by all our readers."""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest
from prometheus_client import CollectorRegistry

from inflight import Producer
from inflight.cli.send_display import producer_settings
from sinks.kafka.group_consumer import GroupConsumer, KafkaFailed, PartitionsAssigned
from streaming.config.settings import Settings
from streaming.engine.leases.topic import LeaseTopic
from streaming.history.sources.kafka import KafkaSource
from streaming.history.sources.source import SourceLimits
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE = b"0123456789abcdef" * 131_072
"""2 MiB that become few bytes: more than a zstd frame says of itself."""
Write = Callable[[str, str, bytes, bytes], None]
"""Gets topic, message id, key, value."""


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def settings(kafka: SharedKafka) -> Settings:
    made = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": f"codecs-{uuid.uuid4().hex[:8]}"})
    topics = made.topics
    names = topics.messages, topics.receipts, topics.ledger, topics.dead_letters, topics.throttle, topics.leases
    create_topics(kafka.bootstrap_servers, *names, partitions=2)
    return made


@pytest.fixture
def writers(kafka: SharedKafka, codec: str) -> Iterator[dict[str, Write]]:
    """Yields the writers, by client; each compresses with the codec."""
    config = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "message.max.bytes": 4_000_000}
    rd = confluent_kafka.Producer(config)
    python = kafka_python.KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, compression_type=None if codec == "none" else codec, max_request_size=4_000_000
    )

    def by_librdkafka(topic: str, message_id: str, key: bytes, value: bytes) -> None:
        rd.produce(topic, value, key, headers=[("message-id", message_id.encode())])
        rd.flush()

    def by_kafka_python(topic: str, message_id: str, key: bytes, value: bytes) -> None:
        python.send(topic, key=key, value=value, headers=[("message-id", message_id.encode())]).get(30)

    yield {"librdkafka": by_librdkafka, "kafka-python": by_kafka_python}
    python.close()


def test_history_reads_every_codec(settings: Settings, writers: dict[str, Write]) -> None:
    for name, write in writers.items():
        write(settings.topics.messages, f"small-{name}", b"client", b"x" * 500)
    for name in writers:
        rows = KafkaSource(settings, SourceLimits()).of_message(f"small-{name}").submitted
        assert [row["client_id"] for row in rows] == ["client"], name


def test_the_driver_reads_every_codec(settings: Settings, writers: dict[str, Write]) -> None:
    for name, write in writers.items():
        write(settings.topics.leases, name, name.encode(), b"no lease " * 100)
    topic = LeaseTopic(settings)
    found: set[str] = set()
    wait_until(
        lambda: found.update(lease_id for lease_id, _ in topic.read()) or len(found) == len(writers), "all leases are read"
    )
    topic.close()
    assert found == set(writers)


def test_the_producer_reads_and_writes_every_codec(settings: Settings, writers: dict[str, Write], codec: str) -> None:
    for name, write in writers.items():
        write(settings.topics.throttle, name, f"slow-{name}".encode(), b'{"reason": "%s"}' % (b"long " * 100))
    made = replace(producer_settings(settings), compression=None if codec == "none" else codec)
    with Producer(settings.kafka.bootstrap_servers, settings=made, registry=CollectorRegistry()) as producer:
        for number in range(20):
            producer.send("client", "a/b", b"x" * 500, message_id=f"sent-{number}")
        assert all((producer.throttled(f"slow-{name}") or "").startswith("long") for name in writers)
    assert KafkaSource(settings, SourceLimits()).of_message("sent-19").submitted


def test_gateways_bridges_and_routers_read_every_codec(settings: Settings, writers: dict[str, Write]) -> None:
    topic = settings.topics.messages
    consumer = GroupConsumer(
        topic,
        bootstrap_servers=settings.kafka.bootstrap_servers,
        group_id=topic,
        group_instance_id=None,
        session_timeout_ms=6_000,
        fetch_max_wait_ms=50,
        options={},
        resumes=False,
    )
    read: list[bytes | None] = []

    def poll() -> None:
        read.extend(record.value for records in consumer.poll(0.1, 100).values() for record in records)

    starts: dict[int, int] = {}
    try:
        deadline_s = time.monotonic() + 60.0
        while len(starts) < 2:
            assert time.monotonic() < deadline_s, "no partitions"
            poll()
            for change in consumer.changes:
                starts |= change.starts if isinstance(change, PartitionsAssigned) else {}
        for name, write in writers.items():
            write(topic, "m", b"client", name.encode() * 100)
        while len(read) < len(writers):
            assert time.monotonic() < deadline_s, "the records do not come"
            poll()
    finally:
        consumer.close()
    assert read == [name.encode() * 100 for name in writers]


def test_a_large_record_that_became_small_is_read(kafka: SharedKafka, codec: str, writers: dict[str, Write]) -> None:
    topic = f"large-{uuid.uuid4().hex[:8]}"
    create_topics(kafka.bootstrap_servers, topic, partitions=1, max_message_bytes="4000000")
    for write in writers.values():
        write(topic, "m", b"client", LARGE)
    consumer: Any = kafka_python.KafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", group_id=None, consumer_timeout_ms=20_000
    )
    assert next(consumer).value == LARGE
    assert next(consumer).value == LARGE
    consumer.close()


def test_a_router_goes_on_behind_a_batch_that_librdkafka_cannot_decompress(kafka: SharedKafka) -> None:
    topic = f"codecs-bomb-{uuid.uuid4().hex[:8]}"
    create_topics(kafka.bootstrap_servers, topic, partitions=1)
    bombs = kafka_python.KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, compression_type="zstd", max_request_size=1 << 30
    )
    new = partial(
        GroupConsumer,
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=topic,
        group_instance_id=None,
        session_timeout_ms=6_000,
        fetch_max_wait_ms=50,
        options={},
        resumes=False,
    )
    consumer = new()
    read: list[bytes | None] = []

    def poll() -> None:
        nonlocal consumer
        try:
            read.extend(record.value for records in consumer.poll(0.1, 100).values() for record in records)
        except KafkaFailed:  # as the router does
            consumer.close()
            consumer = new()

    def reads_what_is_sent() -> bool:
        poll()
        bombs.send(topic, b"small")
        return b"small" in read

    try:
        wait_until(reads_what_is_sent, "the consumer has its partition")
        bombs.send(topic, bytes(200 << 20)).get(60)
        read.clear()
        wait_until(reads_what_is_sent, "a record behind the batch")
    finally:
        consumer.close()
        bombs.close()
