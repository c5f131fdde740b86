"""sinks.mqtt.access.authenticator"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sinks.mqtt.access.authenticator import Judgement, Logins, Peer
from sinks.mqtt.access.entrance import Entrance
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefused, Refusal
from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.access.settings import AccessRule, LoginSettings
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.model import Will

OPEN, CLOSED = Peer("192.0.2.1", Entrance(is_anonymous_allowed=True)), Peer("192.0.2.1", Entrance())
KEY = ec.generate_private_key(ec.SECP256R1())


def connect(client_id: str = "ada", username: str | None = None, password: bytes | None = None, **fields: Will) -> Connect:
    return Connect(
        protocol_version=5, client_id=client_id, clean_start=True, username=username, password=password, will=fields.get("will")
    )


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    write_password_file(path, {"ada": HASHER.hash("right")})
    return path


class Door:
    """Logins, and what became of each CONNECT."""

    def __init__(self, rules: tuple[AccessRule, ...] = (), **login: object) -> None:
        self.counters = GatewayCounters()
        settings = GatewaySettings(login=LoginSettings(**login), rules=rules)  # type: ignore[arg-type]
        self.logins = Logins(settings, self.counters)

    def at_once(self, asked: Connect, peer: Peer = CLOSED, now_ms: int = 0) -> Judgement | None:
        return self.logins.log_in(asked, asked.client_id or "assigned", peer, lambda judgement: None, now_ms)

    async def judge(self, asked: Connect, peer: Peer = CLOSED) -> Judgement:
        later: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        judged = self.logins.log_in(asked, asked.client_id or "assigned", peer, later.set_result, now_ms)
        return await later if judged is None else judged

    async def refused(self, asked: Connect, peer: Peer = CLOSED) -> Refusal:
        judged = await self.judge(asked, peer)
        assert isinstance(judged, LoginRefused), judged
        return judged.refusal


def broken(path: Path) -> None:
    path.write_text("broken", encoding="utf-8")


def in_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def test_without_any_configuration_who_may_be_anonymous_may_do_everything() -> None:
    async def test() -> None:
        door = Door()
        assert door.at_once(connect("any", "whoever", b"whatever"), OPEN) is EVERYTHING
        assert await door.refused(connect()) is Refusal.NO_LOGIN
        assert door.counters.logins_refused == {"no login": 1}

    in_a_loop(test)


def test_a_password_is_hashed_elsewhere_and_once(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users))
        right = connect("ada/1", "ada", b"right")
        assert door.at_once(right) is None
        granted = await door.judge(right)
        assert isinstance(granted, Grant)
        assert granted.username == "ada"
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        assert door.at_once(right, now_ms=now_ms) == granted

    in_a_loop(test)


def test_wrong_passwords_unknown_users_and_halves_of_a_login_are_refused(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users), max_failures=0)
        for peer in (OPEN, CLOSED):
            assert await door.refused(connect("ada", "ada", b"wrong"), peer) is Refusal.PASSWORD
            assert await door.refused(connect("eve", "eve", b"right"), peer) is Refusal.PASSWORD
            assert await door.refused(connect("ada", "ada"), peer) is Refusal.PASSWORD
            assert await door.refused(connect("ada", None, b"right"), peer) is Refusal.PASSWORD
        assert await door.refused(connect("ada"), CLOSED) is Refusal.NO_LOGIN
        assert door.at_once(connect("ada"), OPEN) is EVERYTHING

    in_a_loop(test)


def test_a_stolen_client_id_and_a_forbidden_will_are_refused(users: Path) -> None:
    async def test() -> None:
        door = Door((AccessRule(publish=("up/{username}",)),), password_file=str(users))
        assert await door.refused(connect("eve", "ada", b"right")) is Refusal.CLIENT_ID
        bad, good = Will(topic="up/eve", payload=b""), Will(topic="up/ada", payload=b"")
        assert await door.refused(connect("ada", "ada", b"right", will=bad)) is Refusal.WILL
        assert isinstance(await door.judge(connect("ada", "ada", b"right", will=good)), Grant)
        assert isinstance(await door.judge(connect("", "ada", b"right")), Grant)

    in_a_loop(test)


def test_a_blocked_address_lets_its_known_devices_in(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users), max_failures=2)
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)
        for _ in range(2):
            assert await door.refused(connect("ada", "ada", b"wrong")) is Refusal.PASSWORD
        assert await door.refused(connect("ada", "ada", b"other")) is Refusal.BLOCKED
        assert await door.refused(connect("ada", "ada", b"other"), CLOSED._replace(address="192.0.2.2")) is Refusal.PASSWORD
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)

    in_a_loop(test)


def test_many_guesses_at_once_are_not_more_guesses(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users), max_failures=3, failure_wait_ms=60_000)
        guesses = [door.refused(connect("ada", "ada", b"%d" % n)) for n in range(30)]
        answers = await asyncio.gather(*guesses)
        assert 3 <= answers.count(Refusal.PASSWORD) <= 10
        assert answers.count(Refusal.PASSWORD) + answers.count(Refusal.BLOCKED) == 30

    in_a_loop(test)


def test_so_many_passwords_may_wait(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users), max_waiting=2)
        waiting = [asyncio.ensure_future(door.judge(connect("ada", "ada", b"%d" % n))) for n in range(2)]
        await asyncio.sleep(0)
        assert await door.refused(connect("ada", "ada", b"3")) is Refusal.BUSY
        await asyncio.gather(*waiting)
        assert await door.refused(connect("ada", "ada", b"4")) is Refusal.PASSWORD

    in_a_loop(test)


def test_hashing_does_not_hold_up_the_event_loop(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users), max_failures=0)
        waiting = [asyncio.ensure_future(door.judge(connect("ada", "ada", b"%d" % n))) for n in range(10)]
        spent = time.thread_time()
        await asyncio.gather(*waiting)
        assert time.thread_time() - spent < 0.1  # of some 200 ms that the ten take

    in_a_loop(test)


def test_a_token_and_a_certificate_are_logins(tmp_path: Path, users: Path) -> None:
    async def test() -> None:
        public = tmp_path / "key.pem"
        public.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        door = Door(token_keyfile=str(public), password_file=str(users))
        token = jwt.encode({"sub": "ada", "exp": time.time() + 60}, KEY, algorithm="ES256").encode()
        granted = door.at_once(connect("ada", "", token))
        assert isinstance(granted, Grant)
        assert granted.username == "ada"
        assert granted.valid_ms is not None
        assert await door.refused(connect("ada", "ada", token[:-4] + b"AAAA")) is Refusal.TOKEN
        peer = Peer("192.0.2.1", Entrance(), {"subject": ((("commonName", "ada"),),)})
        assert isinstance(door.at_once(connect("ada"), peer), Grant)
        assert await door.refused(connect("eve"), peer) is Refusal.CLIENT_ID

    in_a_loop(test)


def test_changed_files_are_read_again_and_broken_ones_are_not(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users), max_failures=0)
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)
        broken(users)
        door.logins.look_after(0, read_files=True)
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)
        write_password_file(users, {"ada": HASHER.hash("new")})
        door.logins.look_after(0)
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)
        door.logins.look_after(0)
        assert await door.refused(connect("ada", "ada", b"right")) is Refusal.PASSWORD
        assert isinstance(await door.judge(connect("ada", "ada", b"new")), Grant)

    in_a_loop(test)


def test_a_broken_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(UnusableFile):
            Door(password_file=str(tmp_path / "missing"))

    in_a_loop(test)


def taken(door: Door, rules: tuple[AccessRule, ...] = (), **login: object) -> None:
    door.logins.take(GatewaySettings(login=LoginSettings(**login), rules=rules))  # type: ignore[arg-type]


def test_other_ways_to_log_in_and_other_rules_hold_from_then_on(users: Path, tmp_path: Path) -> None:
    async def test() -> None:
        door = Door()
        assert await door.judge(connect("eve"), OPEN) is EVERYTHING
        taken(door, (AccessRule(client_ids=("{username}",)),), password_file=str(users))
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)
        assert await door.refused(connect("eve", "ada", b"right")) is Refusal.CLIENT_ID
        assert await door.refused(connect("ada", "ada", b"wrong")) is Refusal.PASSWORD
        other = tmp_path / "others"
        write_password_file(other, {"ada": HASHER.hash("other")})
        taken(door, (AccessRule(client_ids=("*",)),), password_file=str(other))
        assert isinstance(await door.judge(connect("eve", "ada", b"other")), Grant)
        write_password_file(other, {})
        door.logins.look_after(0)
        door.logins.look_after(0)
        assert await door.refused(connect("eve", "ada", b"other")) is Refusal.PASSWORD, "the new file is watched"
        taken(door)
        assert await door.refused(connect("ada", "ada", b"right")) is Refusal.NO_LOGIN

    in_a_loop(test)


def test_what_cannot_be_used_changes_nothing(users: Path, tmp_path: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users))
        with pytest.raises(UnusableFile):
            taken(door, (AccessRule(client_ids=("nobody",)),), password_file=str(users), token_keyfile=str(tmp_path / "missing"))
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)

    in_a_loop(test)


def test_a_right_password_is_not_hashed_again_after_new_rules(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users))
        assert isinstance(await door.judge(connect("ada", "ada", b"right")), Grant)
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        taken(door, (AccessRule(),), password_file=str(users))
        assert isinstance(door.at_once(connect("ada", "ada", b"right"), now_ms=now_ms), Grant)
        taken(door, password_file=str(users), password_cache_ms=1)
        assert door.at_once(connect("ada", "ada", b"right"), now_ms=now_ms) is None, "those of the shorter time are not known"
        await asyncio.sleep(0.2)

    in_a_loop(test)


def test_a_login_under_way_succeeds_when_passwords_are_turned_off(users: Path) -> None:
    async def test() -> None:
        door = Door(password_file=str(users))
        judging = asyncio.ensure_future(door.judge(connect("ada", "ada", b"right")))
        await asyncio.sleep(0)
        taken(door)
        assert isinstance(await judging, Grant)

    in_a_loop(test)
