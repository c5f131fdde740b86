import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import capture_logs

from sinks.mqtt.access.authenticator import Authenticator, AuthResult, ListenerAuthPolicy, Peer, auth_policy_of
from sinks.mqtt.access.certificates import CertificateUser
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefusal, LoginRefused
from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import AccessRule, ClientCertificate, GatewaySettings, ListenerSettings, LoginSettings
from state.model import Will

OPEN, CLOSED = Peer("192.0.2.1", ListenerAuthPolicy(is_anonymous_allowed=True)), Peer("192.0.2.1", ListenerAuthPolicy())
LOOPBACK = ListenerSettings()
KEY = ec.generate_private_key(ec.SECP256R1())
RIGHT = HASHER.hash("right")


def connect(client_id: str = "ada", username: str | None = None, password: bytes | None = None, **fields: Will) -> Connect:
    return Connect(
        protocol_version=5, client_id=client_id, clean_start=True, username=username, password=password, will=fields.get("will")
    )


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    write_password_file(path, {"ada": RIGHT})
    return path


class Testbed:
    """An authenticator, and the result of each CONNECT."""

    __test__ = False

    def __init__(self, rules: tuple[AccessRule, ...] = (), **login: object) -> None:
        self.counters = GatewayCounters()
        settings = GatewaySettings(login=LoginSettings(**login), rules=rules)  # type: ignore[arg-type]
        self.authenticator = Authenticator(settings, self.counters)

    def at_once(self, asked: Connect, peer: Peer = CLOSED, now_ms: int = 0) -> AuthResult | None:
        return self.authenticator.authenticate(asked, asked.client_id or "assigned", peer, lambda result: None, now_ms)

    async def authenticate(self, asked: Connect, peer: Peer = CLOSED) -> AuthResult:
        later: asyncio.Future[AuthResult] = asyncio.get_running_loop().create_future()
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        result = self.authenticator.authenticate(asked, asked.client_id or "assigned", peer, later.set_result, now_ms)
        return await later if result is None else result

    async def refused(self, asked: Connect, peer: Peer = CLOSED) -> LoginRefusal:
        result = await self.authenticate(asked, peer)
        assert isinstance(result, LoginRefused), result
        return result.refusal


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def broken(path: Path) -> None:
    write(path, "broken")


def in_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def test_loopback_allows_everything_while_nothing_is_configured() -> None:
    assert auth_policy_of(LOOPBACK, GatewaySettings()) == ListenerAuthPolicy(is_anonymous_allowed=True, allows_everything=True)
    assert auth_policy_of(ListenerSettings(host="0.0.0.0"), GatewaySettings()) == ListenerAuthPolicy()


def test_rules_logins_and_certificates_need_a_check() -> None:
    assert auth_policy_of(LOOPBACK, GatewaySettings(rules=(AccessRule(),))) == ListenerAuthPolicy(is_anonymous_allowed=True)
    login = GatewaySettings(login=LoginSettings(password_file="users"))
    assert auth_policy_of(LOOPBACK, login) == ListenerAuthPolicy()
    assert auth_policy_of(dataclasses.replace(LOOPBACK, anonymous=True), login) == ListenerAuthPolicy(is_anonymous_allowed=True)
    asking = ListenerSettings(client_certificate=ClientCertificate.OPTIONAL, certificate_user=CertificateUser.SAN)
    expected = ListenerAuthPolicy(is_anonymous_allowed=True, certificate_user=CertificateUser.SAN)
    assert auth_policy_of(asking, GatewaySettings()) == expected


def test_a_refusal_is_counted_and_logged_without_the_password() -> None:
    async def test() -> None:
        testbed = Testbed(max_failures=0)
        with capture_logs() as lines:
            testbed.at_once(connect("c" * 500, "ada", b"secret"))
        assert lines == [
            {
                "event": "login_refused",
                "log_level": "warning",
                "reason": "no login",
                "detail": "",
                "address": "192.0.2.1",
                "client_id": "c" * 200,
                "username": "ada",
            }
        ]
        assert testbed.counters.logins_refused == {"no login": 1}

    in_a_loop(test)


def test_a_password_that_may_be_in_a_new_file_is_refused_for_now(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users))
        assert await testbed.refused(connect("eve", "eve", b"right")) is LoginRefusal.PASSWORD
        write_password_file(users, {"ada": RIGHT, "eve": RIGHT})
        assert await testbed.refused(connect("eve", "eve", b"right")) is LoginRefusal.NOT_READ
        testbed.authenticator.poll()
        testbed.authenticator.poll()
        assert isinstance(await testbed.authenticate(connect("eve", "eve", b"right")), Grant)

    in_a_loop(test)


