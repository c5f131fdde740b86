"""Readers of a backend against a real broker: a process is killed, the group rebalances, Kafka is restarted."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from prometheus_client import CollectorRegistry

from inflight import Producer, Uplink
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from state.model import QoS
from state.records.uplink import uplink_headers
from tests.support.waiting import DEADLINE_S, until, wait_until

pytestmark = pytest.mark.servers

DEVICES, EACH = 20, 20
ALL = {(f"device-{device}", number) for device in range(DEVICES) for number in range(EACH)}
HANDLING = """
import sys
from inflight import Uplink
with Uplink(sys.argv[1], group="shared", prefix=sys.argv[2]) as uplink:
    for message in uplink:
        print(message.client_id, message.payload.decode(), flush=True)
"""
_prefixes = (f"readers-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), jars=ensure_jars()) as kafka:
        yield kafka


@pytest.fixture
def prefix(broker: EmbeddedKafka) -> str:
    """Topics of its own for every test."""
    name = next(_prefixes)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    topics = [f"{name}.{topic}" for topic in ("uplink", "receipts", "messages", "throttle")]
    admin.create_topics([NewTopic(topic, num_partitions=4, replication_factor=1) for topic in topics])
    admin.close()
    return name


def publish_all(broker: EmbeddedKafka, prefix: str, *, copies: int = 1) -> None:
    """Each device publishes the numbers from 0 on. copies: of each record, as after a micro-batch that was executed again."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
    for number in range(EACH):
        for device in range(DEVICES):
            client_id = f"device-{device}"
            headers = uplink_headers(client_id=client_id, inflight_id=f"{client_id}:{number}", topic="t", qos=QoS.EXACTLY_ONCE)
            for _ in range(copies):
                producer.send(f"{prefix}.uplink", key=client_id.encode(), value=b"%d" % number, headers=headers)
    producer.close()


def test_a_killed_reader_leaves_everything_that_it_has_not_handled(broker: EmbeddedKafka, prefix: str) -> None:
    publish_all(broker, prefix, copies=2)
    command = [sys.executable, "-c", HANDLING, broker.bootstrap_servers, prefix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline().split() for _ in range(100)]
        process.kill()
        first += [line.split() for line in process.stdout]
    handled = [(client_id, int(number)) for client_id, number in (line for line in first if len(line) == 2)]
    assert len(set(handled)) == len(handled)
    rest = []
    with Uplink(broker.bootstrap_servers, group="shared", prefix=prefix) as uplink:
        for message in uplink:
            rest.append((message.client_id, int(message.payload)))
            if {*handled, *rest} == ALL:
                uplink.stop()
    assert len(set(rest)) == len(rest)
    for numbers in ([number for client_id, number in rest if client_id == f"device-{device}"] for device in range(DEVICES)):
        assert numbers == sorted(numbers)


def test_readers_that_come_and_go_share_all_records(broker: EmbeddedKafka, prefix: str) -> None:
    publish_all(broker, prefix)
    found: list[tuple[str, int]] = []

    leaving = [Uplink(broker.bootstrap_servers, group="shared", prefix=prefix) for _ in range(2)]

    def read_some(uplink: Uplink, most: int) -> None:
        with uplink:
            for count, message in enumerate(uplink, start=1):
                found.append((message.client_id, int(message.payload)))
                if count == most:
                    uplink.stop()

    async def read_the_rest() -> None:
        async with Uplink(broker.bootstrap_servers, group="shared", prefix=prefix) as uplink:

            async def stop_at_the_end() -> None:
                await until(lambda: set(found) == ALL, lambda: f"all is read, missing: {sorted(ALL - set(found))[:9]}")
                uplink.stop()

            stopping = asyncio.create_task(stop_at_the_end())
            async for message in uplink:
                found.append((message.client_id, int(message.payload)))
            await stopping

    threads = [threading.Thread(target=read_some, args=each) for each in zip(leaving, (30, 60), strict=True)]
    for thread in threads:
        thread.start()
    asyncio.run(read_the_rest())
    for uplink, thread in zip(leaving, threads, strict=True):
        uplink.stop()
        thread.join(DEADLINE_S)
    # Nobody has died, so nobody has read again what another one had handled.
    assert len(found) == len(ALL)


def write_receipt(broker: EmbeddedKafka, prefix: str, message_id: str) -> None:
    receipt = {
        "message_id": message_id, "client_id": "lamp", "outcome": "delivered", "reason_code": 0, "attempts": 1, "accepted_ms": 1,
        "first_sent_ms": 2, "outcome_ms": 3, "detail": "", "final": True, "destinations": [], "deaths": 0,
        "correlation_data": None,
    }  # fmt: skip
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all", retries=100)
    producer.send(f"{prefix}.receipts", key=b"lamp", value=json.dumps(receipt).encode()).get(timeout=DEADLINE_S)
    producer.close()


def test_a_delivery_is_awaited_and_found_over_a_restart_of_kafka(broker: EmbeddedKafka, prefix: str) -> None:
    topics = {f"{topic}_topic": f"{prefix}.{topic}" for topic in ("receipts", "uplink", "throttle")}
    options = {"topic": f"{prefix}.messages", **topics}
    with Producer(broker.bootstrap_servers, registry=CollectorRegistry(), **options) as producer:
        awaited = [producer.deliver("lamp", "cmd", b"x", message_id=name) for name in "ab"]
        write_receipt(broker, prefix, "a")
        assert awaited[0].result(DEADLINE_S).outcome == "delivered"
        broker.kill()
        broker.start()
        assert not awaited[1].done()
        write_receipt(broker, prefix, "b")
        assert awaited[1].result(DEADLINE_S).outcome == "delivered"
    with Producer(broker.bootstrap_servers, registry=CollectorRegistry(), **options) as producer:
        found = [producer.delivery("lamp", name) for name in "abc"]
        assert [each.result(DEADLINE_S).message_id for each in found[:2]] == ["a", "b"]
        wait_until(lambda: producer._deliveries._searching is None, "the search has ended")
        write_receipt(broker, prefix, "c")
        assert found[2].result(DEADLINE_S).message_id == "c"
