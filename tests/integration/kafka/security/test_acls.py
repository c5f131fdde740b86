"""The table of ACLs in docs/operate/install.md: with them everything works, and each of them is used.

The broker logs what it allows and what it refuses, so one run finds both: what is missing, and what nobody needs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from kafka import KafkaConsumer, KafkaProducer
from paho.mqtt.enums import CallbackAPIVersion

from inflight import Presence, Producer
from inflight.cli.send_display import producer_settings
from inflight.demo.paho_device import paho_client
from inflight.local.jars import Jars
from inflight.status.probes import probe_kafka
from sinks.kafka.kafka_python import subscribe
from state.records.throttle import encode_throttle
from streaming.history.sources.kafka import KafkaSource
from streaming.history.sources.source import SourceLimits
from streaming.history.subscriptions import read_retained
from tests.integration.kafka.security.acl_table import Rule, documented
from tests.integration.kafka.security.secure_kafka import PASSWORD, secure_kafka
from tests.integration.kafka.security.secured_testbed import BOUND_TOPIC, PREFIX, Testbed, running_testbed
from tests.support.kafka_topics import read_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

LAMPS = [f"lamp-{number}" for number in range(6)]
ATTEMPTS = 20
NAMES = {"DEAD_LETTER_TOPIC": BOUND_TOPIC, "YOUR_GROUP": "backend-readers", "YOUR_TRANSACTIONAL_ID": "backend-1"}
NOT_NEEDED = {
    # kafka-python's describe_cluster asks what the user may do with the cluster; the answer is not used.
    Rule(principal=user, resource="cluster", name="kafka-cluster", operation="Describe")
    for user in ("administrator", "engine")
}

SHARED = "$share/workers/work/#"

OFFERED = Rule(principal="gateway", resource="topic", name=f"{PREFIX}.commands", operation="Write")


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[Testbed]:
    """Yields the testbed after everything that needs Kafka has run."""
    with (
        secure_kafka(tmp_path_factory.mktemp("secure"), jars) as (broker, _),
        running_testbed(broker, tmp_path_factory.mktemp("testbed")) as it,
    ):
        rules = tried()
        for user in sorted({rule.principal for rule in rules}):
            it.add(user)
        broker.allow(rules)
        it.run("administrator", "topics")
        throttle_somebody(it)
        it.start("engine", "engine")
        gateways = [it.start("gateway", "gateway", name=name) for name in ("gateway", "gateway-2")]
        devices = [device(lamp, gateways[number % 2]["mqtt"]) for number, lamp in enumerate(LAMPS)]
        app = device("app", gateways[0]["mqtt"])
        wait_until(lambda: all(one.is_connected() for one in (*devices, app)), "all devices are connected")
        send(it, devices)
        wait_until(lambda: len(app.user_data_get()) == len(LAMPS), "the app has its receipts")
        for qos in range(3):
            devices[0].publish("up", b"up", qos=qos).wait_for_publish(30)
        route(it, gateways[0]["mqtt"], [*devices, app])
        app.subscribe("$SYS/#")
        wait_until(lambda: any(b"$SYS" in (record.key or b"") for record in on_topic(it, "publications")), "$SYS is published")
        wait_for_somebody(it, "gateway")
        it.note_command_lines()
        for topic, count in ("receipts", 2 * len(LAMPS) + 2), ("uplink", 3), ("dead-letters", 1):
            read_as_backend(it, topic, count)
        for one in (*devices, app):
            one.loop_stop()
        it.kill("gateway")
        it.stop("gateway-2")
        wait_until(lambda: "connections_ended" in it.log("engine").read_text(), "the killed gateway's connections are ended")
        wait_until(lambda: any(record.value is None for record in on_topic(it, "leases")), "the lease of the stopped one is over")
        wait_until_written(it, "engine", "retained")
        route_without_gateways(it)
        look_back(it)
        yield it


def tried() -> list[Rule]:
    return [rule for rule in documented(PREFIX, NAMES) if rule.principal != "bridge"]  # test_bridge_acls.py


def throttle_somebody(testbed: Testbed) -> None:
    """Writes a throttle record as an earlier engine would have left it: the next engine deletes it."""
    producer = KafkaProducer(bootstrap_servers=testbed.broker.bootstrap_servers)
    producer.send(f"{PREFIX}.throttle", key=b"somebody", value=encode_throttle("busy", 1)).get(30)
    producer.close()


def device(client_id: str, address: str) -> paho.Client:
    """A device that subscribes to everything, with a retained will."""
    client = paho_client(client_id, mqtt5=False)
    client.user_data_set([])
    client.will_set(f"wills/{client_id}", b"gone", qos=1, retain=True)
    client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
    client.on_message = lambda _client, messages, message: messages.append(message.payload)
    host, _, port = address.rpartition(":")
    client.connect(host, int(port))
    client.loop_start()
    return client


def send(testbed: Testbed, devices: list[paho.Client]) -> None:
    """Sends to each lamp, in a transaction, and to clients that are away or unknown.

    Repeats this until messages take the fast path within a gateway and between gateways.
    """
    settings = testbed.settings("backend")
    own = producer_settings(settings)
    with Producer(settings.kafka.bootstrap_servers, settings=own, transactional_id="backend-1") as producer:
        for lamp in "lamp-away", "nobody":
            producer.send(client_id=lamp, topic="t", payload=b"", message_id=f"late-{lamp}", expiration_ms=1)
        with producer.transaction() as transaction:
            for lamp in LAMPS:
                transaction.send(client_id=lamp, topic="t", payload=b"0", message_id=f"{lamp}-0", response_topic="client:app")
        arrived(devices, 1)
        for number in range(1, ATTEMPTS):  # a gateway may be under pressure, and the grants may not be there yet
            for lamp in LAMPS:
                producer.send(client_id=lamp, topic="t", payload=b"%d" % number, message_id=f"{lamp}-{number}")
            arrived(devices, number + 1)
            if is_fast(testbed) and OFFERED in testbed.broker.allowed():
                break


def route(testbed: Testbed, address: str, subscribers: list[paho.Client]) -> None:
    """Publishes from a device, retained, and from a backend; then the session of a shared subscription's only member ends."""
    subscribers[0].publish("kept", b"kept", qos=1, retain=True).wait_for_publish(30)
    settings = testbed.settings("backend")
    with (
        Member(address) as member,
        Producer(settings.kafka.bootstrap_servers, settings=producer_settings(settings)) as producer,
    ):
        producer.publish("work/1", b"work", message_id="work-1")
        wait_until(lambda: all({b"kept", b"work"} <= set(one.user_data_get()) for one in subscribers), "all have both messages")
        wait_until(lambda: member.received == [b"work"], "the member has its message")
    wait_until_written(testbed, "engine", "publications")