def test_a_password_is_hashed_once_in_a_thread(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users))
        right = connect("ada/1", "ada", b"right")
        assert testbed.at_once(right) is None
        granted = await testbed.authenticate(right)
        assert isinstance(granted, Grant)
        assert granted.username == "ada"
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        assert testbed.at_once(right, now_ms=now_ms) == granted

    in_a_loop(test)


def test_wrong_passwords_unknown_users_and_halves_of_a_login_are_refused(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users), max_failures=0)
        for peer in (OPEN, CLOSED):
            assert await testbed.refused(connect("ada", "ada", b"wrong"), peer) is LoginRefusal.PASSWORD
            assert await testbed.refused(connect("eve", "eve", b"right"), peer) is LoginRefusal.PASSWORD
            assert await testbed.refused(connect("ada", "ada"), peer) is LoginRefusal.PASSWORD
            assert await testbed.refused(connect("ada", None, b"right"), peer) is LoginRefusal.PASSWORD
        assert await testbed.refused(connect("ada"), CLOSED) is LoginRefusal.NO_LOGIN
        assert testbed.at_once(connect("ada"), OPEN) is EVERYTHING

    in_a_loop(test)


def test_a_stolen_client_id_and_a_forbidden_will_are_refused(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed((AccessRule(publish=("up/{username}",)),), password_file=str(users))
        assert await testbed.refused(connect("eve", "ada", b"right")) is LoginRefusal.CLIENT_ID
        bad, good = Will(topic="up/eve", payload=b""), Will(topic="up/ada", payload=b"")
        assert await testbed.refused(connect("ada", "ada", b"right", will=bad)) is LoginRefusal.WILL
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right", will=good)), Grant)
        assert isinstance(await testbed.authenticate(connect("", "ada", b"right")), Grant)

    in_a_loop(test)


def test_a_blocked_address_lets_its_known_devices_in(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users), max_failures=2)
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)
        for _ in range(2):
            assert await testbed.refused(connect("ada", "ada", b"wrong")) is LoginRefusal.PASSWORD
        assert await testbed.refused(connect("ada", "ada", b"other")) is LoginRefusal.BLOCKED
        assert (
            await testbed.refused(connect("ada", "ada", b"other"), CLOSED._replace(address="192.0.2.2")) is LoginRefusal.PASSWORD
        )
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)

    in_a_loop(test)


def test_guesses_sent_at_once_are_limited_like_others(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users), max_failures=3, failure_wait_ms=60_000)
        guesses = [testbed.refused(connect("ada", "ada", b"%d" % n)) for n in range(30)]
        answers = await asyncio.gather(*guesses)
        assert 3 <= answers.count(LoginRefusal.PASSWORD) <= 10
        assert answers.count(LoginRefusal.PASSWORD) + answers.count(LoginRefusal.BLOCKED) == 30

    in_a_loop(test)


def test_the_number_of_waiting_passwords_is_limited(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users), max_waiting=2)
        waiting = [asyncio.ensure_future(testbed.authenticate(connect("ada", "ada", b"%d" % n))) for n in range(2)]
        await asyncio.sleep(0)
        assert await testbed.refused(connect("ada", "ada", b"3")) is LoginRefusal.BUSY
        await asyncio.gather(*waiting)
        assert await testbed.refused(connect("ada", "ada", b"4")) is LoginRefusal.PASSWORD

    in_a_loop(test)


def test_hashing_does_not_hold_up_the_event_loop(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users), max_failures=0)
        waiting = [asyncio.ensure_future(testbed.authenticate(connect("ada", "ada", b"%d" % n))) for n in range(10)]
        spent = time.thread_time()
        await asyncio.gather(*waiting)
        assert time.thread_time() - spent < 0.1  # of some 200 ms that the ten take

    in_a_loop(test)


def test_a_token_and_a_certificate_are_logins(tmp_path: Path, users: Path) -> None:
    async def test() -> None:
        public = tmp_path / "key.pem"
        public.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        testbed = Testbed(token_keyfile=str(public), password_file=str(users))
        token = jwt.encode({"sub": "ada", "exp": time.time() + 60}, KEY, algorithm="ES256").encode()
        granted = testbed.at_once(connect("ada", "", token))
        assert isinstance(granted, Grant)
        assert granted.username == "ada"
        assert granted.valid_ms is not None
        assert await testbed.refused(connect("ada", "ada", token[:-4] + b"AAAA")) is LoginRefusal.UNKNOWN_KEY
        peer = Peer("192.0.2.1", ListenerAuthPolicy(), {"subject": ((("commonName", "ada"),),)})
        assert isinstance(testbed.at_once(connect("ada"), peer), Grant)
        assert await testbed.refused(connect("eve"), peer) is LoginRefusal.CLIENT_ID

    in_a_loop(test)


