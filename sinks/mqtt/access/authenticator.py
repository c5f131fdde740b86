"""Authenticates CONNECTs, and applies the rules to their users. Only the hashing of passwords runs in threads."""

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

from sinks.log_throttle import RefusalLog
from sinks.mqtt.access.backoff import FailedLogins
from sinks.mqtt.access.certificates import Certificate, CertificateUser, user_of_certificate
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.grant import ANONYMOUS, Grant, LoginRefusal, LoginRefused, User
from sinks.mqtt.access.key_server import KeyServer
from sinks.mqtt.access.password_file import read_password_file
from sinks.mqtt.access.passwords import PasswordHash, Passwords
from sinks.mqtt.access.rules import Rules
from sinks.mqtt.access.token_keys import TokenKey, read_token_keys
from sinks.mqtt.access.tokens import Tokens, looks_like_token
from sinks.mqtt.access.watched_files import WatchedFiles
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import ClientCertificate, GatewaySettings, ListenerSettings, LoginSettings

_log: Final = structlog.get_logger(__name__)
_THREADS: Final = min(4, max(1, (os.cpu_count() or 1) // 2))
_NICENESS: Final = 10

AuthResult: TypeAlias = Grant | LoginRefused


class ListenerAuthPolicy(NamedTuple):
    """The requirements of a listener on a login.

    Attributes:
        is_anonymous_allowed: A device without a login is accepted.
        allows_everything: Every device is accepted and may do everything.
    """

    is_anonymous_allowed: bool = False
    allows_everything: bool = False
    certificate_user: CertificateUser = CertificateUser.CN


def auth_policy_of(listener: ListenerSettings, settings: GatewaySettings) -> ListenerAuthPolicy:
    is_login_configured = settings.login.is_configured
    is_anonymous_allowed = listener.lets_anonymous_in(is_login_configured=is_login_configured)
    return ListenerAuthPolicy(
        is_anonymous_allowed,
        allows_everything=is_anonymous_allowed
        and not is_login_configured
        and not settings.rules
        and listener.client_certificate is ClientCertificate.NONE,
        certificate_user=listener.certificate_user,
    )


class Peer(NamedTuple):
    """The sender of a CONNECT.

    Attributes:
        certificate: None = it gave none.
    """

    address: str
    policy: ListenerAuthPolicy
    certificate: Certificate | None = None


class Authenticator:
    """The authenticator of one gateway, on its event loop. Raises UnusableFile if a file of users or keys cannot be used."""

    def __init__(self, settings: GatewaySettings, counters: GatewayCounters) -> None:
        self._settings = settings.login
        self._passwords: Passwords | None = None
        self._tokens: Tokens | None = None
        self._key_server: KeyServer | None = None
        self._failed = FailedLogins(settings.login)
        self._refusals = RefusalLog(counters.logins_refused, _log.warning, "login_refused", "more_logins_refused", label="reason")
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="passwords", initializer=_lower_priority)
        self._waiting = 0
        self.reconfigure(settings)

    def reconfigure(self, settings: GatewaySettings) -> None:
        """Applies other ways to log in and other rules to new CONNECTs. If it raises UnusableFile, nothing has changed."""
        login = settings.login
        files = WatchedFiles((login.password_file, login.token_keyfile))
        users, keys = self._read_users(login), _read_keys(login)
        if not login.password_file:
            self._passwords = None
        elif self._passwords is None or login.password_cache_ms != self._settings.password_cache_ms:
            self._passwords = Passwords(login.password_cache_ms)
        if self._key_server is None or _key_server_of(login) != _key_server_of(self._settings):
            self._close_key_server()
            self._key_server = KeyServer(login, self._now_ms) if login.token_jwks_url else None
        self._settings = login
        self._rules = Rules(settings.rules)
        self._files = files
        self._failed.reconfigure(login)
        self._use(users, keys)

    def authenticate(
        self, connect: Connect, client_id: str, peer: Peer, done: Callable[[AuthResult], None], now_ms: int
    ) -> AuthResult | None:
        """Returns None while the password is being hashed or keys are being read; then `done` gets the result.

        Args:
            client_id: The one that the connection gets.
            now_ms: Of a monotonic clock.
        """
        user = self._identify(connect, client_id, peer, done, now_ms)
        if isinstance(user, LoginRefused) and user.refusal is LoginRefusal.UNKNOWN_KEY:
            if self._key_server is not None and self._key_server.await_newer(
                partial(self._keys_read, user, connect, client_id, peer, done)
            ):
                return None
            if self._key_server is not None or self._files.are_newer():
                user = LoginRefused(LoginRefusal.NOT_READ, user.detail)
        return None if user is None else self._authorize(user, connect, client_id, peer)

    def poll(self, *, read_files: bool = False) -> None:
        """Reads changed files, or all (read_files). Unusable ones leave the old users in force. Call it every second."""
        self._refusals.flush()
        if self._key_server is not None:
            self._key_server.poll()
        if self._files.changed() or read_files:
            try:
                self._use(self._read_users(self._settings), _read_keys(self._settings))
            except UnusableFile as error:
                _log.error("users_not_taken", problem=str(error), action="those before it stay in force")

    def close(self) -> None:
        self._close_key_server()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- authentication -------------------------------------------------------------------------------------------------------

    def _identify(
        self, connect: Connect, client_id: str, peer: Peer, done: Callable[[AuthResult], None], now_ms: int
    ) -> User | LoginRefused | None:
        """Tries 1. a client certificate, 2. a token, 3. a password, 4. no login."""
        if peer.certificate is not None:
            return user_of_certificate(peer.certificate, peer.policy.certificate_user, connect.username)
        username, password = connect.username, connect.password
        if password is not None and self._tokens is not None and looks_like_token(password):
            return self._tokens.user_of(password, username)
        if not self._settings.is_configured or (username is None and password is None):
            return ANONYMOUS if peer.policy.is_anonymous_allowed else LoginRefused(LoginRefusal.NO_LOGIN)
        if self._passwords is None or username is None or password is None:
            return LoginRefused(LoginRefusal.PASSWORD)
        hashed = self._passwords.hash_of(username, password)
        if self._passwords.is_cached(hashed, now_ms):
            return User(username)
        if self._failed.is_blocked(peer.address, now_ms):
            return LoginRefused(LoginRefusal.BLOCKED)
        if self._waiting >= self._settings.max_waiting:
            return LoginRefused(LoginRefusal.BUSY)
        self._waiting += 1
        future = self._loop.run_in_executor(self._threads, self._verify, hashed, password, peer.address)
        future.add_done_callback(partial(self._verified, self._passwords, hashed, connect, client_id, peer, done))
        return None

    def _verify(self, hashed: PasswordHash, password: bytes, address: str) -> LoginRefused | None:
        """Runs in a thread. It asks again for a block, so that guesses sent at once are limited as those sent one by one."""
        if self._failed.is_blocked(address, self._now_ms()):
            return LoginRefused(LoginRefusal.BLOCKED)
        return None if Passwords.verify(hashed, password) else LoginRefused(LoginRefusal.PASSWORD)

    def _verified(
        self,
        passwords: Passwords,
        hashed: PasswordHash,
        connect: Connect,
        client_id: str,
        peer: Peer,
        done: Callable[[AuthResult], None],
        verified: "asyncio.Future[LoginRefused | None]",
    ) -> None:
        self._waiting -= 1
        if verified.cancelled():
            return  # the gateway has stopped
        now_ms, refused = self._now_ms(), verified.result()
        if refused is None:
            passwords.remember(hashed, now_ms)
            self._failed.record_success(peer.address)
        elif refused.refusal is LoginRefusal.PASSWORD:
            self._failed.record_failure(peer.address, now_ms)
            if self._files.are_newer():
                refused = LoginRefused(LoginRefusal.NOT_READ)
        done(self._authorize(refused or User(connect.username or ""), connect, client_id, peer))

    def _keys_read(
        self,
        refused: LoginRefused,
        connect: Connect,
        client_id: str,
        peer: Peer,
        done: Callable[[AuthResult], None],
        is_answered: bool,
    ) -> None:
        """Verifies a token again, with keys that were asked for after it came."""
        user: User | LoginRefused = LoginRefused(LoginRefusal.NOT_READ, refused.detail)
        if is_answered and self._tokens is not None and connect.password is not None:
            user = self._tokens.user_of(connect.password, connect.username)
        done(self._authorize(user, connect, client_id, peer))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    # --- authorization --------------------------------------------------------------------------------------------------------

    def _authorize(self, user: User | LoginRefused, connect: Connect, client_id: str, peer: Peer) -> AuthResult:
        result: AuthResult
        if isinstance(user, LoginRefused):
            username, result = connect.username, user
        else:
            will_topic = None if connect.will is None else connect.will.topic
            username = user.name
            result = self._rules.apply(user, asked_client_id=connect.client_id, client_id=client_id, will_topic=will_topic)
        if isinstance(result, LoginRefused):
            self._refusals.refused(
                result.refusal,
                peer.address,
                detail=result.detail,
                client_id=client_id,
                username=username,
            )
        return result

    def _read_users(self, login: LoginSettings) -> Mapping[str, str]:
        if not login.password_file:
            return {}
        in_force = self._passwords is not None and login.password_file == self._settings.password_file and self._passwords.users
        return read_password_file(Path(login.password_file), is_reload=bool(in_force))

    def _close_key_server(self) -> None:
        if self._key_server is not None:
            self._key_server.close()

    def _use(self, users: Mapping[str, str], keys: tuple[TokenKey, ...]) -> None:
        server = self._key_server
        if server is not None:
            self._tokens = Tokens(self._settings, lambda: server.keys)
        else:
            self._tokens = Tokens(self._settings, lambda: keys) if keys else None
        if self._passwords is not None:
            self._passwords.users = users
            _log.info("users_read", file=self._settings.password_file, users=len(users))


def _read_keys(login: LoginSettings) -> tuple[TokenKey, ...]:
    return read_token_keys(Path(login.token_keyfile)) if login.token_keyfile else ()


def _key_server_of(login: LoginSettings) -> tuple[str, str, int]:
    return login.token_jwks_url, login.token_jwks_cafile, login.token_jwks_refresh_ms


def _lower_priority() -> None:
    """Lets the event loop run first. Linux has a priority for each thread."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
