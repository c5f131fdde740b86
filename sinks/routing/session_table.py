"""Knows which clients have a session, by the marks of `inflight.subscriptions` (state/records/session_marks.py)."""

import hashlib
import secrets
from typing import Final

_DIGEST_BYTES: Final = 8
_KEY_BYTES: Final = 16
_TIME_BITS: Final = 64
_TIME: Final = (1 << _TIME_BITS) - 1


class SessionTable:
    """Holds the newest mark of each client. One thread changes it, any thread may ask.

    A client is a digest of eight bytes, so that a million of them take 120 MB whatever their ids are. Two clients with one digest
    would make a session known that is not there, which costs a device a second attempt. The digests have a key, so nobody can
    choose such an id.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._marks: dict[int, int] = {}
        """The connection of each mark, then the time until which the session is kept: one number takes less than two."""

    def mark(self, client: bytes, connection_id: int, kept_until_ms: int = 0) -> None:
        """A connection has begun, resumed or left a session.

        Args:
            client: Its id, encoded.
            kept_until_ms: Until then the session surely lives, in milliseconds since 1970. 0 = the mark does not say so: it
                takes nothing back that another mark of this connection has said.
        """
        digest = self._digest(client)
        known = self._marks.get(digest, -1) >> _TIME_BITS
        if connection_id > known or (connection_id == known and kept_until_ms):
            self._marks[digest] = connection_id << _TIME_BITS | kept_until_ms

    def end(self, client: bytes, connection_id: int) -> None:
        """The session has ended. connection_id: its last connection; later ones have begun another one."""
        digest = self._digest(client)
        mark = self._marks.get(digest)
        if mark is not None and mark >> _TIME_BITS <= connection_id:
            del self._marks[digest]

    def get(self, client: bytes) -> int | None:
        """Returns the connection of the newest mark; None = the client has no session."""
        mark = self._marks.get(self._digest(client))
        return None if mark is None else mark >> _TIME_BITS

    def kept_until_ms(self, client: bytes) -> int | None:
        """Returns the time until which the client's session surely lives; None = it has no session."""
        mark = self._marks.get(self._digest(client))
        return None if mark is None else mark & _TIME

    def __len__(self) -> int:
        return len(self._marks)

    def _digest(self, client: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(client, digest_size=_DIGEST_BYTES, key=self._key).digest(), "big")