class Member:
    """A member of a shared subscription that never acknowledges, and whose session ends with `with`."""

    def __init__(self, address: str) -> None:
        self.received: list[bytes] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="worker", clean_session=True, manual_ack=True)
        self._client.on_connect = lambda client, *_: client.subscribe(SHARED, qos=1)
        subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_message = lambda _client, _data, message: self.received.append(bytes(message.payload))
        self._subscribed, self._address = subscribed, address

    def __enter__(self) -> "Member":
        host, _, port = self._address.rpartition(":")
        self._client.connect(host, int(port))
        self._client.loop_start()
        assert self._subscribed.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def route_without_gateways(testbed: Testbed) -> None:
    """A matcher alone finds the subscribers of retained messages of a backend, one of them for later; all are offline."""
    testbed.start("matcher", "matcher")
    settings = testbed.settings("backend")
    with Producer(settings.kafka.bootstrap_servers, settings=producer_settings(settings)) as producer:
        producer.publish("fleet", b"all", retain=True)
        producer.publish("fleet/later", b"all", retain=True, deliver_at="+1s")
    for topic in "messages", "retained", "publications":
        wait_until_written(testbed, "matcher", topic)
    wait_for_somebody(testbed, "matcher")


def wait_for_somebody(testbed: Testbed, user: str) -> None:
    """Publishes to a subscriber that is connected and behind, as the engine says: the matcher says that it waits."""
    settings = testbed.settings("backend")
    engine = KafkaProducer(bootstrap_servers=testbed.broker.bootstrap_servers)
    engine.send(f"{PREFIX}.throttle", key=b"app", value=encode_throttle("behind", 2, is_progressing=True)).get(30)
    with Producer(settings.kafka.bootstrap_servers, settings=producer_settings(settings)) as producer:
        wait_until(lambda: producer.throttled("app") is not None, "the throttle is known")
        producer.publish("behind", b"late")
        wait_until_written(testbed, user, "throttle")
    engine.send(f"{PREFIX}.throttle", key=b"app", value=None).get(30)
    engine.close()


