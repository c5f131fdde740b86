"""Recognises copies of routed messages: by the highest mark from each source (`Routing.source`, `Routing.mark`).

A matcher reads each source in order, and a matcher that has crashed begins again behind what its predecessor had confirmed. So a
copy has a mark that the session has reached. Where several messages share a mark, the ids of those of the newest mark are kept
too, as digests.
"""

from typing import Final

from state.model import MessageId
from state.outbound.deduplication import message_digest
from state.records.routing import has_one_message_for_each_mark

MAX_SOURCES: Final = 64
"""Sources of which the mark is kept; the one that was least recently used is dropped. A client hears from few partitions."""


class Marks:
    """The highest marks.

    Attributes:
        newest: The highest mark by source, the least recently used source first.
        digests: By source, of the messages with its highest mark; only where a mark has several messages.
    """

    __slots__ = ("digests", "newest")

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}
        self.digests: dict[int, dict[bytes, None]] = {}

    def admit(self, source: int, mark: int, message_id: MessageId) -> bool:
        """Remembers a message. Returns False if it is a copy of one that was remembered."""
        newest, is_single = self.newest.get(source, -1), has_one_message_for_each_mark(source)
        if mark < newest or (mark == newest and is_single):
            return False
        if not is_single:
            digests = self.digests.get(source, {}) if mark == newest else {}
            digest = message_digest(message_id)
            if digest in digests:
                return False
            digests[digest] = None
            self.digests[source] = digests
        self._set(source, mark)
        return True

    def sent_by_gateway(self, source: int, mark: int, message_id: MessageId) -> None:
        """Remembers a message that a gateway has sent."""
        self.admit(source, mark, message_id)

    def for_grant(self) -> tuple[tuple[int, int], ...]:
        """Returns the marks by which a gateway recognises copies."""
        return tuple(self.newest.items())

    def _set(self, source: int, mark: int) -> None:
        self.newest.pop(source, None)
        self.newest[source] = mark
        if len(self.newest) > MAX_SOURCES:
            oldest = next(iter(self.newest))
            del self.newest[oldest]
            self.digests.pop(oldest, None)
