"""Knows which clients have a session, by the marks of `inflight.subscriptions` (state/records/session_marks.py)."""

import hashlib
import secrets
from typing import Final

_DIGEST_BYTES: Final = 8
_KEY_BYTES: Final = 16


class SessionTable:
    """Holds the newest mark of each client. One thread changes it, any thread may ask.

    A client is a digest of eight bytes, so that a million of them take 110 MB whatever their ids are. Two clients with one digest
    would make a session known that is not there, which costs a device a second attempt. The digests have a key, so nobody can
    choose such an id.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._connections: dict[int, int] = {}

    def mark(self, client: bytes, connection_id: int) -> None:
        """A connection has begun or resumed a session. client: its id, encoded."""
        digest = self._digest(client)
        if connection_id > self._connections.get(digest, -1):
            self._connections[digest] = connection_id

    def end(self, client: bytes, connection_id: int) -> None:
        """The session has ended. connection_id: its last connection; later ones have begun another one."""
        digest = self._digest(client)
        if self._connections.get(digest, connection_id + 1) <= connection_id:
            del self._connections[digest]

    def get(self, client: bytes) -> int | None:
        """Returns the connection of the newest mark; None = the client has no session."""
        return self._connections.get(self._digest(client))

    def __len__(self) -> int:
        return len(self._connections)

    def _digest(self, client: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(client, digest_size=_DIGEST_BYTES, key=self._key).digest(), "big")
