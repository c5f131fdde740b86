"""Who may connect to a gateway, and what for. Plain values, as sinks/mqtt/settings.py."""

from dataclasses import dataclass
from typing import Final

TOKEN_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only those with a public key: with a shared one, everybody who can check a token could make one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """How a device says who it is: the keys of [gateway.login]. Client certificates are a matter of each listener.

    Paths are of files that are read again when they change; empty = this way to log in does not exist.
    """

    password_file: str = ""  # sinks/mqtt/access/users/password_file.py
    password_cache_ms: int = 86_400_000
    """A password that was right is not hashed again for this long, as long as the file has the same hash for its user."""
    max_waiting: int = 1_000  # passwords that wait to be hashed; beyond, CONNECT is refused
    token_keyfile: str = ""  # the public key, PEM
    token_algorithms: tuple[str, ...] = ("RS256", "ES256")
    token_username_claim: str = "sub"  # noqa: S105 - the name of a claim
    token_issuer: str = ""  # `iss` must be this; empty = any
    token_audience: str = ""  # `aud` must name this; empty = any
    max_failures: int = 10
    """Wrong passwords in a row from one address; from then on it waits, twice as long after each. 0 = it never waits."""
    failure_wait_ms: int = 1_000
    max_failure_wait_ms: int = 60_000

    @property
    def is_configured(self) -> bool:
        """There is a way to log in besides client certificates."""
        return bool(self.password_file or self.token_keyfile)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """What some users may do. The first rule whose `users` match holds, alone.

    users: patterns of user names (`*`, `?`, `[ab]`); who did not log in has an empty one. client_ids: patterns, too; an empty one
    is a client id that the gateway chooses. publish, subscribe: topic filters. In the last three `{username}` and `{client_id}`
    stand for the device's own, without any meaning of their characters as wildcards.
    """

    users: tuple[str, ...] = ("*",)
    client_ids: tuple[str, ...] = ("{username}", "{username}/*", "")
    publish: tuple[str, ...] = ("#",)
    subscribe: tuple[str, ...] = ("#",)


DEFAULT_RULES: Final = (AccessRule(users=("",), client_ids=("*",)), AccessRule())
"""Where no rule is configured: who did not log in may do everything, a user everything under client ids of its own."""
