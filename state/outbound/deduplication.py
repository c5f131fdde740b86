"""What a session has accepted lately, so that a repeated send is one message."""

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Final

from state.model import MessageId

DIGEST_BYTES: Final = 8


class RecentMessageIds:
    """The last `window` explicit message ids, as eight-byte digests: the state is rewritten at every activation."""

    __slots__ = ("digests", "window")

    def __init__(self, window: int, digests: Iterable[bytes] = ()) -> None:
        self.window = window
        self.digests: deque[bytes] = deque(digests, maxlen=window)

    def contains(self, message_id: MessageId) -> bool:
        """A window of 0 knows nothing."""
        return message_digest(message_id) in self.digests

    def remember(self, message_id: MessageId) -> bytes:
        """An id that is not known, in place of the oldest one if the window is full. Returns its digest."""
        digest = message_digest(message_id)
        self.digests.append(digest)
        return digest


class ReturnsOfBatch:
    """The dead letters that came from the latest micro-batch which sent any, as digests of their ids.

    That is all that has to be known. A micro-batch that is executed again writes its dead letters a second time, with the same
    time, and before any later one can write its own; so a copy comes after the letters of its own batch and before all others.
    A window of a fixed length would not do: one batch may send thousands to one queue.
    """

    __slots__ = ("batch_ms", "digests")

    def __init__(self, batch_ms: int = 0, digests: Iterable[bytes] = ()) -> None:
        self.batch_ms = batch_ms
        self.digests = dict.fromkeys(digests)

    def admit(self, return_id: str, batch_ms: int) -> bool:
        """Remember the letter; False if it was known. batch_ms: when the message died. A clock that steps back loses nothing."""
        if batch_ms != self.batch_ms:
            self.batch_ms = batch_ms
            self.digests.clear()
        digest = message_digest(return_id)
        if digest in self.digests:
            return False
        self.digests[digest] = None
        return True

    def forget(self) -> None:
        """No copy is expected any more."""
        self.digests.clear()


def message_digest(text: str) -> bytes:
    """Of a message id or a return id; gateways are told the same ones (docs/protocol.md, section 7)."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
