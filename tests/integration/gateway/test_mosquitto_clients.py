"""mosquitto_pub and mosquitto_sub at a gateway with TLS, passwords and client certificates."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.settings import AccessRule, GatewaySettings, LoginSettings
from state.commands import SendPublish
from state.events import PublishReceived, Subscribed
from state.model import QoS
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, running_gateway
from tests.support.mosquitto import Mosquitto, needs_mosquitto
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.interop

VERSIONS = ["mqttv311", "mqttv5"]
PROTOCOLS = {"mqttv311": "mqttv311", "mqttv5": "mqttv50"}
"""The same versions, as a bridge's configuration has them."""
PASSWORDS, CERTIFICATES = 1, 2


@pytest.fixture(scope="module")
def gateway(authority: Authority) -> Iterator[GatewayUnderTest]:
    users = authority.directory / "users"
    write_password_file(users, {"ada": HASHER.hash("right")})
    settings = GatewaySettings(
        login=LoginSettings(password_file=str(users), max_failures=0),
        rules=(AccessRule(publish=("devices/{username}/#",)),),
        listeners=(authority.listener(anonymous=False), authority.listener(anonymous=False, asking=True)),
    )
    with running_gateway(settings) as running:
        yield running


def command(tool: str, gateway: GatewayUnderTest, cafile: Path, client_id: str, version: str, *, listener: int) -> list[str]:
    port = str(gateway.addresses[listener][1])
    return [tool, "-h", "localhost", "-p", port, "--cafile", str(cafile), "-i", client_id, "-V", version, "-q", "2"]


def publish(*parts: str) -> int:
    return subprocess.run([*parts, "-m", "p"], capture_output=True, timeout=DEADLINE_S, check=False).returncode


@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_pub_logs_in_with_a_certificate(
    gateway: GatewayUnderTest, authority: Authority, tmp_path: Path, version: str
) -> None:
    client_id = f"bob/{version}"
    call = command("mosquitto_pub", gateway, authority.file, client_id, version, listener=CERTIFICATES)
    mine, strange = authority.client("bob"), Authority(tmp_path / "other").client("bob")
    assert publish(*call, "-t", "devices/bob/up", "--cert", str(mine), "--key", str(mine)) == 0
    assert [event.username for event in gateway.kafka.of(client_id, PublishReceived)] == ["bob"]
    assert publish(*call, "-t", "devices/bob/up", "--cert", str(strange), "--key", str(strange)) != 0
    assert len(gateway.kafka.of(client_id, PublishReceived)) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_sub_receives(gateway: GatewayUnderTest, authority: Authority, version: str) -> None:
    client_id = f"ada/sub-{version}"
    call = command("mosquitto_sub", gateway, authority.file, client_id, version, listener=PASSWORDS)
    with subprocess.Popen([*call, "-t", "down/#", "-u", "ada", "-P", "right", "-C", "1"], stdout=subprocess.PIPE) as child:
        wait_until(lambda: gateway.kafka.of(client_id, Subscribed), "it has subscribed")
        gateway.kafka.command(client_id, SendPublish, packet_id=1, topic="down/x", payload=b"to mosquitto", qos=QoS(1))
        output, _ = child.communicate(timeout=DEADLINE_S)
    assert output == b"to mosquitto\n"


@needs_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
def test_a_mosquitto_bridge_connects_and_carries_both_ways(tmp_path: Path, version: str) -> None:
    """With its defaults: of MQTT 3.1.1 it sets the highest bit of the protocol level."""
    client_id = f"bridge-{version}"
    with running_gateway() as gateway:
        bridge = (
            "connection to-inflight",
            f"address {gateway.host}:{gateway.port}",
            f"remote_clientid {client_id}",
            f"bridge_protocol_version {PROTOCOLS[version]}",
            "topic # both 1",
            *(["notifications false"] if version == "mqttv5" else []),  # they are retained, with a retained will
        )
        with Mosquitto(tmp_path, extra="\n".join(bridge)) as broker:
            gateway.kafka.wait_for(client_id, Subscribed)
            call = ["-h", broker.host, "-p", str(broker.port), "-q", "1"]
            assert publish("mosquitto_pub", *call, "-t", "up/t") == 0
            wait_until(lambda: any(up.value == b"p" for up in gateway.kafka.uplink(client_id)), "it is in the log")
            received: list[bytes] = []
            subscribed = threading.Event()
            client = paho.Client(CallbackAPIVersion.VERSION2)
            client.on_message = lambda _client, _data, message: received.append(message.payload)
            client.on_subscribe = lambda *_: subscribed.set()
            client.connect(broker.host, broker.port)
            client.subscribe("down/t", 1)
            client.loop_start()
            try:
                assert subscribed.wait(DEADLINE_S)
                gateway.kafka.command(client_id, SendPublish, packet_id=1, topic="down/t", payload=b"down", qos=QoS(1))
                wait_until(lambda: received == [b"down"], "it goes through the broker")
            finally:
                client.loop_stop()
        assert gateway.counters.connections_refused == {}
