"""Recognises copies of routed messages on one connection, as the session does (state/outbound/routing/marks.py).

1. Known are the marks of what was sent here, and, by its grants, of what the session has handled. A lower mark is a copy, and so
   is the same one of a source that has one message for each mark.
2. Where several messages share a mark, those that were sent here are known by digest. That tells a copy as long as all of that
   mark were sent here. After `forget_messages` the session alone can tell one.
"""

from collections.abc import Iterable
from typing import Final

from state.model import MessageId, Routing
from state.outbound.deduplication import message_digest
from state.records.routing import has_one_message_for_each_mark

MOST_DIGESTS: Final = 64
"""Messages of one mark that are known, at some 100 bytes each. A connection keeps them until there is a higher mark."""


class KnownMarks:
    """The marks of one connection."""

    __slots__ = ("_digests", "_newest")

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self._digests: dict[int, dict[bytes, None]] = {}

    def is_copy(self, routing: Routing, message_id: MessageId) -> bool | None:
        """Returns whether the message came before; None = only the session can tell."""
        newest = self._newest.get(routing.source, -1)
        if routing.mark != newest or has_one_message_for_each_mark(routing.source):
            return routing.mark <= newest
        digests = self._digests.get(routing.source)
        if digests is None or len(digests) >= MOST_DIGESTS:
            return None
        return message_digest(message_id) in digests

    def sent(self, routing: Routing, message_id: MessageId) -> None:
        """Remembers a message that is sent here."""
        source, newest = routing.source, self._newest.get(routing.source, -1)
        if not has_one_message_for_each_mark(source):
            if routing.mark > newest:
                self._digests[source] = {}
            if (digests := self._digests.get(source)) is not None:
                digests[message_digest(message_id)] = None
        self._newest[source] = max(routing.mark, newest)

    def handled(self, marks: Iterable[tuple[int, int]]) -> None:
        """Remembers what a grant says."""
        for source, mark in marks:
            if mark > self._newest.get(source, -1):
                self._newest[source] = mark
                self._digests.pop(source, None)

    def forget_messages(self) -> None:
        """Messages may have been handled that were not sent here."""
        self._digests.clear()
