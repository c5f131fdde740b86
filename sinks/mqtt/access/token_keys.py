"""Reads the public keys that verify tokens: one in PEM, or a JSON Web Key Set (RFC 7517), from a file or from a server."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from sinks.mqtt.access.errors import UnusableFile

_MAX_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 10
_KEY_TYPES: Final = ("RSA", "EC", "OKP")
"""Those with a public key: with a shared one (`oct`), everybody who can verify a token could make one."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """One public key.

    Attributes:
        key_id, algorithm: A token has to name the same, if both name one.
    """

    key: PublicKeyTypes
    key_id: str | None = None
    algorithm: str | None = None

    def fits(self, header: Mapping[str, Any]) -> bool:
        """Returns True if a token with this header may have been signed with the key."""
        return all(
            own is None or asked is None or own == asked
            for own, asked in ((self.key_id, header.get("kid")), (self.algorithm, header.get("alg")))
        )


class KeyServerError(Exception):
    """The server did not answer with usable keys. The text says why."""


def read_token_keys(path: Path) -> tuple[TokenKey, ...]:
    """Reads a public key in PEM or a JSON Web Key Set. Raises UnusableFile."""
    try:
        content = path.read_bytes()
        if content.lstrip().startswith(b"{"):
            return keys_of_set(content)
        return (TokenKey(load_pem_public_key(content)),)
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror}. gateway.login.token_keyfile names it.") from error
    except ValueError as error:
        raise UnusableFile(
            f"{path} is neither a public key in PEM nor a JSON Web Key Set: {error}. Give the public key of their issuer "
            "(openssl pkey -pubout), or its set of keys."
        ) from error


def keys_of_set(content: bytes) -> tuple[TokenKey, ...]:
    """Returns the keys of a JSON Web Key Set that can verify a signature. Raises ValueError if there is none."""
    found = json.loads(content)
    entries = found.get("keys") if isinstance(found, dict) else None
    listed = entries if isinstance(entries, list) else ()
    keys = [key for entry in listed if isinstance(entry, dict) and (key := _key_of(entry)) is not None]
    if not keys:
        raise ValueError("it has no public key for signatures under `keys`")
    return tuple(keys)


def _key_of(entry: Mapping[str, Any]) -> TokenKey | None:
    """Returns None for a key of another use or of an unknown kind, which may stand beside usable ones (RFC 7517, section 5)."""
    if entry.get("kty") not in _KEY_TYPES or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    try:
        return TokenKey(jwt.PyJWK(dict(entry)).key, entry.get("kid"), entry.get("alg"))
    except (jwt.PyJWTError, ValueError, TypeError):
        return None


def check_key_server(url: str) -> None:
    """Raises ValueError unless the keys come by HTTPS, or from this machine."""
    parts = urlsplit(url)
    if url and not (parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _HERE))):
        raise ValueError("write an https:// URL; http:// is possible for 127.0.0.1, ::1 and localhost only")


_HERE: Final = ("127.0.0.1", "::1", "localhost")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes the answer of the configured server only."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def fetch_token_keys(url: str, cafile: str) -> tuple[TokenKey, ...]:
    """Asks a server, for at most some ten seconds.

    Args:
        cafile: Authorities of the server's certificate; empty = the system's.

    Raises:
        KeyServerError: There are no usable keys.
    """
    try:
        context = ssl.create_default_context(cafile=cafile or None)
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            content = answer.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise KeyServerError(f"the answer has more than {_MAX_BYTES} bytes")
        return keys_of_set(content)
    except (OSError, HTTPException, ValueError) as error:  # urllib's errors are OSErrors
        raise KeyServerError(str(error) or type(error).__name__) from error
