"""Clients that nobody here wrote: mosquitto_sub and mosquitto_pub, mqtt.js, and a plain Kafka producer and consumer."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from tests.support.kafka_topics import ReadRecord, read_topic

pytestmark = pytest.mark.interop
DEVICE_JS = Path(__file__).with_name("device.mjs")
EXAMPLE_JS = Path(__file__).parents[3] / "examples" / "device.mjs"
VERSIONS = {"mqttv311": "4", "mqttv5": "5"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up") / "data", "--set", "retry_interval=5s", "--set", "engine.nice=0") as running:
        yield running


def inflight_send(up: UpProcess, client_id: str, topic: str, payload: str, *, qos: int = 1) -> None:
    command = [sys.executable, "-m", "inflight", "send", client_id, topic, "--payload", payload, "--qos", str(qos)]
    subprocess.run([*command, "--kafka", up.kafka], check=True, capture_output=True, timeout=60)


def mosquitto_sub(up: UpProcess, client_id: str, version: str, *, count: int, kept: bool = True) -> "subprocess.Popen[str]":
    """Prints `topic payload qos` of each message and ends after `count`."""
    host, port = up.mqtt
    command = ["mosquitto_sub", "-h", host, "-p", str(port), "-i", client_id, "-V", version, "-q", "2", "-t", "cmd/#"]
    command += ["-C", str(count), "-W", "60", "-F", "%t %p %q", *(["-c"] if kept else [])]
    if kept and version == "mqttv5":
        command += ["-x", "3600"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(process: "subprocess.Popen[str]") -> list[str]:
    out, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    return out.splitlines()


@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_sub_sees_what_inflight_send_sends(up: UpProcess, version: str) -> None:
    device = mosquitto_sub(up, f"sub-{version}", version, count=1)
    inflight_send(up, f"sub-{version}", "cmd/reboot", "now")
    assert lines(device) == ["cmd/reboot now 1"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_offline_mosquitto_device_gets_its_messages_in_order(up: UpProcess, version: str) -> None:
    for number in range(3):
        inflight_send(up, f"offline-{version}", "cmd/step", str(number))
    assert lines(mosquitto_sub(up, f"offline-{version}", version, count=3)) == [f"cmd/step {n} 1" for n in range(3)]


def test_a_plain_kafka_producer_with_the_headers_reaches_the_device(up: UpProcess) -> None:
    device = mosquitto_sub(up, "plain", "mqttv5", count=1)
    producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    headers = [("mqtt-topic", b"cmd/plain"), ("mqtt-qos", b"2"), ("user-origin", b"plain"), ("message-id", b"4711")]
    producer.send("inflight.messages", key=b"plain", value=b"by hand", headers=headers).get(timeout=30)
    producer.close()
    assert lines(device) == ["cmd/plain by hand 2"]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_mosquitto_pub_publishes_at_any_qos_is_in_the_uplink(up: UpProcess, version: str) -> None:
    host, port = up.mqtt
    for qos in (0, 1, 2):
        command = ["mosquitto_pub", "-h", host, "-p", str(port), "-i", f"pub-{version}", "-V", version]
        subprocess.run([*command, "-t", "telemetry", "-m", f"{version} {qos}", "-q", str(qos)], check=True, timeout=60)
    assert read_uplink(up, f"pub-{version}", 3) == {f"{version} {qos}": str(qos) for qos in (0, 1, 2)}


@pytest.mark.parametrize("version", VERSIONS.values())
def test_an_mqtt_js_device_gets_messages_of_every_qos_and_publishes(up: UpProcess, version: str) -> None:
    name = f"js-{version}"
    host, port = up.mqtt
    command = ["node", str(DEVICE_JS), f"mqtt://{host}:{port}", name, version, "3"]
    environment = {**os.environ, "INFLIGHT_NODE_MODULES": os.environ["INFLIGHT_NODE_MODULES"]}
    device = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert device.stdout is not None
    first = json.loads(device.stdout.readline())
    assert first == {"event": "ready", "sessionPresent": False}
    for qos in (0, 1, 2):
        inflight_send(up, name, "cmd/js", f"qos {qos}", qos=qos)
    messages = [json.loads(line) for line in lines(device)]
    assert sorted((m["payload"], m["qos"], m["dup"]) for m in messages) == [(f"qos {qos}", qos, False) for qos in (0, 1, 2)]
    assert read_uplink(up, name, 1) == {"hello": "2"}


def test_the_example_of_a_device_in_javascript_runs(up: UpProcess) -> None:
    host, port = up.mqtt
    command = ["node", str(EXAMPLE_JS), f"mqtt://{host}:{port}", "example-js"]
    environment = {**os.environ, "INFLIGHT_NODE_MODULES": os.environ["INFLIGHT_NODE_MODULES"]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as device:
        assert device.stdout is not None
        assert device.stdout.readline() == "connected\n"
        for qos in (0, 1, 2):
            inflight_send(up, "example-js", "cmd/js", "now", qos=qos)
            assert device.stdout.readline() == f"cmd/js now (QoS {qos})\n"
        assert device.poll() is None
        device.terminate()


def read_uplink(up: UpProcess, client_id: str, count: int) -> dict[str, str]:
    """QoS by payload of the client's publications, once there are `count`."""

    def own(records: list[ReadRecord]) -> list[ReadRecord]:
        return [record for record in records if record.key == client_id.encode()]

    found = own(read_topic(up.kafka, "inflight.uplink", lambda records: len(own(records)) >= count))
    return {(record.value or b"").decode(): dict(record.headers)["mqtt-qos"].decode() for record in found}
