"""Keeps what a gateway needs of a session that a client has left here, to serve the client at once when it comes back
(protocol.md, 7).

1. It is kept only if nothing was unfinished: all that was sent has been acknowledged, and the session has nothing else that this
   gateway knows of.
2. The router goes on to offer what comes for the client. It is held in its order, up to what the session's queue surely holds,
   too. A message that the session may end or send in another way than in its turn ends this, and so does a gap.
3. When the client comes back, the gateway must have all that its router had read of the client's messages by then. So what was
   not offered, or was read by another router, ends this, too.
4. It may be forgotten at any time: then the session serves the client, as at any other gateway.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sinks.fast_path.offering import FastPathState
from sinks.mqtt.connection.held_offers import HeldOffers
from sinks.mqtt.connection.known_marks import KnownMarks
from state.commands import OfferPublish
from state.events import Continued
from state.inbound.subscriptions import Subscriptions
from state.model import ClientId, PacketId, Position
from state.records.messages import BCC, CC, EXPIRATION, PRIORITY
from state.records.record import HEADER_BYTES
from state.records.scheduling import CANCEL, COLLAPSE_KEY, DELIVER_AT

MAX_LEFT_SESSIONS: Final = 4_096
"""Sessions that one gateway keeps; beyond, the one that was left first is forgotten."""
LEFT_SESSION_BYTES: Final = 13 << 10
"""Memory of one, besides its offers."""
MAX_LEFT_BYTES: Final = 16 << 20
"""All offers that are held for them."""
_NOT_IN_TURN: Final = frozenset({EXPIRATION, PRIORITY, CC, BCC, DELIVER_AT, COLLAPSE_KEY, CANCEL})


@dataclass(slots=True, eq=False, kw_only=True)
class LeftSession:
    """One of them. The router sees it as a connection that holds what it is offered.

    Attributes:
        connection_id: The client's last connection.
        list_id: Connection id and version of its list of subscriptions.
        after: No message up to here waits for the client.
        is_granted: By the session's grant; else this is known of what the client's own list matches.
        began_at: Below the offset of any message that the list can match, if it is not granted.
        taken_at: The highest offset that was sent here; -1 = none was.
        max_messages, max_bytes: Of what is held.
        known_ids: Digests of message ids, joined.
        marks: By which copies of routed messages are known.
        used_ids, listed_ids, last_id: The packet ids of the fast path that may still be in use, as in Outbox.
        held: What came since.
        wall_ahead_ms: How far the time since 1970 is ahead of the monotonic clock, as of the newest offer.
        needed_to: What has to be held before the client is served (rule 3).
    """

    connection_id: int
    list_id: tuple[int, int]
    after: Position
    is_granted: bool
    began_at: int
    taken_at: int
    max_messages: int
    max_bytes: int
    subscriptions: Subscriptions
    known_ids: bytes
    marks: KnownMarks
    used_ids: dict[PacketId, Position]
    listed_ids: frozenset[PacketId]
    last_id: PacketId
    held: HeldOffers
    wall_ahead_ms: int = 0
    needed_to: Position | None = None
    _bytes: int = 0

    @property
    def fast_path(self) -> FastPathState:
        return FastPathState.HOLDING

    @property
    def continued(self) -> Continued:
        return Continued(
            connection_id=self.connection_id,
            after=self.after,
            is_granted=self.is_granted,
            list_connection_id=self.list_id[0],
            list_version=self.list_id[1],
        )

    @property
    def _last(self) -> Position:
        return self.held.offers[-1].position if self.held.offers else self.after

    @property
    def is_complete(self) -> bool:
        """Returns True if nothing is missing of what was read when the client came back (rule 3)."""
        needed, last = self.needed_to, self._last
        return needed is not None and needed.partition == last.partition and needed.offset <= last.offset

    def offer(self, offer: OfferPublish) -> bool:
        """Holds an offer. Returns False if this session is to be forgotten (rule 2)."""
        partition, last = self._last
        if offer.position.partition != partition:
            return False
        if offer.position.offset <= last:
            return True
        self._bytes += len(offer.payload) + sum(len(name) + len(value or b"") + HEADER_BYTES for name, value in offer.headers)
        is_gap = offer.previous > last
        is_full = len(self.held.offers) >= self.max_messages or self._bytes > self.max_bytes
        if is_gap or is_full or any(name in _NOT_IN_TURN for name, _ in offer.headers):
            return False
        return self.held.add(offer)


class LeftSessions:
    """Those of one gateway, by client. Only `get` may be called on any thread.

    Args:
        newest: Returns a position that no message of a client is above, of those that the router has read; None = it reads none.
    """

    def __init__(self, newest: Callable[[ClientId], Position | None] = lambda client_id: None) -> None:
        self._newest = newest
        self._sessions: OrderedDict[ClientId, LeftSession] = OrderedDict()
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, client_id: ClientId) -> LeftSession | None:
        return self._sessions.get(client_id)

    def keep(self, client_id: ClientId, session: LeftSession) -> None:
        """Keeps the session that a client has just left."""
        self.take(client_id)
        self._sessions[client_id] = session
        if len(self._sessions) > MAX_LEFT_SESSIONS:
            self.take(next(iter(self._sessions)))

    def take(self, client_id: ClientId) -> LeftSession | None:
        """Removes a session, and notes what it has to have by now (rule 3). Returns None if there is none."""
        session = self._sessions.pop(client_id, None)
        if session is not None:
            self._held_bytes -= session.held.size_bytes
            session.needed_to = self._newest(client_id)
        return session

    def offer(self, client_id: ClientId, offers: list[OfferPublish], wall_ahead_ms: int) -> None:
        """Holds what comes for a client that is away. Does nothing for another one."""
        session = self._sessions.get(client_id)
        if session is None:
            return
        session.wall_ahead_ms = wall_ahead_ms
        for offer in offers:
            before = session.held.size_bytes
            is_kept = session.offer(offer)
            self._held_bytes += session.held.size_bytes - before
            if not is_kept or self._held_bytes > MAX_LEFT_BYTES:
                self.take(client_id)
                return


NO_LEFT_SESSIONS: Final = LeftSessions()