def test_changed_files_are_read_again_and_broken_ones_ignored(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users), max_failures=0)
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)
        broken(users)
        testbed.authenticator.poll(read_files=True)
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)
        write_password_file(users, {"ada": HASHER.hash("new")})
        testbed.authenticator.poll()
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)
        testbed.authenticator.poll()
        assert await testbed.refused(connect("ada", "ada", b"right")) is LoginRefusal.PASSWORD
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"new")), Grant)

    in_a_loop(test)


@pytest.mark.parametrize("half", ["", "ada:$argon2id$v=19$m=16,t=2,p=1$c29tZXNh"])
def test_users_stay_when_their_file_is_emptied_or_half_written(users: Path, half: str) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users))
        write(users, half)
        with capture_logs() as lines:
            testbed.authenticator.poll(read_files=True)
        assert [line["event"] for line in lines] == ["users_not_taken"]
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)
        with pytest.raises(UnusableFile):
            testbed.authenticator.reconfigure(GatewaySettings(login=LoginSettings(password_file=str(users))))

    in_a_loop(test)


def test_a_broken_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(UnusableFile):
            Testbed(password_file=str(tmp_path / "missing"))

    in_a_loop(test)


def reconfigure(testbed: Testbed, rules: tuple[AccessRule, ...] = (), **login: object) -> None:
    testbed.authenticator.reconfigure(GatewaySettings(login=LoginSettings(**login), rules=rules))  # type: ignore[arg-type]


def test_a_new_configuration_holds_for_new_connects(users: Path, tmp_path: Path) -> None:
    async def test() -> None:
        testbed = Testbed()
        assert await testbed.authenticate(connect("eve"), OPEN) is EVERYTHING
        reconfigure(testbed, (AccessRule(client_ids=("{username}",)),), password_file=str(users))
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)
        assert await testbed.refused(connect("eve", "ada", b"right")) is LoginRefusal.CLIENT_ID
        assert await testbed.refused(connect("ada", "ada", b"wrong")) is LoginRefusal.PASSWORD
        other = tmp_path / "others"
        write_password_file(other, {"ada": HASHER.hash("other")})
        reconfigure(testbed, (AccessRule(client_ids=("*",)),), password_file=str(other))
        assert isinstance(await testbed.authenticate(connect("eve", "ada", b"other")), Grant)
        write_password_file(other, {})
        testbed.authenticator.poll()
        testbed.authenticator.poll()
        assert await testbed.refused(connect("eve", "ada", b"other")) is LoginRefusal.PASSWORD, "the new file is watched"
        reconfigure(testbed)
        assert await testbed.refused(connect("ada", "ada", b"right")) is LoginRefusal.NO_LOGIN

    in_a_loop(test)


def test_an_unusable_configuration_changes_nothing(users: Path, tmp_path: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users))
        with pytest.raises(UnusableFile):
            reconfigure(
                testbed, (AccessRule(client_ids=("nobody",)),), password_file=str(users), token_keyfile=str(tmp_path / "missing")
            )
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)

    in_a_loop(test)


def test_a_right_password_is_not_hashed_again_after_new_rules(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users))
        assert isinstance(await testbed.authenticate(connect("ada", "ada", b"right")), Grant)
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        reconfigure(testbed, (AccessRule(),), password_file=str(users))
        assert isinstance(testbed.at_once(connect("ada", "ada", b"right"), now_ms=now_ms), Grant)
        reconfigure(testbed, password_file=str(users), password_cache_ms=1)
        assert testbed.at_once(connect("ada", "ada", b"right"), now_ms=now_ms) is None, "those of the shorter time are not known"
        await asyncio.sleep(0.2)

    in_a_loop(test)


def test_a_login_under_way_succeeds_when_passwords_are_turned_off(users: Path) -> None:
    async def test() -> None:
        testbed = Testbed(password_file=str(users))
        judging = asyncio.ensure_future(testbed.authenticate(connect("ada", "ada", b"right")))
        await asyncio.sleep(0)
        reconfigure(testbed)
        assert isinstance(await judging, Grant)

    in_a_loop(test)
