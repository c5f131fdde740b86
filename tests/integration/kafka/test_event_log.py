"""The gateway's side of Kafka when the broker stands still for longer than an append may take."""

import asyncio
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars
from sinks.kafka import record_producer
from sinks.kafka.append import KafkaEventLog
from sinks.kafka.record_producer import RecordProducer
from tests.support.kafka_topics import create_topics
from tests.support.processes import frozen
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.servers
TIMEOUT_MS = 4_000
FROZEN_S = 1.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[EmbeddedKafka]:
    """A broker that the tests of this file freeze, one after the other."""
    with EmbeddedKafka(tmp_path_factory.mktemp("frozen"), jars=jars) as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedKafka, request: pytest.FixtureRequest) -> str:
    name = f"frozen-{request.node.name[:40]}"
    create_topics(broker.bootstrap_servers, name, partitions=1)
    return name


async def _append(log: KafkaEventLog, topic: str, value: bytes) -> Exception | None:
    """Returns the error of an append, None = confirmed. Raises TimeoutError if the append did not end at all."""
    outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    log.append(topic, b"device", value, None, outcome.set_result)
    return await asyncio.wait_for(outcome, DEADLINE_S)


async def _scenario(kafka: EmbeddedKafka, topic: str) -> None:
    log = KafkaEventLog(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, timeout_ms=TIMEOUT_MS, max_request_bytes=1_000_000, options={}
    )
    await log.start([topic])
    try:
        assert await _append(log, topic, b"before") is None
        with frozen(kafka.pid):
            assert await _append(log, topic, b"lost in time") is not None
        failures = 0
        while await _append(log, topic, b"after") is not None:  # each says at once that the connection is being set up anew
            failures += 1
            assert failures < 200, "the log does not recover"
            await asyncio.sleep(0.1)  # a device's pause before it dials again
        assert await _append(log, topic, b"and on") is None
    finally:
        await log.close(5)


@pytest.mark.faults
def test_appends_go_on_after_a_broker_that_was_frozen_for_long(broker: EmbeddedKafka, topic: str) -> None:
    """The broker is frozen for longer than an append may take."""
    asyncio.run(_scenario(broker, topic))


async def _processor_time_s(kafka: EmbeddedKafka, topic: str) -> float:
    """Measures what this process uses while 400 records wait for a broker that is frozen for `FROZEN_S`."""
    log = KafkaEventLog(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, timeout_ms=60_000, max_request_bytes=1_000_000, options={}
    )
    await log.start([topic])
    try:
        assert await _append(log, topic, b"before") is None
        with frozen(kafka.pid):
            waiting = [asyncio.ensure_future(_append(log, topic, b"waits"))]
            for _ in range(99):
                await asyncio.sleep(FROZEN_S / 100)
                waiting += [asyncio.ensure_future(_append(log, topic, b"waits")) for _ in range(4)]
            used_s = time.process_time()
            await asyncio.sleep(FROZEN_S)
            used_s = time.process_time() - used_s
        assert await asyncio.gather(*waiting) == [None] * len(waiting)
    finally:
        await log.close(5)
    return used_s


def test_records_that_wait_for_a_frozen_broker_cost_no_processor_time(broker: EmbeddedKafka, topic: str) -> None:
    assert asyncio.run(_processor_time_s(broker, topic)) < FROZEN_S / 4


def test_neither_does_a_group_that_is_not_handed_over_at_once(
    broker: EmbeddedKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[KafkaError | None] = []
    monkeypatch.setattr(record_producer, "_GROUP_LINGER_MS", 200)  # for a machine on which 20 ms become 100
    producer = RecordProducer(bootstrap_servers=broker.bootstrap_servers, options={}, config={"linger.ms": 0})

    def send() -> None:
        producer.send(topic, 0, key=b"k", value=b"v", headers=None, answer=lambda error, *_: answers.append(error), in_group=True)

    send()
    wait_until(lambda: len(answers) == 1, "it is connected")
    with frozen(broker.pid):
        for _ in range(20):
            send()
            time.sleep(0.001)  # librdkafka's thread wakes up for the first one
        time.sleep(FROZEN_S / 2)
        used_s = time.process_time()
        time.sleep(FROZEN_S)
        used_s = time.process_time() - used_s
    wait_until(lambda: len(answers) == 21, "all are confirmed")
    producer.close()
    assert set(answers) == {None}
    assert used_s < FROZEN_S / 4


CLIENTS = 400
_BATCH = struct.Struct(">qi45xi")
"""Base offset and length of a record batch, and how many records it has (kafka.apache.org/documentation, Message Format)."""


def _records_of_batches(segment: bytes) -> list[int]:
    counts, position = [], 0
    while position + _BATCH.size <= len(segment):
        _, length, count = _BATCH.unpack_from(segment, position)
        if not length:  # space that is not written yet
            break
        counts.append(count)
        position += 12 + length
    return counts


async def _append_of_many_clients(kafka: EmbeddedKafka, topic: str) -> None:
    log = KafkaEventLog(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, timeout_ms=60_000, max_request_bytes=1_000_000, options={}
    )
    await log.start([topic])
    outcomes: list[Exception | None] = []
    for number in range(CLIENTS):
        log.append(topic, b"client-%d" % number, b"value", None, outcomes.append)
    await log.close(30)
    assert outcomes == [None] * CLIENTS


def test_records_of_many_clients_are_appended_in_few_batches(
    broker: EmbeddedKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_producer, "_GROUP_LINGER_MS", 200)  # as above
    asyncio.run(_append_of_many_clients(broker, topic))
    log_file = broker.log_file.parents[1] / "kafka" / "data" / f"{topic}-0" / f"{0:020}.log"
    counts = _records_of_batches(log_file.read_bytes())
    assert sum(counts) == CLIENTS
    assert len(counts) < CLIENTS / 20
