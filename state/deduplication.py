"""Message ids that a session has accepted lately, so that a repeated send is one message."""

import hashlib
from collections import deque
from collections.abc import Iterable

from state.model import MessageId


class RecentMessageIds:
    """The last `window` explicit message ids, as eight-byte digests: the state is rewritten at every activation."""

    __slots__ = ("digests", "window")

    def __init__(self, window: int, digests: Iterable[bytes] = ()) -> None:
        self.window = window
        self.digests: deque[bytes] = deque(digests, maxlen=window)

    def admit(self, message_id: MessageId) -> bool:
        """Remember the id; False if it was known. A window of 0 knows nothing."""
        digest = hashlib.blake2b(message_id.encode(), digest_size=8).digest()
        if digest in self.digests:
            return False
        self.digests.append(digest)
        return True
