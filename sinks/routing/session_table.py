"""Knows which clients have a session, by the marks of `inflight.subscriptions` (state/records/session_marks.py)."""

import hashlib
import secrets
from typing import Final

from state.records.session_marks import SessionMark

_DIGEST_BYTES: Final = 8
_KEY_BYTES: Final = 16
_TIME_BITS: Final = 64
_TIME: Final = (1 << _TIME_BITS) - 1
_LEFT_BITS: Final = 33
_LEFT: Final = (1 << _LEFT_BITS) - 1
_SETTLED_BIT: Final = _TIME_BITS + _LEFT_BITS
_OTHER_BITS: Final = _SETTLED_BIT + 1


class SessionTable:
    """Holds the newest mark of each client. One thread changes it, any thread may ask.

    A client is a digest of eight bytes, so that a million of them take 120 MB whatever their ids are. Two clients with one digest
    would make a session known that is not there, which costs a device a second attempt. The digests have a key, so nobody can
    choose such an id.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._marks: dict[int, int] = {}
        """The connection of each mark, `wills_settled`, `left_s` plus one, and the time until which the session is kept: one
        number takes less than four."""

    def mark(self, client: bytes, mark: SessionMark) -> None:
        """A connection has begun, resumed or left a session.

        Args:
            client: Its id, encoded.
            mark: Without `kept_until_ms` it takes nothing back that another mark of its connection has said.
        """
        digest = self._digest(client)
        known = self._marks.get(digest, -1) >> _OTHER_BITS
        if mark.connection_id > known or (mark.connection_id == known and mark.kept_until_ms):
            left = 0 if mark.left_s is None else mark.left_s + 1
            others = (mark.connection_id << 1 | mark.wills_settled) << _LEFT_BITS | left
            self._marks[digest] = others << _TIME_BITS | mark.kept_until_ms

    def end(self, client: bytes, connection_id: int) -> None:
        """Removes a session that has ended.

        Args:
            connection_id: The session's last connection; later ones have begun another session.
        """
        digest = self._digest(client)
        mark = self._marks.get(digest)
        if mark is not None and mark >> _OTHER_BITS <= connection_id:
            del self._marks[digest]

    def get(self, client: bytes) -> SessionMark | None:
        """Returns the newest mark; None = the client has no session."""
        mark = self._marks.get(self._digest(client))
        if mark is None:
            return None
        left = mark >> _TIME_BITS & _LEFT
        is_settled = bool(mark >> _SETTLED_BIT & 1)
        return SessionMark(mark >> _OTHER_BITS, mark & _TIME, left - 1 if left else None, is_settled)

    def __len__(self) -> int:
        return len(self._marks)

    def _digest(self, client: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(client, digest_size=_DIGEST_BYTES, key=self._key).digest(), "big")
