"""The bridge and a real Mosquitto, with the devices of examples/: MQTT 5 and 3.1.1, paho and MQTT.js."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state.commands import SendPublish
from state.events import ClientConnected, PubAckReceived, PubCompReceived
from state.model import QoS
from tests.integration.bridge.bridge_fakes import BridgeUnderTest, running_bridge
from tests.support.mosquitto import Mosquitto, needs_mosquitto
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.interop, needs_mosquitto]

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMED = "devices/{client_id}/m/{message_id}/{topic}"


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with started(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


@contextmanager
def started(directory: Path, *, extra: str = "") -> Iterator[Mosquitto]:
    with Mosquitto(directory, extra=extra) as broker:
        yield broker


class Example:
    """A device of examples/ as a process; `lines` is what it prints, decoded."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[dict[str, str]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))

    def next_line(self) -> dict[str, str]:
        return self._lines.get(timeout=DEADLINE_S)

    @property
    def has_more(self) -> bool:
        return not self._lines.empty()

    def __enter__(self) -> "Example":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def paho(broker: Mosquitto, client_id: str, version: str = "5") -> Example:
    file = "bridge_device.py" if version == "5" else "bridge_device_mqtt311.py"
    return Example(sys.executable, str(EXAMPLES / file), broker.host, str(broker.port), client_id)


def mqtt_js(broker: Mosquitto, client_id: str) -> Example:
    if shutil.which("node") is None or "INFLIGHT_NODE_MODULES" not in os.environ:
        pytest.skip("MQTT.js is not installed: make test-interop does it")
    return Example("node", str(EXAMPLES / "bridge_device.mjs"), f"mqtt://{broker.host}:{broker.port}", client_id)


def send(bridge: BridgeUnderTest, client_id: str, packet_id: int, *, qos: int, dup: bool = False, topic: str = "cmd/go") -> None:
    bridge.kafka.command(
        client_id,
        SendPublish,
        packet_id=packet_id,
        topic=topic,
        payload=b"message %d" % packet_id,
        qos=QoS(qos),
        dup=dup,
        message_id=f"{client_id}/{packet_id} ü",
    )


def exchange(bridge: BridgeUnderTest, device: Example, client_id: str) -> None:
    """QoS 0, 1 and 2; then a copy of the last, which the device must recognise and acknowledge again."""
    bridge.kafka.wait_for(client_id, ClientConnected)
    send(bridge, client_id, 0, qos=0)
    assert device.next_line()["payload"] == "message 0"
    send(bridge, client_id, 1, qos=1)
    assert device.next_line()["payload"] == "message 1"
    bridge.kafka.wait_for(client_id, PubAckReceived)
    send(bridge, client_id, 2, qos=2)
    assert device.next_line()["payload"] == "message 2"
    bridge.kafka.wait_for(client_id, PubCompReceived)
    acknowledged = bridge.counters.acknowledgements_unknown
    send(bridge, client_id, 2, qos=2)  # under the same message id: for the device a copy, for the bridge an exchange
    bridge.kafka.wait_for(client_id, PubCompReceived, 2)
    assert bridge.counters.acknowledgements_unknown == acknowledged
    send(bridge, client_id, 3, qos=1)
    assert device.next_line()["payload"] == "message 3"
    assert not device.has_more


def test_the_paho_device_of_the_docs(mosquitto: Mosquitto) -> None:
    with running_bridge(port=mosquitto.port) as bridge, paho(mosquitto, "paho-5") as device:
        exchange(bridge, device, "paho-5")


def test_the_mqtt_js_device_of_the_docs(mosquitto: Mosquitto) -> None:
    with running_bridge(port=mosquitto.port) as bridge, mqtt_js(mosquitto, "js-5") as device:
        exchange(bridge, device, "js-5")


@pytest.mark.parametrize("bridge_version", [4, 5])
def test_the_mqtt_3_1_1_device_of_the_docs_behind_both_bridges(mosquitto: Mosquitto, bridge_version: int) -> None:
    name = f"paho-4-{bridge_version}"
    with (
        running_bridge(port=mosquitto.port, mqtt_version=bridge_version, topic_template=NAMED) as bridge,
        paho(mosquitto, name, "3.1.1") as device,
    ):
        exchange(bridge, device, name)


def test_what_one_bridge_publishes_is_no_publication_for_another(mosquitto: Mosquitto) -> None:
    reads_cmd = {"name": "bridge-2", "uplink_topic_templates": ("devices/{client_id}/cmd/{topic}",), "uplink_group": "others"}
    with (
        running_bridge(port=mosquitto.port) as first,
        running_bridge(port=mosquitto.port, **reads_cmd) as second,
        paho(mosquitto, "round") as device,
    ):
        first.kafka.wait_for("round", ClientConnected)
        send(first, "round", 1, qos=1)
        assert device.next_line()["payload"] == "message 1"
        wait_until(lambda: second.counters.publications_ignored == {"returned": 1}, "the other bridge has it, too")
        command = ["mosquitto_pub", "-h", mosquitto.host, "-p", str(mosquitto.port), "-q", "1"]
        subprocess.run([*command, "-t", "devices/round/cmd/go", "-m", "the device's own"], check=True, timeout=30)
        wait_until(lambda: second.kafka.uplink("round"), "the publication of the device")
        assert [record.value for record in second.kafka.uplink("round")] == [b"the device's own"]


def test_a_later_bridge_learns_who_is_there_from_retained_messages(mosquitto: Mosquitto) -> None:
    with paho(mosquitto, "early"):
        with running_bridge(port=mosquitto.port) as first:
            first.kafka.wait_for("early", ClientConnected)
        with running_bridge(port=mosquitto.port) as second:
            second.kafka.wait_for("early", ClientConnected)


def test_publications_that_a_bridge_lost_come_to_the_next_one(tmp_path: Path) -> None:
    with started(tmp_path) as broker:
        with running_bridge(port=broker.port) as killed:
            killed.kafka.holding = lambda record: record.topic.endswith("uplink") and record.value != b"0"
            for number in range(4):
                publish(broker, "devices/d7/up/t", f"{number}")
            wait_until(lambda: len(killed.kafka.uplink()) == 4, "four publications, of which Kafka has confirmed one")
        with running_bridge(port=broker.port) as bridge:
            wait_until(lambda: len(bridge.kafka.uplink()) >= 3, "the others")
            publish(broker, "devices/d7/up/t", "last")
            wait_until(lambda: bridge.kafka.uplink()[-1].value == b"last", "the last")
            assert [record.value for record in bridge.kafka.uplink()] == [b"1", b"2", b"3", b"last"]


@pytest.mark.parametrize("version", [4, 5])
def test_two_bridges_share_the_publications(tmp_path: Path, version: int) -> None:
    settings = {"mqtt_version": version, "topic_template": NAMED}
    with (
        started(tmp_path) as broker,
        running_bridge(port=broker.port, name="b1", **settings) as one,
        running_bridge(port=broker.port, name="b2", **settings) as two,
    ):
        for number in range(20):
            publish(broker, "devices/d8/up/t", f"{number}")
        wait_until(lambda: len(one.kafka.uplink()) + len(two.kafka.uplink()) >= 20, "twenty publications")
        values = sorted(int(record.value) for bridge in (one, two) for record in bridge.kafka.uplink())
        assert values == list(range(20))
        assert one.kafka.uplink()
        assert two.kafka.uplink()


def publish(broker: Mosquitto, topic: str, payload: str) -> None:
    command = ["mosquitto_pub", "-h", broker.host, "-p", str(broker.port), "-t", topic, "-m", payload, "-q", "1"]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
