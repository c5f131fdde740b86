"""Judges CONNECTs: who is it, and what may it do. Passwords are hashed in threads of their own, everything else at once."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import structlog

from sinks.mqtt.access.backoff import FailedLogins
from sinks.mqtt.access.certificates import Certificate, user_of_certificate
from sinks.mqtt.access.entrance import Entrance
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.grant import ANONYMOUS, Grant, LoginRefused, Refusal, User
from sinks.mqtt.access.password_file import read_password_file
from sinks.mqtt.access.passwords import PasswordHash, Passwords
from sinks.mqtt.access.refusals import Refusals
from sinks.mqtt.access.rules import Rules
from sinks.mqtt.access.settings import LoginSettings
from sinks.mqtt.access.tokens import Tokens, looks_like_token, read_token_key
from sinks.mqtt.access.watched_files import WatchedFiles
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings

_log: Final = structlog.get_logger(__name__)
_THREADS: Final = min(4, max(1, (os.cpu_count() or 1) // 2))
_NICENESS: Final = 10

Judgement: TypeAlias = Grant | LoginRefused


class Peer(NamedTuple):
    """Where a CONNECT came from. certificate: None = it gave none."""

    address: str
    entrance: Entrance
    certificate: Certificate | None = None


class Logins:
    """Of one gateway, in its event loop. Raises UnusableFile if what it should know users by cannot be read."""

    def __init__(self, settings: GatewaySettings, counters: GatewayCounters) -> None:
        self._settings = settings.login
        self._passwords: Passwords | None = None
        self._tokens: Tokens | None = None
        self._failed = FailedLogins(settings.login)
        self._refusals = Refusals(counters)
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="passwords", initializer=_step_back)
        self._waiting = 0
        self.take(settings)

    def take(self, settings: GatewaySettings) -> None:
        """Other ways to log in and other rules, for CONNECTs to come. Raises UnusableFile, and everything is as before."""
        login = settings.login
        files = WatchedFiles((login.password_file, login.token_keyfile))
        users, tokens = _read_users(login), _read_tokens(login)
        if not login.password_file:
            self._passwords = None
        elif self._passwords is None or login.password_cache_ms != self._settings.password_cache_ms:
            self._passwords = Passwords(login.password_cache_ms)
        self._settings = login
        self._rules = Rules(settings.rules)
        self._files = files
        self._failed.take(login)
        self._use(users, tokens)

    def log_in(
        self, connect: Connect, client_id: str, peer: Peer, done: Callable[[Judgement], None], now_ms: int
    ) -> Judgement | None:
        """None = the password is being hashed, and `done` will be called. client_id: of the connection; now_ms: monotonic."""
        user = self._user_at_once(connect, client_id, peer, done, now_ms)
        return None if user is None else self._judged(user, connect, client_id, peer, now_ms)

    def look_after(self, now_ms: int, *, read_files: bool = False) -> None:
        """Call it every second. read_files: whether they have changed or not; what cannot be read leaves in force what was."""
        self._refusals.catch_up(now_ms)
        if self._files.changed() or read_files:
            try:
                self._use(_read_users(self._settings), _read_tokens(self._settings))
            except UnusableFile as error:
                _log.error("users_not_taken", problem=str(error), action="those before it stay in force")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- who it is ----------------------------------------------------------------------------------------------------------

    def _user_at_once(
        self, connect: Connect, client_id: str, peer: Peer, done: Callable[[Judgement], None], now_ms: int
    ) -> User | LoginRefused | None:
        """1. a client certificate, 2. a token, 3. a password, 4. nobody in particular."""
        if peer.certificate is not None:
            return user_of_certificate(peer.certificate, peer.entrance.certificate_user, connect.username)
        username, password = connect.username, connect.password
        if password is not None and self._tokens is not None and looks_like_token(password):
            return self._tokens.user_of(password, username)
        is_said = self._settings.is_configured and (username is not None or password is not None)
        if not is_said:
            return ANONYMOUS if peer.entrance.is_anonymous_allowed else LoginRefused(Refusal.NO_LOGIN)
        if self._passwords is None or username is None or password is None:
            return LoginRefused(Refusal.PASSWORD)
        hashed = self._passwords.hash_of(username, password)
        if self._passwords.is_cached(hashed, now_ms):
            return User(username)
        if self._failed.is_blocked(peer.address, now_ms):
            return LoginRefused(Refusal.BLOCKED)
        if self._waiting >= self._settings.max_waiting:
            return LoginRefused(Refusal.BUSY)
        self._waiting += 1
        future = self._loop.run_in_executor(self._threads, self._verify, hashed, password, peer.address)
        future.add_done_callback(partial(self._verified, self._passwords, hashed, connect, client_id, peer, done))
        return None

    def _verify(self, hashed: PasswordHash, password: bytes, address: str) -> LoginRefused | None:
        """In a thread. Who sends many guesses at once does not get more of them hashed than one after the other."""
        if self._failed.is_blocked(address, self._now_ms()):
            return LoginRefused(Refusal.BLOCKED)
        return None if Passwords.verify(hashed, password) else LoginRefused(Refusal.PASSWORD)

    def _verified(
        self,
        passwords: Passwords,
        hashed: PasswordHash,
        connect: Connect,
        client_id: str,
        peer: Peer,
        done: Callable[[Judgement], None],
        verified: "asyncio.Future[LoginRefused | None]",
    ) -> None:
        self._waiting -= 1
        if verified.cancelled():
            return  # the gateway has stopped
        now_ms, refused = self._now_ms(), verified.result()
        if refused is None:
            passwords.remember(hashed, now_ms)
            self._failed.succeeded(peer.address)
        elif refused.refusal is Refusal.PASSWORD:
            self._failed.failed(peer.address, now_ms)
        done(self._judged(refused or User(connect.username or ""), connect, client_id, peer, now_ms))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    # --- what it may do -------------------------------------------------------------------------------------------------------

    def _judged(self, user: User | LoginRefused, connect: Connect, client_id: str, peer: Peer, now_ms: int) -> Judgement:
        judgement: Judgement = (
            user
            if isinstance(user, LoginRefused)
            else self._rules.apply(
                user,
                asked_client_id=connect.client_id,
                client_id=client_id,
                will_topic=None if connect.will is None else connect.will.topic,
            )
        )
        if isinstance(judgement, LoginRefused):
            username = user.name if isinstance(user, User) else connect.username
            self._refusals.refused(judgement, address=peer.address, client_id=client_id, username=username, now_ms=now_ms)
        return judgement

    def _use(self, users: Mapping[str, str], tokens: Tokens | None) -> None:
        self._tokens = tokens
        if self._passwords is not None:
            self._passwords.users = users
            _log.info("users_read", file=self._settings.password_file, users=len(users))


def _read_users(login: LoginSettings) -> Mapping[str, str]:
    return read_password_file(Path(login.password_file)) if login.password_file else {}


def _read_tokens(login: LoginSettings) -> Tokens | None:
    return Tokens(login, read_token_key(Path(login.token_keyfile))) if login.token_keyfile else None


def _step_back() -> None:
    """This thread gets what the event loop leaves: Linux has a priority for each thread."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
