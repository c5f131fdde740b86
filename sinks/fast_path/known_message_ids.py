"""The message ids of which a repetition may be known to the session: those that grants name, and those taken since."""

from collections.abc import Iterable

from state.outbound.deduplication import DIGEST_BYTES


class KnownMessageIds:
    """As digests (state/outbound/deduplication.py). Now and then the session says all of its own; others are forgotten then."""

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}

    def granted(self, recent_ids: bytes, *, is_snapshot: bool, unadopted: Iterable[bytes]) -> None:
        """recent_ids, is_snapshot: as in OpenFastPath. unadopted: of what was taken and the session has not read yet."""
        if is_snapshot:
            self._digests = dict.fromkeys(unadopted)
        for start in range(0, len(recent_ids), DIGEST_BYTES):
            self._digests[recent_ids[start : start + DIGEST_BYTES]] = None

    def knows(self, digest: bytes) -> bool:
        return digest in self._digests

    def remember(self, digest: bytes) -> None:
        self._digests[digest] = None
