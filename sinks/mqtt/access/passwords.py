"""Is this the password of this user? The answer takes tens of milliseconds of one core, but not for one that was right before."""

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
    """digest: of user, password and hash, under a key that only this process has."""

    text: str
    digest: bytes


class Passwords:
    """users: hashes by user name. Times: milliseconds of a monotonic clock.

    1. `hash_of`; 2. if not `is_cached`: `verify`, which may run in any thread; 3. `remember` what was right.
    """

    def __init__(self, cache_ms: int) -> None:
        self.users: Mapping[str, str] = {}
        self._cache_ms = cache_ms
        self._key = secrets.token_bytes(32)
        self._until_ms: OrderedDict[bytes, int] = OrderedDict()
        self._of_nobody = HASHER.hash(secrets.token_hex(16))

    def hash_of(self, username: str, password: bytes) -> PasswordHash:
        """An unknown user has the hash of a secret that nobody has ever seen: it takes the same time to find that out."""
        text = self.users.get(username, self._of_nobody)
        name = username.encode()
        said = b"%d:%b%d:%b%b" % (len(name), name, len(password), password, text.encode())
        return PasswordHash(text, hmac.digest(self._key, said, hashlib.sha256))

    def is_cached(self, hashed: PasswordHash, now_ms: int) -> bool:
        return self._until_ms.get(hashed.digest, 0) > now_ms

    @staticmethod
    def verify(hashed: PasswordHash, password: bytes) -> bool:
        """Slow."""
        try:
            argon2.low_level.verify_secret(hashed.text.encode(), password, argon2.Type.ID)
        except argon2.exceptions.VerificationError:
            return False
        return True

    def remember(self, hashed: PasswordHash, now_ms: int) -> None:
        """At most 100,000, those that were right last. A changed password is another hash, so it is not found."""
        self._until_ms.pop(hashed.digest, None)
        self._until_ms[hashed.digest] = now_ms + self._cache_ms
        if len(self._until_ms) > _MAX_CACHED:
            self._until_ms.popitem(last=False)
