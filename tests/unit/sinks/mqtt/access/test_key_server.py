import asyncio
import json
import threading
import time
from collections import defaultdict
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
from sinks.mqtt.access.token_keys import KeyServerError, check_key_server, fetch_token_keys
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings, LoginSettings
from state.model import ReasonCode
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


class Clock:
    """Milliseconds of a monotonic clock, by hand."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def test_an_unknown_key_waits_until_the_server_was_asked_again(service: KeyService) -> None:
    async def test() -> None:
        clock, answers = Clock(), list[bool]()
        server = KeyServer(LoginSettings(token_jwks_url=service.url), clock)
        await until(lambda: [key.key_id for key in server.keys] == ["first"])
        service.content = key_set("first", "second")
        assert server.await_newer(answers.append)
        server.poll()
        assert (service.requests, answers) == (1, []), "it was asked just now"
        clock.now_ms = 2_000
        server.poll()
        await until(lambda: answers == [True])
        assert [key.key_id for key in server.keys] == ["first", "second"]
        assert service.requests == 2
        service.content = key_set("second")
        clock.now_ms += 300_000
        server.poll()
        await until(lambda: [key.key_id for key in server.keys] == ["second"])

    asyncio.run(test())


def test_a_request_that_was_under_way_is_not_the_one_to_wait_for(service: KeyService) -> None:
    """Its answer may be older than the key."""

    async def test() -> None:
        clock, answers = Clock(), list[bool]()
        server = KeyServer(LoginSettings(token_jwks_url=service.url), clock)
        assert server.await_newer(answers.append)
        await until(lambda: server.keys)
        assert answers == []
        clock.now_ms = 2_000
        server.poll()
        await until(lambda: answers == [True])

    asyncio.run(test())


def test_nobody_waits_for_a_server_that_does_not_answer(service: KeyService) -> None:
    async def test() -> None:
        clock, answers = Clock(), list[bool]()
        server = KeyServer(LoginSettings(token_jwks_url=service.url), clock)
        await until(lambda: server.keys)
        service.status, clock.now_ms = 500, 2_000
        assert server.await_newer(answers.append)
        await until(lambda: answers == [False])
        assert not server.await_newer(answers.append), "it is asked again in ten seconds"
        clock.now_ms += 6_000
        assert server.await_newer(answers.append)
        clock.now_ms += 5_001
        server.poll()
        assert answers == [False, False]

    asyncio.run(test())


def test_so_many_logins_wait_for_keys_and_no_more(service: KeyService) -> None:
    async def test() -> None:
        answers = list[bool]()
        server = KeyServer(LoginSettings(token_jwks_url=service.url), Clock())
        assert all(server.await_newer(answers.append) for _ in range(1_000))
        assert not server.await_newer(answers.append)
        server.close()
        assert answers == [False] * 1_000

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


class Logins:
    """An authenticator, and the results of logins with a token."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.authenticator = Authenticator(settings, GatewayCounters())
        self.results: defaultdict[str, list[object]] = defaultdict(list)

    def __call__(self, key_id: str) -> object:
        """Returns None while the login waits; then the result is in `results` of the key."""
        token = jwt.encode({"sub": "ada", "exp": time.time() + 60}, KEYS[key_id], algorithm="ES256", headers={"kid": key_id})
        asked = Connect(protocol_version=5, client_id="ada", clean_start=True, username=None, password=token.encode())
        peer = Peer("192.0.2.1", ListenerAuthPolicy())
        return self.authenticator.authenticate(asked, "ada", peer, self.results[key_id].append, 0)


def test_a_device_logs_in_with_a_key_of_the_server(service: KeyService) -> None:
    async def test() -> None:
        settings = GatewaySettings(login=LoginSettings(token_jwks_url=service.url))
        login = Logins(settings)
        assert login("first") is None, "the server has not answered yet"
        await until(lambda: isinstance(login("first"), Grant))
        login.authenticator.reconfigure(settings)
        assert isinstance(login("first"), Grant), "an unchanged server keeps its keys"
        login.authenticator.reconfigure(GatewaySettings())
        assert isinstance(login("first"), LoginRefused)
        login.authenticator.close()

    asyncio.run(test())


@pytest.mark.parametrize(("key_ids", "expected"), [(("first", "second"), Grant), (("first",), LoginRefused)])
def test_a_token_with_a_new_key_is_judged_by_the_newest_keys(
    service: KeyService, key_ids: tuple[str, ...], expected: type
) -> None:
    async def test() -> None:
        login = Logins(GatewaySettings(login=LoginSettings(token_jwks_url=service.url)))
        await until(lambda: isinstance(login("first"), Grant))
        service.content = key_set(*key_ids)
        assert login("second") is None
        await until(lambda: login.authenticator.poll() or login.results["second"])
        [result] = login.results["second"]
        assert isinstance(result, expected)
        if isinstance(result, LoginRefused):
            assert result.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        login.authenticator.close()

    asyncio.run(test())


def test_a_token_whose_key_nobody_can_ask_for_is_refused_for_now(service: KeyService) -> None:
    """The device comes again; 0x86 would say that the token is wrong."""

    async def test() -> None:
        service.status = 500
        login = Logins(GatewaySettings(login=LoginSettings(token_jwks_url=service.url)))
        assert login("first") is None
        await until(lambda: login.results["first"])
        for result in (*login.results["first"], login("first")):
            assert isinstance(result, LoginRefused)
            assert result.reason_code == ReasonCode.SERVER_UNAVAILABLE
        login.authenticator.close()

    asyncio.run(test())


def test_a_token_whose_key_may_be_in_a_new_file_is_refused_for_now(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "keys.json"
        file.write_bytes(key_set("first"))
        login = Logins(GatewaySettings(login=LoginSettings(token_keyfile=str(file))))
        refused = login("second")
        assert isinstance(refused, LoginRefused)
        assert refused.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        file.write_bytes(key_set("first", "second"))
        refused = login("second")
        assert isinstance(refused, LoginRefused)
        assert refused.reason_code == ReasonCode.SERVER_UNAVAILABLE
        login.authenticator.poll()
        login.authenticator.poll()
        assert isinstance(login("second"), Grant)
        login.authenticator.close()

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
