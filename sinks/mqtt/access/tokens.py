"""Verifies JSON Web Tokens (RFC 7519) in the password field with the public keys of their issuer.

| claim | meaning |
|---|---|
| `exp` | required; the connection ends then |
| `sub`, or `token_username_claim` | the user |
| `iss`, `aud` | checked if the configuration names one |
| `client_id` | the only client id that the token is for |
| `publish`, `subscribe` | lists of topic filters: nothing else is allowed, and a rule has to allow these too |
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import jwt

from sinks.mqtt.access.grant import LoginRefusal, LoginRefused, User
from sinks.mqtt.access.token_keys import TokenKey
from sinks.mqtt.access.usernames import is_username
from sinks.mqtt.settings import LoginSettings

_CLOCK_SKEW_S: Final = 10
_PARTS: Final = 3
_TIMES: Final = ("exp", "nbf", "iat")


def looks_like_token(password: bytes) -> bool:
    """Returns True for three parts of which the first begins with `eyJ`, which is `{"` in base64."""
    return password.startswith(b"eyJ") and password.count(b".") == _PARTS - 1


class Tokens:
    """Verifies tokens.

    Args:
        keys: Returns the public keys of their issuer.
        clock_s: Unix time.
    """

    def __init__(
        self,
        settings: LoginSettings,
        keys: Callable[[], Sequence[TokenKey]],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._clock_s = clock_s

    def user_of(self, token: bytes, username: str | None) -> User | LoginRefused:
        """Verifies a token. Returns its user, or why it is refused.

        UNKNOWN_KEY says that the issuer may have signed it with a key that is not among `keys`: none has its `kid`, or it names
        none and no key has signed it.

        Args:
            username: The user name of CONNECT. If there is one, it has to be the token's.
        """
        settings = self._settings
        try:
            claims = self._verified_claims(token)
            _check_times(claims)
            valid_s = int(claims["exp"]) + _CLOCK_SKEW_S - self._clock_s()
            return _user_of(claims, settings.token_username_claim, username, valid_ms=max(0, int(valid_s * 1_000)))
        except _UnknownKey as error:
            return LoginRefused(LoginRefusal.UNKNOWN_KEY, str(error))
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            return LoginRefused(LoginRefusal.TOKEN, f"{type(error).__name__}: {error}")

    def _verified_claims(self, token: bytes) -> dict[str, Any]:
        """Tries the keys that fit, which are several if the token names none. Raises jwt.PyJWTError, TypeError, _UnknownKey."""
        settings = self._settings
        header = jwt.get_unverified_header(token)
        key_id, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in settings.token_algorithms:
            raise jwt.InvalidAlgorithmError(f"alg {algorithm!r} is not allowed")
        refused: Exception = _UnknownKey(f"no key of the issuer fits kid {key_id!r} and alg {algorithm!r}")
        for key in [key for key in self._keys() if key.fits(header)]:
            try:
                return jwt.decode(
                    token,
                    cast(Any, key.key),
                    algorithms=list(settings.token_algorithms),
                    issuer=settings.token_issuer or None,
                    audience=settings.token_audience or None,
                    leeway=_CLOCK_SKEW_S,
                    options={
                        "require": ["exp", settings.token_username_claim],
                        "verify_aud": bool(settings.token_audience),
                    },
                )
            except (jwt.InvalidSignatureError, jwt.InvalidKeyError, TypeError) as error:  # TypeError: a key of another type
                if key_id is not None:
                    refused = error
        raise refused


class _UnknownKey(Exception):
    """The text says which key a token asks for."""


def _check_times(claims: Mapping[str, Any]) -> None:
    """Raises ValueError for a time that is no number (RFC 7519, section 2: NumericDate), which PyJWT would convert."""
    for claim in _TIMES:
        value = claims.get(claim, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{claim} is not a number")


def _user_of(claims: Mapping[str, Any], username_claim: str, username: str | None, *, valid_ms: int) -> User:
    """Raises ValueError for invalid claims."""
    name, client_id = claims[username_claim], claims.get("client_id")
    if not isinstance(name, str) or not is_username(name):
        raise ValueError(f"{username_claim} is not a user name")
    if username and username != name:
        raise ValueError("CONNECT has another user name")
    if client_id is not None and not isinstance(client_id, str):
        raise ValueError("client_id is not a text")
    return User(
        name=name,
        client_id=client_id,
        publish=_topic_filters(claims, "publish"),
        subscribe=_topic_filters(claims, "subscribe"),
        valid_ms=valid_ms,
    )


def _topic_filters(claims: Mapping[str, Any], claim: str) -> tuple[str, ...] | None:
    if claim not in claims:
        return None
    found = claims[claim]
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError(f"{claim} is not a list of topic filters")
    return tuple(found)
