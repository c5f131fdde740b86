"""How long a backend waits for a record that is in Kafka already: a real broker, and no engine or device that takes time.

Each median is far above what it takes (a few milliseconds), and far below what a consumer waits that collects records.
"""

import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer
from confluent_kafka import Producer as RawProducer
from prometheus_client import CollectorRegistry

from inflight import Presence, Producer
from sinks.kafka.librdkafka import headers_of
from sinks.kafka.throttles import ThrottleFollower, ThrottleTable
from state.model import PublishProperties, QoS
from state.records.uplink import uplink_headers
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S, wait_until

MEDIAN_S = 0.15
FIRST_SEND_S = 0.35
TIMES = 15
TOPICS = ("messages", "uplink", "receipts", "presence", "throttle")
_prefixes = (f"waits-{number}" for number in itertools.count())


@pytest.fixture
def prefix(kafka: SharedKafka) -> str:
    """Topics of its own for every test."""
    name = next(_prefixes)
    create_topics(kafka.bootstrap_servers, *(f"{name}.{topic}" for topic in TOPICS), partitions=4)
    return name


@pytest.fixture
def write(kafka: SharedKafka, prefix: str) -> Callable[..., None]:
    """Writes a record of a topic, and returns when Kafka has it."""
    client = RawProducer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "partitioner": "murmur2_random"})

    def written(topic: str, key: str, value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> None:
        client.produce(f"{prefix}.{topic}", key=key.encode(), value=value, headers=headers or [])
        assert client.flush(DEADLINE_S) == 0

    return written


def producer(kafka: SharedKafka, prefix: str) -> Producer:
    topics = {f"{topic}_topic": f"{prefix}.{topic}" for topic in ("receipts", "uplink", "throttle")}
    return Producer(kafka.bootstrap_servers, registry=CollectorRegistry(), topic=f"{prefix}.messages", **topics)


def median_s(action: Callable[[int], object]) -> float:
    """Measures an action some times, after the first one, which waits for connections."""
    action(0)
    taken = []
    for number in range(1, TIMES + 1):
        began_s = time.monotonic()
        action(number)
        taken.append(time.monotonic() - began_s)
    return statistics.median(taken)


@contextmanager
def answering_device(kafka: SharedKafka, prefix: str, write: Callable[..., None]) -> Iterator[None]:
    """Answers each request as soon as it is in Kafka, as a gateway writes the answer of a device."""
    stopping = threading.Event()
    client = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": prefix, "auto.offset.reset": "earliest"})
    client.subscribe([f"{prefix}.messages"])

    def answer() -> None:
        numbers = itertools.count()
        while not stopping.is_set():
            if (message := client.poll(0.1)) is None or message.error() is not None:
                continue
            asked = {name: value or b"" for name, value in headers_of(message)}
            headers = uplink_headers(
                client_id="answering",
                inflight_id=f"answering:1:{next(numbers)}",
                topic=asked["response-topic"].decode(),
                qos=QoS.AT_LEAST_ONCE,
                properties=PublishProperties(correlation_data=asked["correlation-data"]),
            )
            write("uplink", "answering", message.value(), headers)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(DEADLINE_S)
        client.close()


def test_a_request_takes_no_longer_than_its_answer(kafka: SharedKafka, prefix: str, write: Callable[..., None]) -> None:
    with producer(kafka, prefix) as asking, answering_device(kafka, prefix, write):

        def ask(number: int) -> None:
            assert asking.request("answering", "get", b"%d" % number, timeout_s=DEADLINE_S).payload == b"%d" % number

        assert median_s(ask) < MEDIAN_S


def test_a_receipt_ends_its_delivery_at_once(kafka: SharedKafka, prefix: str, write: Callable[..., None]) -> None:
    receipt = {
        "client_id": "lamp", "outcome": "delivered", "reason_code": 0, "attempts": 1, "accepted_ms": 1, "first_sent_ms": 2,
        "outcome_ms": 3, "detail": "", "final": True, "destinations": [], "deaths": 0, "correlation_data": None,
    }  # fmt: skip
    with producer(kafka, prefix) as sending:

        def deliver(number: int) -> None:
            delivery = sending.deliver("lamp", "cmd", b"x")
            write("receipts", "lamp", json.dumps(receipt | {"message_id": delivery.message_id}).encode())
            assert delivery.result(DEADLINE_S).message_id == delivery.message_id

        assert median_s(deliver) < MEDIAN_S
        past = [(f"past-{number}", f"client-{number}") for number in range(TIMES + 1)]
        for message_id, client_id in past:
            write("receipts", client_id, json.dumps(receipt | {"message_id": message_id, "client_id": client_id}).encode())

        def find(number: int) -> None:
            message_id, client_id = past[number]
            assert sending.delivery(client_id, message_id).result(DEADLINE_S).message_id == message_id

        assert median_s(find) < 2 * MEDIAN_S, "a new consumer each time"


def test_a_change_of_presence_is_seen_at_once(kafka: SharedKafka, prefix: str, write: Callable[..., None]) -> None:
    with Presence(kafka.bootstrap_servers, topic=f"{prefix}.presence") as presence:
        changes = presence.changes(timeout_s=DEADLINE_S)

        def change(number: int) -> None:
            write("presence", "lamp", json.dumps({"online": True, "connection_id": str(number + 1)}).encode())
            assert int(next(changes).connection_id) == number + 1

        assert median_s(change) < MEDIAN_S


def test_a_throttle_is_known_at_once(kafka: SharedKafka, prefix: str, write: Callable[..., None]) -> None:
    table = ThrottleTable()
    follower = ThrottleFollower(
        table, bootstrap_servers=kafka.bootstrap_servers, topic=f"{prefix}.throttle", config={}, options={}
    )
    follower.start()
    try:
        assert follower.wait_known(DEADLINE_S)

        def throttle(number: int) -> None:
            write("throttle", f"client-{number}", b"{}")
            wait_until(lambda: table.of(f"client-{number}") is not None, "the throttle is known")

        assert median_s(throttle) < MEDIAN_S
    finally:
        follower.close()


def test_a_first_send_waits_for_no_more_throttles_than_there_are(
    kafka: SharedKafka, prefix: str, write: Callable[..., None]
) -> None:
    write("throttle", "another", b"{}")
    taken = []
    for _ in range(5):
        began_s = time.monotonic()
        with producer(kafka, prefix) as sending:
            sending.send("lamp", "cmd", b"x")
            taken.append(time.monotonic() - began_s)
    assert statistics.median(taken) < FIRST_SEND_S
