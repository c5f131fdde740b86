"""Passwords and tokens at a gateway on real sockets: who gets in, as whom, and what the log says of the others."""

import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import paho.mqtt.client as paho
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from sinks.mqtt.access.settings import AccessRule, LoginSettings
from sinks.mqtt.access.users.password_file import HASHER, write_password_file
from sinks.mqtt.settings import GatewaySettings
from state.events import ClientConnected, PublishReceived
from tests.integration.gateway.gateway_fakes import DEADLINE_S, GatewayUnderTest, running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
VERSIONS = [paho.MQTTv311, paho.MQTTv5]


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> LoginSettings:
    directory = tmp_path_factory.mktemp("login")
    users, key = directory / "users", directory / "key.pem"
    write_password_file(users, {"ada": HASHER.hash("right"), "bob": HASHER.hash("right")})
    key.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return LoginSettings(password_file=str(users), token_keyfile=str(key), max_failures=0)


@pytest.fixture(scope="module")
def gateway(login: LoginSettings) -> Iterator[GatewayUnderTest]:
    rules = (AccessRule(publish=("devices/{username}/#",), subscribe=("devices/{username}/#",)),)
    with running_gateway(GatewaySettings(login=login, rules=rules)) as running:
        yield running


def token(username: str, *, lasts_s: float = 60, **claims: object) -> str:
    return jwt.encode({"sub": username, "exp": time.time() + lasts_s, **claims}, KEY, algorithm="RS256")


class Attempt:
    """paho logs in once; `answer` is CONNACK's."""

    def __init__(self, gateway: GatewayUnderTest, version: int, client_id: str, username: str, password: str) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, reconnect_on_failure=False)
        self.client.username_pw_set(username, password)
        answers: list[ReasonCode] = []
        self.client.on_connect = lambda _client, _data, _flags, reason, _properties: answers.append(reason)
        self.client.connect(gateway.host, gateway.port)
        self.client.loop_start()
        wait_until(lambda: bool(answers), "CONNACK")
        self.answer = answers[0]

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("password", ["right", "token"])
def test_paho_logs_in_and_the_log_says_as_whom(gateway: GatewayUnderTest, version: int, password: str) -> None:
    client_id = f"ada/{version}-{password}"
    with Attempt(gateway, version, client_id, "ada", token("ada") if password == "token" else password) as device:
        assert not device.answer.is_failure
        for qos in (1, 2):
            device.client.publish("devices/ada/up", b"p", qos=qos).wait_for_publish(DEADLINE_S)
    [record] = [record for record in gateway.kafka.uplink() if record.key == client_id.encode()]
    assert record.header("username") == b"ada"
    assert gateway.kafka.of(client_id, PublishReceived)[0].username == "ada"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("client_id", "username", "password", "answer"),
    [
        ("ada", "ada", "wrong", "Bad user name or password"),
        ("eve", "eve", "right", "Bad user name or password"),
        ("bob", "ada", "right", "Not authorized"),
        ("ada", "ada", "expired token", "Bad user name or password"),
        ("ada", "ada", "forged token", "Bad user name or password"),
        ("ada", "bob", "token", "Bad user name or password"),
        ("ada/2", "ada", "token for ada/1", "Not authorized"),
    ],
)
def test_paho_does_not_get_in(
    gateway: GatewayUnderTest, version: int, client_id: str, username: str, password: str, answer: str
) -> None:
    before = len(gateway.kafka.of(client_id, ClientConnected))
    tokens = {
        "expired token": token("ada", lasts_s=-60),
        "forged token": token("ada")[:-6] + "AAAAAA",
        "token": token("ada"),
        "token for ada/1": token("ada", client_id="ada/1"),
    }
    with Attempt(gateway, version, client_id, username, tokens.get(password, password)) as device:
        assert device.answer == answer
    assert len(gateway.kafka.of(client_id, ClientConnected)) == before


def test_without_a_login_nobody_gets_in_where_there_is_one(gateway: GatewayUnderTest) -> None:
    with gateway.socket() as device:
        device.send(connect(level=5))
        device.expect("2003008600")


def login_bytes(client_id: str, username: str, password: str, *, level: int = 5) -> bytes:
    return connect(level=level, flags=0xC2, keep_alive_s=0, payload=text(client_id) + text(username) + text(password))


