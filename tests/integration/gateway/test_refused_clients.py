"""Clients that nobody here wrote are refused, or may not do everything, over TLS and WebSocket with TLS.

libmosquitto has no WebSocket, so mosquitto_sub and mosquitto_pub are not here with it.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import jwt
import paho.mqtt.client as paho
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from paho.mqtt.enums import CallbackAPIVersion

from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.settings import AccessRule, GatewaySettings, LoginSettings, Transport
from state.events import ClientConnected, Subscribed
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, running_gateway
from tests.support.waiting import DEADLINE_S, wait_until

KEY: Final = ec.generate_private_key(ec.SECP256R1())
STRANGER: Final = ec.generate_private_key(ec.SECP256R1())
LISTENERS: Final = {"tls": 1, "wss": 2}
MINE, OTHERS = "devices/ada/x", "devices/bob/x"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A client that connects, subscribes to `filter` and publishes to `topic` at QoS 1."""

    clientId: str  # noqa: N815 - as MQTT.js calls it
    username: str = "ada"
    password: str
    filter: str = MINE
    topic: str = MINE


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Reason codes of CONNACK, SUBACK and PUBACK. None: the connection was closed, or it did not come to that."""

    connack: int
    suback: int | None = None
    puback: int | None = None


def token(key: ec.EllipticCurvePrivateKey, lasts_s: float) -> str:
    return jwt.encode({"sub": "ada", "exp": time.time() + lasts_s}, key, algorithm="ES256")


def cases(client: str, version: int) -> dict[str, tuple[Case, Answers]]:
    """Returns the cases by what each one tries. Every case has a client id of its own."""

    def own(name: str) -> str:
        return f"ada/{client}-{version}-{name}"

    is_v5 = version == paho.MQTTv5
    login, rule = (0x86, 0x85) if is_v5 else (4, 2)
    everything = Answers(connack=0, suback=1, puback=0)
    return {
        "password": (Case(clientId=own("password"), password="right"), everything),
        "token": (Case(clientId=own("token"), password=token(KEY, 60)), everything),
        "wrong password": (Case(clientId=own("wrong"), password="wrong"), Answers(connack=login)),
        "expired token": (Case(clientId=own("expired"), password=token(KEY, -60)), Answers(connack=login)),
        "forged token": (Case(clientId=own("forged"), password=token(STRANGER, 60)), Answers(connack=login)),
        "stolen client id": (Case(clientId=f"bob/{client}-{version}", password="right"), Answers(connack=rule)),
        "forbidden filter": (
            Case(clientId=own("filter"), password="right", filter=OTHERS),
            Answers(connack=0, suback=0x87 if is_v5 else 0x80, puback=0),
        ),
        "forbidden topic": (
            Case(clientId=own("topic"), password="right", topic=OTHERS),
            Answers(connack=0, suback=1, puback=0x87 if is_v5 else None),
        ),
    }


@pytest.fixture(scope="module")
def gateway(authority: Authority) -> Iterator[GatewayUnderTest]:
    users, key = authority.directory / "two-users", authority.directory / "key.pem"
    write_password_file(users, {"ada": HASHER.hash("right"), "bob": HASHER.hash("right")})
    key.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    settings = GatewaySettings(
        login=LoginSettings(password_file=str(users), token_keyfile=str(key), max_failures=0),
        rules=(AccessRule(publish=("devices/{username}/#",), subscribe=("devices/{username}/#",)),),
        listeners=(authority.listener(anonymous=False), authority.listener(anonymous=False, transport=Transport.WEBSOCKET)),
    )
    with running_gateway(settings) as running:
        yield running


def check_log(gateway: GatewayUnderTest, case: Case, answers: Answers) -> None:
    """Checks that the log has what was accepted and nothing of what was refused."""
    of = gateway.kafka.of
    assert len(of(case.clientId, ClientConnected)) == (answers.connack == 0)
    assert len(of(case.clientId, Subscribed)) == (answers.suback is not None and answers.suback < 0x80)
    assert len(gateway.kafka.uplink(case.clientId)) == (answers.puback == 0)


def paho_tries(gateway: GatewayUnderTest, authority: Authority, case: Case, version: int, listener: str) -> Answers:
    transport = "websockets" if listener == "wss" else "tcp"
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=case.clientId, protocol=version, transport=transport, reconnect_on_failure=False
    )
    client.tls_set(ca_certs=str(authority.file))
    client.username_pw_set(case.username, case.password)
    said: dict[str, Any] = {}
    client.on_connect = lambda _client, _data, _flags, reason, _properties: said.update(connack=reason.value)
    client.on_subscribe = lambda _client, _data, _mid, reasons, _properties: said.update(suback=reasons[0].value)
    client.on_publish = lambda _client, _data, _mid, reason, _properties: said.update(puback=reason.value)
    client.on_disconnect = lambda *_: said.update(closed=True)
    client.connect("localhost", gateway.addresses[LISTENERS[listener]][1])
    client.loop_start()
    try:
        wait_until(lambda: "connack" in said, "CONNACK")
        if not said["connack"]:
            client.subscribe(case.filter, 1)
            wait_until(lambda: "suback" in said, "SUBACK")
            client.publish(case.topic, b"p", 1)
            wait_until(lambda: "puback" in said or "closed" in said, "an answer")
    finally:
        client.disconnect()
        client.loop_stop()
    return Answers(connack=said["connack"], suback=said.get("suback"), puback=said.get("puback"))


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("name", cases("", 0))
def test_paho(gateway: GatewayUnderTest, authority: Authority, version: int, listener: str, name: str) -> None:
    case, answers = cases(f"paho-{listener}", version)[name]
    said = paho_tries(gateway, authority, case, version, listener)
    if version == paho.MQTTv311:  # paho gives its codes the names that they have in 5
        answers = replace(answers, connack={4: 0x86, 2: 0x85}.get(answers.connack, answers.connack))
    assert said == answers
    check_log(gateway, case, answers)


@pytest.mark.interop
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_mqtt_js(gateway: GatewayUnderTest, authority: Authority, version: int, listener: str) -> None:
    if shutil.which("node") is None or "INFLIGHT_NODE_MODULES" not in os.environ:
        pytest.skip("make test-interop installs MQTT.js")
    tried = cases(f"js-{listener}", version)
    port = gateway.addresses[LISTENERS[listener]][1]
    url = f"wss://localhost:{port}/mqtt" if listener == "wss" else f"mqtts://localhost:{port}"
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("refusals.mjs")), url, str(version)],
        env=os.environ | {"NODE_EXTRA_CA_CERTS": str(authority.file)},
        input=json.dumps([asdict(case) for case, _ in tried.values()]),
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * DEADLINE_S,
        check=True,
    )
    said = [Answers(**json.loads(line)) for line in done.stdout.splitlines()]
    assert dict(zip(tried, said, strict=True)) == {name: answers for name, (_, answers) in tried.items()}
    for case, answers in tried.values():
        check_log(gateway, case, answers)


@pytest.mark.interop
@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("name", cases("", 0))
def test_mosquitto_sub_and_mosquitto_pub(gateway: GatewayUnderTest, authority: Authority, version: int, name: str) -> None:
    case, answers = cases("mosquitto", version)[name]

    def run(*tool: str) -> tuple[int, str]:
        port = str(gateway.addresses[LISTENERS["tls"]][1])
        whose = ["-i", case.clientId, "-u", case.username, "-P", case.password]
        called = [*tool, "-h", "localhost", "-p", port, "--cafile", str(authority.file), *whose, "-q", "1"]
        done = subprocess.run(
            [*called, "-V", "mqttv5" if version == paho.MQTTv5 else "mqttv311"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout

    status, said = run("mosquitto_sub", "-t", case.filter, "-E")
    assert status == answers.connack
    assert ("All subscription requests were denied." in said) == (answers.suback in (0x80, 0x87))
    status, said = run("mosquitto_pub", "-t", case.topic, "-m", "p")
    if answers.connack:
        assert status == answers.connack
    elif answers.puback == 0:
        assert (status, said) == (0, "")
    else:
        assert ("Not authorized" if answers.puback else "The connection was lost") in said
    of = gateway.kafka.of
    assert len(of(case.clientId, ClientConnected)) == (0 if answers.connack else 2)
    assert len(of(case.clientId, Subscribed)) == (answers.suback == 1)
    assert len(gateway.kafka.uplink(case.clientId)) == (answers.puback == 0)
