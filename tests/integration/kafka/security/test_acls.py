"""The table of ACLs in docs/deployment.md: with them everything works, and each of them is used.

The broker logs what it allows and what it refuses, so one run finds both: what is missing, and what nobody needs.
"""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import paho.mqtt.client as paho
import pytest
from kafka import KafkaConsumer

from inflight import Producer
from inflight.cli.send_display import producer_settings
from inflight.demo.paho_device import paho_client
from inflight.local.jars import Jars
from tests.integration.kafka.security.acl_table import documented
from tests.integration.kafka.security.secure_kafka import secure_kafka
from tests.integration.kafka.security.secured_plant import BOUND_TOPIC, PREFIX, Plant, plant
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.timeout(600)]

GROUP = "backend-readers"
NAMES = {"DEAD_LETTER_TOPIC": BOUND_TOPIC, "YOUR_GROUP": GROUP, "YOUR_TRANSACTIONAL_ID": "backend-1"}
IMPLY_DESCRIBE = ("Read", "Write", "Delete", "Alter")


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[Plant]:
    """After everything has been done that needs Kafka."""
    with (
        secure_kafka(tmp_path_factory.mktemp("secure"), jars) as (broker, _),
        plant(broker, tmp_path_factory.mktemp("plant")) as it,
    ):
        rules = documented(PREFIX, NAMES)
        for user in sorted({rule.principal for rule in rules}):
            it.add(user)
        broker.allow(rules)
        round_trip(it)
        yield it


def round_trip(plant: Plant) -> None:
    plant.run("administrator", "topics")
    plant.start("engine", "engine")
    host, _, port = plant.start("gateway", "gateway")["mqtt"].rpartition(":")
    lamp, app = device("lamp-1"), device("app-1")
    for client in lamp, app:
        client.connect(host, int(port))
        client.loop_start()
    wait_until(lambda: lamp.is_connected() and app.is_connected(), "both devices are connected")

    settings = plant.settings("backend")
    with Producer(
        settings.kafka.bootstrap_servers, settings=producer_settings(settings), transactional_id="backend-1"
    ) as producer:
        for number in range(3):
            producer.send(
                client_id="lamp-1", topic="t", payload=b"%d" % number, message_id=f"m{number}", response_topic="client:app-1"
            )
            time.sleep(0.3)  # the second one finds an idle session, which grants the fast path; the third one takes it
        producer.send(client_id="lamp-2", topic="t", payload=b"", message_id="late", expiration_ms=1)
        producer.send(client_id="nobody", topic="t", payload=b"", message_id="later", expiration_ms=1)
        with producer.transaction() as transaction:
            transaction.send(client_id="lamp-1", topic="t", payload=b"3", message_id="m3")
    wait_until(lambda: len(lamp.user_data_get()) == 4, lambda: f"four messages: {lamp.user_data_get()}")
    wait_until(lambda: len(app.user_data_get()) == 3, lambda: f"three receipts: {app.user_data_get()}")
    for qos in range(3):
        lamp.publish("up", b"", qos=qos).wait_for_publish(30)
    outcomes = read_as_backend(plant, "receipts", 6)
    assert len({receipt["message_id"] for receipt in outcomes}) >= 5
    plant.note_command_lines()
    plant.kill("gateway")
    wait_until(lambda: "lease" in plant.log("engine").read_text(), "the engine notices that the gateway is gone")


def device(client_id: str) -> paho.Client:
    client = paho_client(client_id, mqtt5=False)
    client.user_data_set([])
    client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
    client.on_message = lambda _client, messages, message: messages.append(message.payload)
    return client


def read_as_backend(plant: Plant, topic: str, count: int) -> list[dict[str, Any]]:
    options = plant.settings("backend").kafka.client_options()
    consumer = KafkaConsumer(f"{PREFIX}.{topic}", **options, group_id=GROUP, auto_offset_reset="earliest")
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [msgspec.json.decode(record.value) for records in consumer.poll(timeout_ms=500).values() for record in records]
    consumer.close()
    return found


def test_nothing_that_is_needed_is_missing(worked: Plant) -> None:
    assert sorted(worked.broker.refused()) == []


def test_nothing_is_allowed_that_nobody_needs(worked: Plant) -> None:
    used = worked.broker.allowed()
    rules = set(documented(PREFIX, NAMES))
    print("UNUSED", *sorted(rules - used), sep="\n")
    assert sorted(rules - used) == []
