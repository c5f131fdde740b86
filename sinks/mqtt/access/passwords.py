"""Verifies passwords, and remembers correct ones for a while, because a verification takes tens of milliseconds of one core."""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import argon2

from sinks.mqtt.access.password_file import HASHER

_MAX_CACHED: Final = 100_000


class PasswordHash(NamedTuple):
    """A hash to verify.

    Attributes:
        digest: A digest of user, password and hash, under a key that only this process has.
    """

    text: str
    digest: bytes


class Passwords:
    """Call 1. `hash_of`; 2. if not `is_cached`: `verify`, in any thread; 3. if it is correct: `remember`.

    Times are milliseconds of a monotonic clock.

    Attributes:
        users: Hashes by user name.
    """

    def __init__(self, cache_ms: int) -> None:
        self.users: Mapping[str, str] = {}
        self._cache_ms = cache_ms
        self._key = secrets.token_bytes(32)
        self._until_ms: OrderedDict[bytes, int] = OrderedDict()
        self._unknown_user = HASHER.hash(secrets.token_hex(16))

    def hash_of(self, username: str, password: bytes) -> PasswordHash:
        """An unknown user gets the hash of a random secret, so that its verification takes the same time."""
        text = self.users.get(username, self._unknown_user)
        name = username.encode()
        identity = b"%d:%b%d:%b%b" % (len(name), name, len(password), password, text.encode())
        return PasswordHash(text, hmac.digest(self._key, identity, hashlib.sha256))

    def is_cached(self, hashed: PasswordHash, now_ms: int) -> bool:
        return self._until_ms.get(hashed.digest, 0) > now_ms

    @staticmethod
    def verify(hashed: PasswordHash, password: bytes) -> bool:
        try:
            argon2.low_level.verify_secret(hashed.text.encode(), password, argon2.Type.ID)
        except argon2.exceptions.VerificationError:
            return False
        return True

    def remember(self, hashed: PasswordHash, now_ms: int) -> None:
        """Remembers the newest 100,000 correct passwords. After a change of the password the digest is another one."""
        self._until_ms.pop(hashed.digest, None)
        self._until_ms[hashed.digest] = now_ms + self._cache_ms
        if len(self._until_ms) > _MAX_CACHED:
            self._until_ms.popitem(last=False)
