"""The message ids of which a repetition may be known to the session: those that grants name, and those taken since."""

from collections.abc import Iterable
from typing import Final

from state.outbound.deduplication import DIGEST_BYTES

_SPARE: Final = 2
"""The session may have read ids in another order than they became known here, by at most a window's length."""


class KnownMessageIds:
    """As digests (state/outbound/deduplication.py). window: how many ids the session remembers."""

    __slots__ = ("_digests", "_most")

    def __init__(self, window: int) -> None:
        self._most = _SPARE * window
        self._digests: dict[bytes, None] = {}

    def granted(self, recent_ids: bytes, *, of_all: bool, unadopted: Iterable[bytes]) -> None:
        """recent_ids, of_all: as in OpenFastPath. unadopted: of what was taken and the session has not read yet."""
        ids = [recent_ids[start : start + DIGEST_BYTES] for start in range(0, len(recent_ids), DIGEST_BYTES)]
        if of_all:
            self._digests = dict.fromkeys([*ids, *unadopted])
            return
        for digest in ids:
            self.remember(digest)

    def knows(self, digest: bytes) -> bool:
        return digest in self._digests

    def remember(self, digest: bytes) -> None:
        self._digests[digest] = None
        while len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]
