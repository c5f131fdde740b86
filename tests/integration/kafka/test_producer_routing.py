"""`publish` and `send_many` against a real broker: which records are in which partitions, and in which order."""

import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from prometheus_client import CollectorRegistry

from inflight import Cause, Producer, ProducerSettings, SendFailed
from sinks.kafka.partitioning import partition_of
from state.records.throttle import encode_throttle
from tests.support.kafka_topics import ReadRecord, create_topics, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

PARTITIONS = 4
EXAMPLE = Path(__file__).parents[3] / "examples" / "publish.py"


@pytest.fixture
def settings(kafka: SharedKafka) -> ProducerSettings:
    prefix = f"routing-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}.{name}" for name in ("messages", "publications", "throttle")]
    create_topics(kafka.bootstrap_servers, *names, partitions=PARTITIONS)
    return ProducerSettings(topic=names[0], publications_topic=names[1], throttle_topic=names[2])


@pytest.fixture
def producer(kafka: SharedKafka, settings: ProducerSettings) -> Iterator[Producer]:
    with Producer(kafka.bootstrap_servers, settings=settings, registry=CollectorRegistry()) as made:
        yield made


def recipients(record: ReadRecord) -> list[str]:
    return [name.removeprefix("recipient-") for name, _ in record.headers if name.startswith("recipient-")]


def test_many_clients_are_few_records_each_client_in_its_partition(
    kafka: SharedKafka, settings: ProducerSettings, producer: Producer
) -> None:
    clients = [f"gerät-{number}" for number in range(900)]
    results = producer.send_many(clients, "fleet/restart", b"now", qos=2, message_id="restart-7")
    records = read_topic(kafka.bootstrap_servers, settings.topic)
    assert len(records) == PARTITIONS
    assert Counter(client for record in records for client in recipients(record)) == Counter(clients)
    where = {client: (record.partition, record.offset) for record in records for client in recipients(record)}
    assert [(result.partition, result.offset) for result in results] == [where[client] for client in clients]
    assert all(partition_of(client.encode(), PARTITIONS) == where[client][0] for client in clients)
    assert all(record.key is None and record.value == b"now" for record in records)
    assert {dict(record.headers)["message-id"] for record in records} == {b"restart-7"}


def test_only_the_throttled_client_of_many_waits(kafka: SharedKafka, settings: ProducerSettings, producer: Producer) -> None:
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    writer.send(settings.throttle_topic, key=b"slow", value=encode_throttle("its queue is long", 1)).get(30)
    wait_until(lambda: producer.throttled("slow") is not None, "the throttle is known")
    clients = [f"c{number}" for number in range(50)] + ["slow"]
    with pytest.raises(Exception, match="1 of 51 messages were not sent") as caught:
        producer.send_many(clients, "a", b"x", timeout_s=0.5)
    *sent, slow = caught.value.outcomes  # type: ignore[attr-defined]
    assert slow.client_id == "slow"
    assert [attempt.cause for attempt in slow.attempts] == [Cause.THROTTLED]
    assert not slow.may_be_sent
    assert producer.publish("a", b"x").offset == 0, "publications do not wait for one client"
    writer.send(settings.throttle_topic, key=b"slow", value=None).get(30)
    writer.close()
    producer.send_many(["slow"], "a", b"x", message_id=slow.message_id)
    found = Counter(client for record in read_topic(kafka.bootstrap_servers, settings.topic) for client in recipients(record))
    assert found == Counter(clients[:-1])
    assert len(sent) == 50


def test_sends_wait_for_a_connected_client_that_catches_up(
    kafka: SharedKafka, settings: ProducerSettings, producer: Producer
) -> None:
    writer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    writer.send(settings.throttle_topic, key=b"behind", value=encode_throttle("long queue", 1, is_progressing=True)).get(30)
    wait_until(lambda: producer.throttled("behind") is not None, "the throttle is known")
    with pytest.raises(SendFailed, match="530 TOO_MANY_REQUESTS: the client is connected and behind"):
        producer.send("behind", "a", b"x", timeout_s=0.5)
    futures = [producer.send_async("behind", "a", b"%d" % number) for number in range(2_000)]
    assert not any(future.done() for future in futures)
    writer.send(settings.throttle_topic, key=b"behind", value=None).get(30)
    writer.close()
    ended_s = time.monotonic()
    first = futures[0].result(30)
    assert time.monotonic() - ended_s < 0.5
    results = [first, *(future.result(30) for future in futures[1:])]
    assert [result.offset for result in results] == sorted(result.offset for result in results)
    assert all(len(result.attempts) == 1 for result in results)
    sent = [record for record in read_topic(kafka.bootstrap_servers, settings.topic) if record.key == b"behind"]
    assert [record.value for record in sent] == [b"%d" % number for number in range(2_000)]


def test_publications_of_a_key_keep_their_order(kafka: SharedKafka, settings: ProducerSettings, producer: Producer) -> None:
    futures = [
        producer.publish_async(f"plant/{number % 3}", b"%d" % number, retain=number == 0, key="plant" if number % 2 else None)
        for number in range(300)
    ]
    with producer.transaction() as transaction:
        both = transaction.publish("plant/0", b"last"), transaction.send("client", "a", b"x")
    topics = {future.result(30).topic for future in [*futures, *both]}
    assert topics == {settings.publications_topic, settings.topic}
    records = read_topic(kafka.bootstrap_servers, settings.publications_topic)
    for key in (b"plant", b"plant/0", b"plant/1", b"plant/2"):
        mine = [record for record in records if record.key == key]
        numbers = [int(record.value or b"") for record in mine if record.value != b"last"]
        assert numbers == sorted(numbers)
        assert {record.partition for record in mine} == {partition_of(key, PARTITIONS)}
    assert len(records) == 301
    assert dict(next(record for record in records if record.value == b"0").headers)["mqtt-retain"] == b"true"


def test_the_example_publishes_and_sends_to_a_thousand_lamps(kafka: SharedKafka, settings: ProducerSettings) -> None:
    prefix = settings.topic.removesuffix(".messages")
    command = [sys.executable, str(EXAMPLE), kafka.bootstrap_servers, prefix]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    published, sent = ran.stdout.splitlines()
    (record,) = read_topic(kafka.bootstrap_servers, settings.publications_topic)
    assert published == f"published {dict(record.headers)['message-id'].decode()}"
    assert sent == "sent to 1000 lamps; not to []"
    assert sum(len(recipients(record)) for record in read_topic(kafka.bootstrap_servers, settings.topic)) == 1_000
