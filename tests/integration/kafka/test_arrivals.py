"""The engine's wait for the next record, with a real broker."""

import resource
import threading
import time
from collections.abc import Iterator

import pytest
from kafka import KafkaProducer

from streaming.engine.pacing.arrivals import Arrivals
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S

LONG_S = DEADLINE_S
"""Only a failure waits for so long."""
PROMPT_S = LONG_S / 2
"""Long before that, even on a slow machine."""


@pytest.fixture
def topic(kafka: SharedKafka, request: pytest.FixtureRequest) -> str:
    name = f"arrivals-{request.node.name[:40]}"
    create_topics(kafka.bootstrap_servers, name, partitions=2)
    return name


@pytest.fixture
def arrivals(kafka: SharedKafka) -> Iterator[Arrivals]:
    made = Arrivals({"bootstrap_servers": kafka.bootstrap_servers})
    yield made
    made.close()


@pytest.fixture
def producer(kafka: SharedKafka) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
    yield made
    made.close()


def waited_s(arrivals: Arrivals, topic: str, ends: tuple[int, int], timeout_s: float) -> float:
    started = time.monotonic()
    arrivals.wait({topic: dict(enumerate(ends))}, timeout_s)
    return time.monotonic() - started


def test_it_returns_when_a_record_is_in_any_partition_and_not_before(
    arrivals: Arrivals, producer: KafkaProducer, topic: str
) -> None:
    assert waited_s(arrivals, topic, (0, 0), 0.3) >= 0.3
    producer.send(topic, b"x", partition=1).get(30)
    assert waited_s(arrivals, topic, (0, 0), LONG_S) < PROMPT_S
    assert waited_s(arrivals, topic, (0, 0), LONG_S) < PROMPT_S, "it is there until a micro-batch has taken it"
    assert waited_s(arrivals, topic, (0, 1), 0.3) >= 0.3


def test_a_record_that_comes_later_ends_the_wait(arrivals: Arrivals, producer: KafkaProducer, topic: str) -> None:
    later = threading.Timer(0.5, lambda: producer.send(topic, b"x", partition=0))
    later.start()
    assert waited_s(arrivals, topic, (0, 0), LONG_S) < PROMPT_S
    later.join()


def test_an_open_transaction_is_no_arrival(kafka: SharedKafka, arrivals: Arrivals, topic: str) -> None:
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="arrivals")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send(topic, b"x", partition=0).get(30)
    assert waited_s(arrivals, topic, (0, 0), 0.5) >= 0.5
    writer.commit_transaction()
    assert waited_s(arrivals, topic, (0, 0), LONG_S) < PROMPT_S
    writer.close()


def test_the_marker_of_a_transaction_is_no_arrival(kafka: SharedKafka, arrivals: Arrivals, topic: str) -> None:
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="arrivals-behind")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send(topic, b"x", partition=0).get(30)
    writer.commit_transaction()
    assert waited_s(arrivals, topic, (1, 0), 0.5) >= 0.5, "the marker is no record"
    writer.begin_transaction()
    writer.send(topic, b"x", partition=0).get(30)
    writer.commit_transaction()
    assert waited_s(arrivals, topic, (1, 0), LONG_S) < PROMPT_S
    writer.close()


def test_a_record_of_many_megabytes_is_an_arrival_at_once(kafka: SharedKafka, arrivals: Arrivals, topic: str) -> None:
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type="gzip", max_request_size=1 << 30)
    writer.send(topic, bytes(100 << 20), partition=0).get(60)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert waited_s(arrivals, topic, (0, 0), LONG_S) < PROMPT_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 32 << 10
    writer.close()


def test_close_ends_a_wait(arrivals: Arrivals, topic: str) -> None:
    closer = threading.Timer(0.3, arrivals.close)
    closer.start()
    assert waited_s(arrivals, topic, (0, 0), LONG_S) < PROMPT_S
    assert waited_s(arrivals, topic, (0, 0), LONG_S) < PROMPT_S
    closer.join()


def test_a_kafka_that_does_not_answer_is_no_error_and_no_long_wait() -> None:
    arrivals = Arrivals({"bootstrap_servers": "127.0.0.1:1"})
    started = time.monotonic()
    arrivals.wait({"t": {0: 0}}, LONG_S)
    assert time.monotonic() - started < PROMPT_S
    arrivals.close()