def wait_until_written(testbed: Testbed, user: str, topic: str) -> None:
    rule = Rule(principal=user, resource="topic", name=f"{PREFIX}.{topic}", operation="Write")
    wait_until(lambda: rule in testbed.broker.allowed(), f"{user} has written to {topic}")


def arrived(devices: list[paho.Client], count: int) -> None:
    wait_until(lambda: all(len(set(one.user_data_get())) == count for one in devices), "every lamp has its messages")


def is_fast(testbed: Testbed) -> bool:
    return any(b'"fast_path":true' in (record.value or b"") for record in on_topic(testbed, "receipts"))


def read_as_backend(testbed: Testbed, topic: str, count: int) -> None:
    options = testbed.settings("backend").kafka.client_options()
    consumer = KafkaConsumer(**options, group_id=NAMES["YOUR_GROUP"], auto_offset_reset="earliest")
    subscribe(consumer, [f"{PREFIX}.{topic}"])
    found = 0

    def read() -> bool:
        nonlocal found
        found += sum(len(records) for records in consumer.poll(timeout_ms=500).values())
        return found >= count

    wait_until(read, lambda: f"{count} records of {topic}, {found} are there: {on_topic(testbed, topic)}")
    consumer.close()


def on_topic(testbed: Testbed, topic: str) -> list[Any]:
    return read_topic(testbed.broker.bootstrap_servers, f"{PREFIX}.{topic}")


def look_back(testbed: Testbed) -> None:
    """The commands that read the topics, and one that writes: the expired message is sent again."""
    steps = testbed.documents("operator", "trace", "lamp-0-0", "--source", "kafka", "--json")
    assert [step["step"] for step in steps][-1] == "finished"
    found = testbed.documents("operator", "subscriptions", "--topic", "fleet", "--json")
    assert {one["client_id"] for one in found} == {*LAMPS, "app"}
    known = testbed.documents("operator", "presence", "--json")
    assert {one["client_id"] for one in known} >= {*LAMPS, "app"}
    of_backend = testbed.settings("backend").kafka
    servers, options = of_backend.bootstrap_servers, of_backend.librdkafka_options()
    with Presence(servers, topic=f"{PREFIX}.presence", kafka_options=options) as presence:
        assert presence.get("app") is not None
    settings = testbed.settings("operator")
    of_position = KafkaSource(settings, SourceLimits()).of_message(f"{PREFIX}.messages-0-{1 << 40}")
    assert not of_position, "only an id that is made of a position needs `routes`"
    retained = read_retained(settings, "#", lambda *_: None, now_ms=time.time_ns() // 1_000_000, most=100, payload_bytes=100)
    assert {"kept", "wills/app", "fleet"} <= {one.topic for one in retained}
    status = probe_kafka(settings)
    assert (status.error, status.missing_topics) == (None, ())
    assert status.matchers is not None
    assert status.matchers.members == 1
    [count] = testbed.documents("operator", "replay", "--all", "--source", "kafka", "--json")
    assert count["sent"] == 2


def test_nothing_that_is_needed_is_missing(worked: Testbed) -> None:
    assert sorted(worked.broker.refused() - NOT_NEEDED) == []


def test_nothing_is_allowed_that_nobody_needs(worked: Testbed) -> None:
    assert sorted(set(tried()) - worked.broker.allowed()) == []


def test_the_fast_path_was_among_what_was_tried(worked: Testbed) -> None:
    assert is_fast(worked)


SECRETS: dict[str, Callable[[Testbed], str]] = {
    "command lines": lambda testbed: "\n".join(sorted(testbed.command_lines)),
    "logs": lambda testbed: "\n".join(path.read_text(errors="replace") for path in testbed.directory.rglob("*.log*")),
    "checkpoints and tables": lambda testbed: "\n".join(
        path.read_text(errors="replace") for path in (testbed.directory / "data").rglob("*") if path.is_file()
    ),
    "`inflight config`": lambda testbed: testbed.run("engine", "config"),
}


@pytest.mark.parametrize("place", SECRETS)
def test_no_secret_is_in(worked: Testbed, place: str) -> None:
    text = SECRETS[place](worked)
    assert text
    assert PASSWORD not in text


def test_the_command_lines_are_those_of_all_processes(worked: Testbed) -> None:
    for part in "inflight\0engine", "inflight\0gateway", "org.apache.spark.deploy.SparkSubmit":
        assert any(part in line for line in worked.command_lines), part