def test_a_clean_start_is_answered_when_its_password_was_right_and_its_connect_is_in_the_log(login: LoginSettings) -> None:
    with running_gateway(GatewaySettings(login=login)) as gateway:
        gateway.kafka.accepting.fields = None
        gateway.kafka.holding = lambda record: record.topic.endswith("events")
        with gateway.socket() as device, gateway.socket() as guesser:
            guesser.send(login_bytes("ada", "ada", "wrong"))
            assert guesser.rest() == bytes.fromhex("2003008600")
            assert gateway.kafka.events == []
            device.send(login_bytes("ada", "ada", "right"))
            gateway.kafka.wait_for("ada", ClientConnected)
            assert device.is_silent()
            gateway.kafka.release()
            assert device.packet()[3] == 0
            assert [type(event) for _, event in gateway.kafka.events] == [ClientConnected]


def test_a_forbidden_topic_is_refused_and_a_forbidden_filter_too(gateway: GatewayUnderTest) -> None:
    with gateway.socket() as device:
        device.send(login_bytes("ada", "ada", "right"))
        assert device.packet()[3] == 0
        device.send(publish("devices/bob/up", b"p", first_byte=0x32, packet_id=1, v5=b""))
        device.expect("4003000187")
        device.send(bytes.fromhex("82070002000001") + b"#" + b"\x01")
        assert device.packet().endswith(b"\x87")
    with gateway.socket() as old:
        old.send(login_bytes("ada", "ada", "right", level=4))
        old.expect("20020000")
        old.send(publish("devices/bob/up", b"p", first_byte=0x32, packet_id=1))
        old.expect_closed()


def test_a_connection_ends_with_its_token(gateway: GatewayUnderTest) -> None:
    with gateway.socket() as device:
        device.send(login_bytes("ada/t", "ada", token("ada", lasts_s=-9)))  # clocks may differ by ten seconds
        assert device.packet()[3] == 0
        assert device.packet() == bytes.fromhex("e00187")


def test_removed_users_and_new_passwords_count_at_once(tmp_path: Path) -> None:
    users = tmp_path / "users"
    write_password_file(users, {"ada": HASHER.hash("old")})
    with running_gateway(GatewaySettings(login=LoginSettings(password_file=str(users), max_failures=0))) as gateway:

        def connack(password: str) -> int:
            with gateway.socket() as device:
                device.send(login_bytes("ada", "ada", password))
                return device.packet()[3]

        assert connack("old") == 0
        write_password_file(users, {"ada": HASHER.hash("new")})
        wait_until(lambda: connack("new") == 0, "the new password")
        assert connack("old") == 0x86
        write_password_file(users, {})
        gateway.reload()
        wait_until(lambda: connack("new") == 0x86, "the user is gone")


@pytest.mark.parametrize("count", [100, pytest.param(200, marks=pytest.mark.servers)])
def test_connected_devices_are_answered_while_many_log_in(gateway: GatewayUnderTest, count: int) -> None:
    """A hundred wrong passwords take the threads seconds."""
    with gateway.socket() as device:
        device.send(login_bytes("ada/here", "ada", "right"))
        assert device.packet()[3] == 0
        refused = gateway.counters.connections_refused
        before = refused.total()
        guessers = [gateway.socket() for _ in range(count)]
        for number, guesser in enumerate(guessers):
            guesser.send(login_bytes("ada", "ada", f"guess {number}"))
        for _ in range(20):
            device.send("c000")
            device.expect("d000")
        assert refused.total() - before < len(guessers)
        for guesser in guessers:
            assert guesser.packet()[3] in (0x86, 0x89)
            guesser.socket.close()


def test_a_guesser_is_slowed_down_and_known_devices_behind_the_same_address_are_not(login: LoginSettings) -> None:
    slow = LoginSettings(password_file=login.password_file, max_failures=3, failure_wait_ms=60_000)
    with running_gateway(GatewaySettings(login=slow)) as gateway:
        answers = []
        for password in ("right", "a", "b", "c", "d", "right"):
            with gateway.socket() as device:
                device.send(login_bytes("ada", "ada", password))
                answers.append(device.packet()[3])
        assert answers == [0, 0x86, 0x86, 0x86, 0x89, 0]
        assert gateway.counters.logins_refused == {"wrong user name or password": 3, "too many failures": 1}
