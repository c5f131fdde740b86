"""Which offers of one partition may be taken: each once, in their order, and none past a message that goes by the slow path.

1. `after` is the offset up to which all of the client's messages were handled by the session or taken here. An offer is the next
   one only if its router knows of no message between `after` and it.
2. An offer that is refused breaks the chain, and so does a message that the session sends for the first time above `after`: what
   follows is the session's, until it says that it has handled the one at which the chain broke.
"""

from enum import Enum


class Link(Enum):
    """What an offer is to the chain."""

    NEXT = "next"
    KNOWN = "known"
    """It was handled or taken before."""
    GAP = "gap"
    """A message between is missing."""
    BROKEN = "broken"


class Chain:
    """after: -1 = nothing is known of the partition. broken_at: the offset, None = it is not broken."""

    __slots__ = ("after", "broken_at")

    def __init__(self) -> None:
        self.after = -1
        self.broken_at: int | None = None

    def link(self, previous: int, offset: int) -> Link:
        if offset <= self.after:
            return Link.KNOWN
        if self.broken_at is not None:
            return Link.BROKEN
        return Link.NEXT if previous <= self.after else Link.GAP

    def take(self, offset: int) -> int:
        """An offer that is NEXT. Returns `after` as it was before."""
        previous, self.after = self.after, offset
        return previous

    def break_at(self, offset: int) -> None:
        """This message goes by the slow path."""
        self.broken_at = offset if self.broken_at is None else max(self.broken_at, offset)

    def handled(self, offset: int) -> None:
        """The session has handled everything up to this."""
        if self.broken_at is not None and self.broken_at <= offset:
            self.broken_at = None
        self.after = max(self.after, offset)
