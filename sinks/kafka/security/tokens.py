"""Tokens of OAUTHBEARER: from a token endpoint (RFC 6749, section 4.4, client credentials), or from a file that is kept fresh.

kafka-python asks for one at each login (python_tokens.py). librdkafka asks for one in time before the one before it ends
(librdkafka_client.py). Java's clients have this built in.
"""

import base64
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from sinks.kafka.security.settings import KafkaSecurity
from state.errors import InflightError

_TIMEOUT_S: Final = 10.0
_DEFAULT_LIFE_S: Final = 60.0
_USED: Final = 0.8
"""For this part of its life a token is given to new logins: none gets one that has just ended. Java's clients do the same."""
_LARGEST_ANSWER_BYTES: Final = 1 << 20


class TokenUnavailable(InflightError):
    """No token could be had; the client asks again later."""


def token_source(security: KafkaSecurity) -> "FileTokens | EndpointTokens":
    """Makes a source. It asks for nothing before the first login."""
    return FileTokens(Path(security.sasl_token_file)) if security.sasl_token_file else EndpointTokens(security)


class FileTokens:
    """Reads the token that the file has at the moment."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def token(self) -> str:
        """Returns the token. Raises TokenUnavailable."""
        try:
            return self._path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise TokenUnavailable(f"{self._path} has no token: {type(error).__name__}") from error

    def token_and_life_s(self) -> tuple[str, float]:
        """Returns the token, and the seconds after which the file should be read again. Raises TokenUnavailable."""
        return self.token(), _DEFAULT_LIFE_S


class EndpointTokens:
    """Asks an endpoint for tokens, and uses each for most of its life. Several threads may ask."""

    def __init__(self, security: KafkaSecurity, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._security = security
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token: str | None = None
        self._use_until_s = self._ends_s = 0.0

    def token(self) -> str:
        """Returns a token. Raises TokenUnavailable after ten seconds at most, with neither secret nor token in the text."""
        return self.token_and_life_s()[0]

    def token_and_life_s(self) -> tuple[str, float]:
        """Returns the token, and the seconds that it goes on to live. Raises as `token` does."""
        with self._lock:
            now_s = self._monotonic()
            if self._token is None or now_s >= self._use_until_s:
                try:
                    self._token, life_s = _granted(self._request())
                except (OSError, ValueError, HTTPException) as error:
                    raise TokenUnavailable(
                        f"{self._security.sasl_token_url} gave no token: {error}. Check kafka.sasl_token_url, "
                        "kafka.sasl_username and the secret."
                    ) from error
                self._use_until_s, self._ends_s = now_s + _USED * life_s, now_s + life_s
            return self._token, self._ends_s - now_s

    def _request(self) -> Any:
        security = self._security
        form = {"grant_type": "client_credentials"} | ({"scope": security.sasl_token_scope} if security.sasl_token_scope else {})
        login = base64.b64encode(f"{security.sasl_username}:{security.password}".encode()).decode("ascii")
        url = urlsplit(security.sasl_token_url)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=_TIMEOUT_S)
        try:
            connection.request(
                "POST",
                f"{url.path or '/'}{'?' if url.query else ''}{url.query}",
                urlencode(form),
                {
                    "Authorization": f"Basic {login}",
                    "Accept": "application/json",
                    "Content-Type": "application/x-www-form-urlencoded",
                },
            )
            answer = connection.getresponse()
            # A redirection is not followed: the secret is for this address.
            if answer.status != HTTPStatus.OK:
                raise ValueError(f"HTTP status {answer.status}")
            return json.loads(answer.read(_LARGEST_ANSWER_BYTES))
        finally:
            connection.close()


def _granted(answer: Any) -> tuple[str, float]:
    """Returns (token, seconds that it lives). Raises ValueError, with nothing of the answer in its text."""
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or not token.isascii() or not token:
        raise ValueError("the answer has no access_token")
    life_s = answer.get("expires_in", _DEFAULT_LIFE_S)
    return token, float(life_s) if isinstance(life_s, int | float) else _DEFAULT_LIFE_S
