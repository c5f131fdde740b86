"""Holds what a session knows about routing: its list of subscriptions by number, marks, and messages that came too early."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from state.model import Message, Position
from state.outbound.routing.marks import Marks


class ListId(NamedTuple):
    """Numbers a list of the client's subscriptions, as its record of `inflight.subscriptions` does. Later lists are higher.

    Attributes:
        version: Counts the lists within the connection. 0 is the one that the connection began with.
    """

    connection_id: int = 0
    version: int = 0


NO_LIST: Final = ListId()


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyMessage:
    """A routed message for a connection whose CONNECT the session has not read.

    Attributes:
        since_ms: Time at which the session read the message.
    """

    message: Message
    position: Position | None
    since_ms: int


class SessionRouting:
    """The session's half of routing; the rules are in state/outbound/routing/routed.py.

    Attributes:
        list_id: The newest list that the session has read. A session begins with an empty one.
        early: Oldest first.
        kept_until_ms: A client without a session is remembered until then, because of messages that are still on their way;
            None = it need not be remembered.
    """

    __slots__ = ("early", "kept_until_ms", "list_id", "marks")

    def __init__(self) -> None:
        self.list_id = NO_LIST
        self.marks = Marks()
        self.early: list[EarlyMessage] = []
        self.kept_until_ms: int | None = None

    @property
    def is_needed(self) -> bool:
        """Says that a client without a session must be remembered."""
        return self.kept_until_ms is not None or bool(self.early)

    def list_read(self, connection_id: int, version: int) -> None:
        """Records that the session has read a list of its subscriptions. A lower list, which came late, changes nothing."""
        self.list_id = max(self.list_id, ListId(connection_id, version))
