"""A whole cluster on one machine: three brokers, Spark's master and two workers, the engine, two gateways behind a balancer.

While messages flow in both directions a broker is killed, and then a worker with its executor.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from paho.mqtt.client import MQTTMessageInfo

from inflight.local.jars import Jars
from state.records.receipts import Receipt
from streaming.config.settings import load_settings
from streaming.topics import ensure_topics
from tests.integration.engine.counting_device import CountingDevice
from tests.integration.engine.spark_cluster import SparkCluster
from tests.support.balancer import Balancer
from tests.support.inflight_process import InflightProcess
from tests.support.kafka_cluster import BROKERS, KafkaCluster
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(540)]

DEVICES = 12
ROUNDS = 9
BROKER_DIES, WORKER_DIES = 3, 6
"""Rounds after which the broker and the worker are killed."""

CONFIGURATION = """
[kafka]
bootstrap_servers = "{servers}"
[topics]
replication_factor = 3
min_insync_replicas = 2
[engine]
master = "{master}"
data_dir = "{directory}"
[engine.spark]
"spark.driver.host" = "127.0.0.1"
"spark.executor.memory" = "600m"
[session]
retry_interval = "5s"
[gateway]
port = -1
group_session_timeout_ms = "6s"
[[listeners]]
port = 0
anonymous = true
proxies = ["127.0.0.1"]
"""


@dataclass
class Cluster:
    """kafka and spark: to kill parts of."""

    kafka: KafkaCluster
    spark: SparkCluster
    engine: InflightProcess
    balancer: Balancer


@contextmanager
def running(directory: Path, jars: Jars) -> Iterator[Cluster]:
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster(directory / "kafka", jars=jars))
        spark = stack.enter_context(SparkCluster(directory / "spark", workers=2))
        config = directory / "inflight.toml"
        text = CONFIGURATION.format(servers=kafka.bootstrap_servers, master=spark.url, directory=directory / "data")
        config.write_text(text, encoding="utf-8")
        report = ensure_topics(load_settings(config))
        assert report.warnings == (), "three replicas of each, two of which confirm"
        start = [InflightProcess(directory, f"gateway-{number}", "gateway", "--config", str(config)) for number in range(2)]
        gateways = [stack.enter_context(gateway).address("mqtt") for gateway in start]
        engine = stack.enter_context(InflightProcess(directory, "engine", "engine", "--config", str(config)))
        balancer = stack.enter_context(Balancer(*gateways))
        yield Cluster(kafka, spark, engine, balancer)


@dataclass
class Account:
    """Notes what was sent and what arrived, by payload. confirmed: of each publication of a device."""

    sent: list[bytes] = field(default_factory=list)
    seen: Counter[bytes] = field(default_factory=Counter)
    published: list[bytes] = field(default_factory=list)
    confirmations: list[MQTTMessageInfo] = field(default_factory=list)

    def is_complete(self) -> bool:
        return set(self.sent) <= set(self.seen) and all(info.is_published() for info in self.confirmations)

    def missing(self) -> str:
        lost = sorted(set(self.sent) - set(self.seen))
        return f"{len(lost)} messages: {lost[:5]}; {sum(not info.is_published() for info in self.confirmations)} confirmations"


def play_round(number: int, producer: KafkaProducer, devices: list[CountingDevice], account: Account) -> None:
    """A message to each device, and one from each."""
    for client, device in enumerate(devices):
        name = b"device-%d" % client
        down, up = b"down/%s/%d" % (name, number), b"up/%s/%d" % (name, number)
        headers = [("mqtt-topic", b"cmd"), ("mqtt-qos", b"2"), ("message-id", down)]
        producer.send("inflight.messages", down, key=name, headers=headers)
        account.sent.append(down)
        account.confirmations.append(device.publish("telemetry", up))
        account.published.append(up)


def leader_of(servers: str, topic: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None)
    try:
        consumer.partitions_for_topic(topic)
        return int(consumer._client.cluster.leader_for_partition(TopicPartition(topic, 0)))
    finally:
        consumer.close()


def publications(records: list[ReadRecord]) -> Counter[bytes | None]:
    """Counts publications by payload. Records with the same `inflight-id` count once: a re-executed micro-batch repeats them."""
    return Counter(value for _, value in {(dict(record.headers)["inflight-id"], record.value) for record in records})


def outcomes(records: list[ReadRecord]) -> Counter[tuple[str, str]]:
    """Counts receipts by message id and outcome. Identical receipts count once: a re-executed micro-batch repeats them."""
    found = {record.value: msgspec.json.decode(record.value or b"", type=Receipt) for record in records}
    return Counter((receipt.message_id, receipt.outcome.value) for receipt in found.values())


@pytest.mark.promise("broker-dies")
def test_a_broker_and_a_worker_are_killed_while_messages_flow(tmp_path: Path, jars: Jars) -> None:
    account = Account()
    with running(tmp_path, jars) as cluster:
        servers = cluster.kafka.bootstrap_servers
        devices = [CountingDevice(f"device-{number}", cluster.balancer.address, account.seen) for number in range(DEVICES)]
        producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True)

        def settle() -> None:
            wait_until(
                account.is_complete, lambda: f"{account.missing()}; {cluster.engine.log_tail()}", check=cluster.engine.check
            )

        victim = leader_of(servers, "inflight.events")
        for number in range(ROUNDS):
            play_round(number, producer, devices, account)
            if number == BROKER_DIES:
                cluster.kafka.kill(victim)
            elif number == WORKER_DIES:
                assert len(cluster.spark.executors()) == 2, "the sessions are spread over both"
                cluster.spark.kill_worker()
            else:
                settle()
        settle()
        cluster.kafka.start(victim)
        wait_until(lambda: cluster.kafka.alive() == set(range(BROKERS)), "the killed broker is back")
        play_round(ROUNDS, producer, devices, account)
        settle()
        producer.close()
        for device in devices:
            device.close()
        assert min(cluster.balancer.connections.values()) > 0, "devices at both gateways"
        uplink = read_topic(servers, "inflight.uplink", lambda records: publications(records).keys() >= set(account.published))
        expected = Counter((payload.decode(), "delivered") for payload in account.sent)
        receipts = read_topic(servers, "inflight.receipts", lambda records: outcomes(records).keys() >= expected.keys())
    assert account.seen == Counter(account.sent), "each once"
    assert publications(uplink) == Counter(account.published), "each once"
    assert outcomes(receipts) == expected, "one final outcome each"
