"""Access control of a gateway: the keys of [gateway.login] and [[rules]]."""

from dataclasses import dataclass
from typing import Final

from sinks.mqtt.access.token_keys import check_key_server
from sinks.mqtt_topics import is_topic_filter
from state.setting import DAY, SECOND, Setting

TOKEN_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only algorithms with a public key. With a shared key, everybody who can verify a token could make one."""


def _check_algorithm(text: str) -> None:
    if text not in TOKEN_ALGORITHMS:
        raise ValueError(f"these are possible: {', '.join(TOKEN_ALGORITHMS)}")


def _check_topic_filter(text: str) -> None:
    if not is_topic_filter(text):
        raise ValueError("this is no topic filter: + and # stand for whole levels, # for the last ones")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """The login of devices (docs/operate/security.md); [[listeners]] has client certificates. Changed files are read again."""

    password_file: str = Setting("users and hashes of passwords, written by `inflight users`; empty = no passwords").default("")
    password_cache_ms: int = Setting(
        "a password that was right is not hashed again for this long, unless the file changes for its user", (0, 30 * DAY)
    ).default(86_400_000)
    max_waiting: int = 1_000
    """Passwords that wait to be hashed, 20 ms each. Beyond, connect_timeout_ms would pass, so CONNECT is refused with 0x89."""
    token_keyfile: str = Setting(
        "file of the public key that verifies JSON Web Tokens, in PEM, or of several as a JSON Web Key Set; empty = none"
    ).default("")
    token_jwks_url: str = Setting(
        "URL from which a gateway reads these keys as a JSON Web Key Set instead, at https, or at this machine; empty = none",
        check=check_key_server,
    ).default("")
    token_jwks_cafile: str = Setting("PEM file of the authorities of that server; empty = those of the system").default("")
    token_jwks_refresh_ms: int = Setting(
        "the keys are read again after this long, and when a token names an unknown one, at most every 2 s", (SECOND, DAY)
    ).default(300_000)
    token_algorithms: tuple[str, ...] = Setting(
        f"with which a token may be signed, of {', '.join(TOKEN_ALGORITHMS)}", min_length=1, check=_check_algorithm
    ).default(("RS256", "ES256"))
    token_username_claim: str = Setting("claim that is the user name", min_length=1).default("sub")
    token_issuer: str = Setting("`iss` that a token must have; empty = any").default("")
    token_audience: str = Setting("`aud` that a token must name; empty = any").default("")
    max_failures: int = Setting(
        "wrong passwords in a row from one address; after them it waits 1 s, twice as long after each other one, at most 1 min; "
        "0 = it never waits, as behind a load balancer that hides addresses",
        (0, 1_000_000),
    ).default(10)
    failure_wait_ms: int = 1_000
    max_failure_wait_ms: int = 60_000  # others behind the same address are not locked out for longer

    @property
    def is_configured(self) -> bool:
        """Returns True if there is a way to log in besides client certificates."""
        return bool(self.password_file) or self.has_tokens

    @property
    def has_tokens(self) -> bool:
        return bool(self.token_keyfile or self.token_jwks_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """The permissions of some users. Only the first rule whose `users` match holds.

    In client_ids, publish, subscribe and not_subscribe `{username}` and `{client_id}` stand for the device's own, in which no
    character is a wildcard.
    """

    users: tuple[str, ...] = Setting(
        "patterns of user names: * any text, ? one character; a device that does not log in has an empty one", min_length=1
    ).default(("*",))
    client_ids: tuple[str, ...] = Setting("patterns of client ids that they may use; an empty one = the gateway chooses").default(
        ("{username}", "{username}/*", "")
    )
    publish: tuple[str, ...] = Setting("topics that they may publish to", check=_check_topic_filter).default(("#",))
    subscribe: tuple[str, ...] = Setting("topics that they may subscribe to", check=_check_topic_filter).default(("#",))
    not_subscribe: tuple[str, ...] = Setting(
        "topics that they may not subscribe to, and get 0x80 for; a filter that matches other topics too, such as #, is granted",
        check=_check_topic_filter,
    ).default(())


DEFAULT_RULES: Final = (AccessRule(users=("",), client_ids=("*",)), AccessRule())
"""Hold if no rule is configured: an anonymous device may do everything, a user everything under its own client ids."""
