"""Passwords and tokens at a gateway on real sockets: who gets in, as whom, and what the log says of the others."""

import time
from collections.abc import Iterator

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sinks.mqtt.access import key_server
from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.access.settings import AccessRule, LoginSettings
from sinks.mqtt.settings import GatewaySettings
from state.events import ClientConnected, PublishReceived
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.access.test_key_server import KEYS, KeyService, key_set
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

SERVER_BUSY = 0x89
KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


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


@pytest.mark.parametrize("password", ["right", "token"])
def test_the_log_says_as_whom_a_device_has_logged_in(gateway: GatewayUnderTest, password: str) -> None:
    client_id = f"ada/{password}"
    with gateway.socket() as device:
        device.send(login_bytes(client_id, "ada", token("ada") if password == "token" else password))
        assert device.packet()[3] == 0
        for packet_id, first_byte in ((1, 0x32), (2, 0x34)):
            device.send(publish("devices/ada/up", b"p", first_byte=first_byte, packet_id=packet_id, v5=b""))
        device.expect("40020001 50020002")
    [record] = gateway.kafka.uplink(client_id)
    assert record.header("username") == b"ada"
    assert gateway.kafka.of(client_id, PublishReceived)[0].username == "ada"


BAD_CLIENT_ID, BAD_LOGIN, NOT_AUTHORIZED = 0x85, 0x86, 0x87


@pytest.mark.parametrize(
    ("client_id", "username", "password", "answer"),
    [
        ("eve", "eve", "right", BAD_LOGIN),
        ("bob", "bob", "token", BAD_LOGIN),
        ("bob", "ada", "right", BAD_CLIENT_ID),
        ("ada/2", "ada", "token for ada/1", NOT_AUTHORIZED),
    ],
)
def test_a_login_that_is_not_the_clients_is_refused(
    gateway: GatewayUnderTest, client_id: str, username: str, password: str, answer: int
) -> None:
    """Wrong passwords and forged and expired tokens are in test_refused_clients.py."""
    tokens = {"token": token("ada"), "token for ada/1": token("ada", client_id="ada/1")}
    with gateway.socket() as device:
        device.send(login_bytes(client_id, username, tokens.get(password, password)))
        assert device.packet()[3] == answer
    assert gateway.kafka.of(client_id, ClientConnected) == []


def login_bytes(client_id: str, username: str, password: str, *, level: int = 5) -> bytes:
    return connect(level=level, flags=0xC2, keep_alive_s=0, payload=text(client_id) + text(username) + text(password))


def test_a_new_key_of_the_issuer_logs_in_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_server, "_RETRY_MS", 0)
    service = KeyService()
    with running_gateway(GatewaySettings(login=LoginSettings(token_jwks_url=service.url, max_failures=0))) as running:

        def answer(key_id: str) -> int:
            signed = jwt.encode({"sub": "ada", "exp": time.time() + 60}, KEYS[key_id], algorithm="ES256", headers={"kid": key_id})
            with running.socket() as device:
                device.send(login_bytes("ada", "ada", signed))
                return device.packet()[3]

        wait_until(lambda: answer("first") == 0, "the keys are read")
        assert answer("second") == BAD_LOGIN
        service.content = key_set("first", "second")
        wait_until(lambda: answer("second") == 0, "the keys are read again")
        assert answer("first") == 0
    service.server.shutdown()
    service.server.server_close()
