"""Two `inflight bridge` run behind a real Mosquitto, with Kafka and engine. One bridge is killed for good. All are scraped."""

import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from inflight.local.endpoints import Endpoints
from tests.integration.up.paho_subscriber import PahoSubscriber
from tests.support.bridged_device import TOPIC_TEMPLATE, BridgedDevice
from tests.support.kafka_topics import read_topic
from tests.support.mosquitto import BridgeProcess, Mosquitto, needs_mosquitto
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.faults, needs_mosquitto]

DEVICES = 12
MESSAGES = 10
PUBLICATIONS = 40
UP_OPTIONS = ("retry_interval=2s", "max_inflight=4", "engine.nice=0", "metrics.engine_port=0", "metrics.gateway_port=0")
BRIDGE_OPTIONS = (f"bridge.topic_template={TOPIC_TEMPLATE}", "bridge.group_session_timeout_ms=6s", "metrics.bridge_port=0")


def values(kafka: str, topic: str) -> Counter[bytes | None]:
    """Returns the number of copies of each value."""
    return Counter(record.value for record in read_topic(kafka, topic))


class Site:
    """`inflight up`, a Mosquitto, two bridges, their devices and a backend."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        options = (word for option in UP_OPTIONS for word in ("--set", option))
        self.up = stack.enter_context(UpProcess(directory / "up", *options))
        self.broker = stack.enter_context(Mosquitto(directory))
        self.bridges = [
            BridgeProcess(name, directory, kafka=self.up.kafka, broker=self.broker, settings=BRIDGE_OPTIONS)
            for name in ("bridge-1", "bridge-2")
        ]
        for bridge in self.bridges:
            bridge.spawn()
            stack.callback(bridge.kill)
        for bridge in self.bridges:
            bridge.await_ready()
        self._producer = KafkaProducer(bootstrap_servers=self.up.kafka, acks="all")
        stack.callback(self._producer.close)
        self.devices = [BridgedDevice(f"dev-{number}", mqtt5=number % 2 == 0) for number in range(DEVICES)]
        for device in self.devices:
            stack.callback(device.stop)
            device.start(self.broker.host, self.broker.port)
        for device in self.devices:
            assert device.connected.wait(DEADLINE_S)

    def send(self, numbers: range) -> None:
        for number in numbers:
            for device in self.devices:
                payload = f"{device.name} #{number}".encode()
                headers = [("mqtt-topic", b"cmd"), ("mqtt-qos", b"%d" % (1 + number % 2)), ("message-id", payload)]
                self._producer.send("inflight.messages", key=device.name.encode(), value=payload, headers=headers)
        self._producer.flush()

    def publish(self, numbers: range) -> None:
        lines = "".join(f"publication {number}\n" for number in numbers)
        address = ["-h", self.broker.host, "-p", str(self.broker.port)]
        command = ["mosquitto_pub", *address, "-t", "devices/dev-0/up/t", "-q", "1", "-l"]
        subprocess.run(command, input=lines, text=True, check=True, timeout=30)

    def processed(self) -> int:
        return sum(device.processed.total() for device in self.devices)

    def held(self, bridge: BridgeProcess) -> int:
        return int(sample(bridge.ready["metrics"], "inflight_bridge_devices"))


def sample(address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    found = [line.split()[1] for line in text.splitlines() if line.split()[0] == name]
    assert len(found) == 1, f"{name} is not in:\n{text}"
    return float(found[0])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path_factory.mktemp("bridges"))


def test_a_publication_behind_the_broker_reaches_a_subscriber_at_a_gateway(site: Site) -> None:
    with PahoSubscriber(site.up.mqtt, "at-a-gateway") as subscriber:
        subscriber.subscribe("t")
        site.publish(range(-1, 0))
        assert subscriber.payloads(1) == [b"publication -1"]


def test_two_bridges_share_the_devices_and_one_takes_over(site: Site) -> None:
    first, second = site.bridges
    wait_until(lambda: site.held(first) + site.held(second) == DEVICES, "every device is held once")
    assert site.held(first) > 0
    assert site.held(second) > 0

    site.send(range(MESSAGES // 2))
    first.kill()
    site.send(range(MESSAGES // 2, MESSAGES))
    total = DEVICES * MESSAGES
    wait_until(lambda: values(site.up.kafka, "inflight.receipts").total() >= total, "a receipt for every message")
    assert site.held(second) == DEVICES
    assert site.processed() == total
    assert [device.name for device in site.devices if any(count > 1 for count in device.processed.values())] == []
    assert all(b'"outcome":"delivered"' in value for value in values(site.up.kafka, "inflight.receipts") if value)
    assert max(device.most_unacknowledged for device in site.devices) <= 4


def test_publications_for_an_absent_bridge_come_when_it_is_back(site: Site) -> None:
    first, second = site.bridges
    first.kill()
    site.publish(range(PUBLICATIONS))
    second.kill()
    site.publish(range(PUBLICATIONS, 2 * PUBLICATIONS))
    for bridge in site.bridges:
        bridge.spawn()
    expected = {b"publication %d" % number for number in range(2 * PUBLICATIONS)}
    wait_until(lambda: values(site.up.kafka, "inflight.uplink").keys() >= expected, "every publication")
    for bridge in site.bridges:
        bridge.await_ready()


def test_engine_gateway_and_bridges_can_be_scraped(site: Site) -> None:
    served = Endpoints.read(site.up.data_dir).metrics
    assert served.keys() == {"engine", "gateway"}
    assert sample(served["engine"], "inflight_engine_micro_batches_total") > 0
    assert sample(served["engine"], "inflight_engine_records_taken_total") >= DEVICES * MESSAGES
    delivered = 'inflight_engine_messages_ended_total{outcome="delivered"}'
    wait_until(lambda: sample(served["engine"], delivered) >= DEVICES * MESSAGES, "what the receipts say")
    assert sample(served["gateway"], "inflight_gateway_connections") == 0
    for bridge in site.bridges:
        assert sample(bridge.ready["metrics"], "inflight_bridge_broker_connections_total") >= 2
