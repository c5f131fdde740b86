import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from sinks.mqtt.access.authenticator import Authenticator, ListenerAuthPolicy, Peer
from sinks.mqtt.access.grant import Grant, LoginRefused
from sinks.mqtt.access.key_server import KeyServer
from sinks.mqtt.access.settings import LoginSettings
from sinks.mqtt.access.token_keys import KeyServerError, check_key_server, fetch_token_keys
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from tests.support.waiting import DEADLINE_S

FIRST, SECOND = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
KEYS = {"first": FIRST, "second": SECOND}


def key_set(*key_ids: str) -> bytes:
    return json.dumps(
        {"keys": [{**jwt.algorithms.ECAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True), "kid": name} for name in key_ids]}
    ).encode()


class KeyService:
    """A server on loopback that answers with what is in `status`, `content` and `location`."""

    def __init__(self) -> None:
        self.status, self.content, self.location, self.requests = 200, key_set("first"), "", 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.requests += 1
                self.send_response(service.status)
                if service.location:
                    self.send_header("Location", service.location)
                self.end_headers()
                self.wfile.write(service.content)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def service() -> Iterator[KeyService]:
    running = KeyService()
    yield running
    running.server.shutdown()
    running.server.server_close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is in another thread
            await asyncio.sleep(0.01)


def test_the_keys_of_a_server_are_read_again_when_one_is_unknown(service: KeyService) -> None:
    async def test() -> None:
        now_ms = 0
        server = KeyServer(LoginSettings(token_jwks_url=service.url), lambda: now_ms)
        await until(lambda: [key.key_id for key in server.keys] == ["first"])
        service.content = key_set("first", "second")
        server.report_unknown()
        assert service.requests == 1, "it was asked just now"
        now_ms = 10_000
        server.report_unknown()
        await until(lambda: [key.key_id for key in server.keys] == ["first", "second"])
        assert service.requests == 2
        service.content = key_set("second")
        now_ms += 300_000
        server.poll()
        await until(lambda: [key.key_id for key in server.keys] == ["second"])

    asyncio.run(test())


def test_a_server_that_does_not_answer_leaves_the_keys_in_force(service: KeyService) -> None:
    async def test() -> None:
        now_ms = 0
        server = KeyServer(LoginSettings(token_jwks_url=service.url), lambda: now_ms)
        await until(lambda: server.keys)
        service.status = 500
        with capture_logs() as lines:
            now_ms = 300_000
            server.poll()
            await until(lambda: lines)
        assert [(line["event"], line["action"]) for line in lines] == [("token_keys_not_read", "the keys before stay in force")]
        assert server.keys
        service.status, service.content = 200, key_set("second")
        now_ms += 10_000
        server.poll()
        await until(lambda: [key.key_id for key in server.keys] == ["second"])

    asyncio.run(test())


def test_a_device_logs_in_with_a_key_of_the_server(service: KeyService) -> None:
    async def test() -> None:
        settings = GatewaySettings(login=LoginSettings(token_jwks_url=service.url))
        authenticator = Authenticator(settings, GatewayCounters())
        peer = Peer("192.0.2.1", ListenerAuthPolicy())

        def login(key_id: str) -> object:
            token = jwt.encode({"sub": "ada", "exp": time.time() + 60}, KEYS[key_id], algorithm="ES256", headers={"kid": key_id})
            asked = Connect(protocol_version=5, client_id="ada", clean_start=True, username=None, password=token.encode())
            return authenticator.authenticate(asked, "ada", peer, lambda result: None, 0)

        await until(lambda: isinstance(login("first"), Grant))
        assert isinstance(login("second"), LoginRefused)
        authenticator.reconfigure(settings)
        assert isinstance(login("first"), Grant), "an unchanged server keeps its keys"
        authenticator.reconfigure(GatewaySettings())
        assert isinstance(login("first"), LoginRefused)
        authenticator.close()

    asyncio.run(test())


def test_what_is_no_set_of_keys_is_an_error(service: KeyService, tmp_path: Path) -> None:
    for status, content, location in (
        (404, b"", ""),
        (302, b"", "https://example.com/keys"),
        (200, b"{}", ""),
        (200, b"\xff", ""),
        (200, b" " * (1 << 20) + b"{}", ""),
    ):
        service.status, service.content, service.location = status, content, location
        with pytest.raises(KeyServerError):
            fetch_token_keys(service.url, "")
    with pytest.raises(KeyServerError):
        fetch_token_keys(service.url, str(tmp_path / "missing"))


@pytest.mark.parametrize("url", ["http://example.com/keys", "file:///etc/passwd", "https://", "keys", "ftp://127.0.0.1/keys"])
def test_keys_come_encrypted_or_from_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match="https://"):
        check_key_server(url)
    for fine in ("", "https://login.example.com/keys", "http://127.0.0.1:8080/keys", "http://[::1]/keys"):
        check_key_server(fine)
