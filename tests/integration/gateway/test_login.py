"""Passwords and tokens at a gateway on real sockets: who gets in, as whom, and what the log says of the others."""

import time
from collections.abc import Iterator

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.settings import AccessRule, GatewaySettings, LoginSettings
from state.events import ClientConnected, PublishReceived
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, running_gateway
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


def test_a_new_key_of_the_issuer_logs_in_at_once() -> None:
    """A gateway that has just started has not read the first one either."""
    service = KeyService()
    with running_gateway(GatewaySettings(login=LoginSettings(token_jwks_url=service.url, max_failures=0))) as running:

        def answer(key_id: str, level: int = 5) -> int:
            signed = jwt.encode({"sub": "ada", "exp": time.time() + 60}, KEYS[key_id], algorithm="ES256", headers={"kid": key_id})
            with running.socket() as device:
                device.send(login_bytes("ada", "ada", signed, level=level))
                return device.packet()[3]

        assert answer("first") == 0
        assert answer("second") == BAD_LOGIN, "the issuer was asked, and has no such key"
        service.content = key_set("first", "second")
        assert answer("second") == 0
    service.server.shutdown()
    service.server.server_close()


def test_a_key_that_nobody_can_ask_for_is_no_wrong_login() -> None:
    """3 is "server unavailable" in MQTT 3.1.1."""
    service = KeyService()
    service.status = 500
    with running_gateway(GatewaySettings(login=LoginSettings(token_jwks_url=service.url, max_failures=0))) as running:
        for level, code in ((5, 0x88), (4, 3)):
            with running.socket() as device:
                device.send(login_bytes("ada", "ada", token("ada"), level=level))
                assert device.packet()[3] == code
    service.server.shutdown()
    service.server.server_close()
