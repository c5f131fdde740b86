"""MQTT over WebSocket, with and without TLS: paho, MQTT.js, and devices that do not read."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from wsproto.events import AcceptConnection, BytesMessage

from sinks.mqtt.settings import GatewaySettings, ListenerSettings, Transport
from state.commands import SendPublish
from state.events import ClientConnected, PublishReceived
from state.model import QoS
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, running_gateway
from tests.integration.gateway.paho_round_trip import publishes_and_receives
from tests.integration.gateway.websocket_device import WebSocketDevice
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

PLAIN, TLS = 1, 2


@pytest.fixture(scope="module")
def gateway(authority: Authority) -> Iterator[GatewayUnderTest]:
    listeners = (ListenerSettings(port=0, transport=Transport.WEBSOCKET), authority.listener(transport=Transport.WEBSOCKET))
    settings = GatewaySettings(listeners=listeners, max_write_buffer_bytes=65_536, stalled_write_timeout_ms=1_000)
    with running_gateway(settings) as running:
        yield running


@pytest.mark.parametrize("listener", [PLAIN, TLS])
@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho_publishes_and_receives(gateway: GatewayUnderTest, authority: Authority, version: int, listener: int) -> None:
    client_id = f"paho-{version}-{listener}"
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, transport="websockets")
    if listener == TLS:
        client.tls_set(ca_certs=str(authority.file))
    publishes_and_receives(client, client_id, gateway, listener=listener)


MQTT_JS = """
const mqtt = require('mqtt')
const [url, clientId, protocolVersion] = process.argv.slice(1)
const protocolId = protocolVersion === '3' ? 'MQIsdp' : 'MQTT'
const client = mqtt.connect(url, { clientId, protocolId, protocolVersion: Number(protocolVersion), reconnectPeriod: 0 })
client.on('error', error => { console.error(error); process.exit(1) })
client.on('message', (topic, payload) => { console.log(JSON.stringify([topic, payload.toString()])); client.end() })
client.on('connect', () => client.publish('up/t', 'from js', { qos: 2 }))
"""


@pytest.mark.interop
@pytest.mark.parametrize(("listener", "scheme"), [(PLAIN, "ws"), (TLS, "wss")])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_mqtt_js_publishes_and_receives(
    gateway: GatewayUnderTest, authority: Authority, version: int, listener: int, scheme: str
) -> None:
    if shutil.which("node") is None or "INFLIGHT_NODE_MODULES" not in os.environ:
        pytest.skip("make test-interop installs MQTT.js")
    client_id = f"js-{version}-{scheme}"
    url = f"{scheme}://localhost:{gateway.addresses[listener][1]}/mqtt"
    environment = os.environ | {"NODE_PATH": os.environ["INFLIGHT_NODE_MODULES"], "NODE_EXTRA_CA_CERTS": str(authority.file)}
    command = ["node", "-e", MQTT_JS, "--", url, client_id, str(version)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        wait_until(lambda: gateway.kafka.of(client_id, PublishReceived), "it has published")
        gateway.kafka.command(client_id, SendPublish, packet_id=1, topic="down", payload=b"to js", qos=QoS(1))
        output, _ = child.communicate(timeout=DEADLINE_S)
    assert json.loads(output) == ["down", "to js"]


def browser_at(gateway: GatewayUnderTest, **changes: object) -> WebSocketDevice:
    return WebSocketDevice(socket.create_connection(gateway.addresses[PLAIN], timeout=DEADLINE_S), **changes)


def test_a_client_of_mqtt_3_1_connects_with_its_own_subprotocol(gateway: GatewayUnderTest) -> None:
    with browser_at(gateway, subprotocols=["mqttv3.1"]) as client:
        [accepted] = client.events()
        assert isinstance(accepted, AcceptConnection)
        assert accepted.subprotocol == "mqttv3.1"
        client.send(BytesMessage(data=connect(name="MQIsdp", level=3, payload=text("ws-3.1"))))
        [connected] = gateway.kafka.wait_for("ws-3.1", ClientConnected)
        assert connected.protocol_version == 3
        [connack] = client.events()
        assert isinstance(connack, BytesMessage)
        assert bytes(connack.data) == b"\x20\x02\x00\x00"


def test_a_web_page_of_another_site_does_not_get_in(gateway: GatewayUnderTest) -> None:
    with browser_at(gateway, extra_headers=[(b"Origin", b"https://evil.example.com")]) as page:
        assert "RejectConnection" in [type(event).__name__ for event in page.events()]


def test_a_device_that_does_not_read_is_sent_no_more_than_the_buffers_hold(gateway: GatewayUnderTest) -> None:
    with browser_at(gateway) as slow:
        slow.events()
        slow.send(BytesMessage(data=connect(keep_alive_s=0, payload=text("slow"))))
        gateway.kafka.wait_for("slow", ClientConnected)
        wait_until(lambda: gateway.counters.connections_open == 1, "it is connected")
        before = gateway.counters.qos0_dropped
        for _ in range(400):
            gateway.kafka.command("slow", SendPublish, packet_id=0, topic="t", payload=b"x" * 50_000, qos=QoS(0))
        wait_until(lambda: gateway.counters.qos0_dropped > before, "the buffers are full")
        wait_until(lambda: gateway.counters.connections_open == 0, "it is closed")


def test_a_device_that_never_sends_connect_is_closed() -> None:
    listener = ListenerSettings(port=0, transport=Transport.WEBSOCKET)
    with running_gateway(GatewaySettings(listeners=(listener,), connect_timeout_ms=2_000)) as gateway:
        with browser_at(gateway) as silent:
            kinds: list[str] = []
            while "CloseConnection" not in kinds:
                events = silent.events()
                assert events, "closed without a word"
                kinds += [type(event).__name__ for event in events]
            assert kinds == ["AcceptConnection", "CloseConnection"]
        with socket.create_connection(gateway.addresses[PLAIN], timeout=DEADLINE_S) as half_open:
            half_open.sendall(b"GET /mqtt HTTP/1.1\r\n")
            assert half_open.recv(100) == b""
