"""Remembers what a session has recently accepted, so that a repeated send is one message."""

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Final

from state.model import MessageId

DIGEST_BYTES: Final = 8


class RecentMessageIds:
    """The last `window` explicit message ids, as eight-byte digests because each activation writes the state again."""

    __slots__ = ("digests", "window")

    def __init__(self, window: int, digests: Iterable[bytes] = ()) -> None:
        self.window = window
        self.digests: deque[bytes] = deque(digests, maxlen=window)

    def contains(self, message_id: MessageId) -> bool:
        """Returns True if the id is remembered; always False with a window of 0."""
        return message_digest(message_id) in self.digests

    def remember(self, message_id: MessageId) -> bytes:
        """Adds an id that is not remembered, and drops the oldest one if the window is full. Returns the digest."""
        digest = message_digest(message_id)
        self.digests.append(digest)
        return digest

    def forget(self, message_id: MessageId) -> None:
        """Forgets an id, because the message was not delivered and may come again."""
        if self.contains(message_id):
            self.digests.remove(message_digest(message_id))


class ReturnsOfBatch:
    """The dead letters from the newest micro-batch that sent any, as digests of their ids.

    One micro-batch is enough. When it is executed again it writes its dead letters a second time, with the same time, before a
    later one can write any. So a copy follows the letters of its own batch and precedes all others. A window of fixed length
    would not be enough, because one batch may send thousands to one queue.
    """

    __slots__ = ("batch_ms", "digests")

    def __init__(self, batch_ms: int = 0, digests: Iterable[bytes] = ()) -> None:
        self.batch_ms = batch_ms
        self.digests = dict.fromkeys(digests)

    def admit(self, return_id: str, batch_ms: int) -> bool:
        """Remembers the letter. A clock that goes back loses nothing.

        Args:
            batch_ms: Time of the death, which is the time of the micro-batch.

        Returns:
            False if the letter was remembered already.
        """
        if batch_ms != self.batch_ms:
            self.batch_ms = batch_ms
            self.digests.clear()
        digest = message_digest(return_id)
        if digest in self.digests:
            return False
        self.digests[digest] = None
        return True

    def forget(self) -> None:
        """Forgets all letters, because no copy is expected any more."""
        self.digests.clear()


def message_digest(text: str) -> bytes:
    """Returns the digest of a message id or return id. Grants carry the same digests (protocol.md, section 7)."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
