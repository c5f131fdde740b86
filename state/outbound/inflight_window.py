"""Holds the inflight window: messages given to the client and not finished, in the order of first transmission.

The window owns the phase of every exchange. `begin` and the steps ask the table (state/transitions.py). Only `_move` sets the
phase, and keeps the invariant that an exchange is in the window while it is not ABSENT. The caller carries out the action.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from state.model import MAX_SESSION_PACKET_ID, Message, PacketId, Position, QoS
from state.records.messages import message_bytes
from state.transitions import OutboundAction, OutboundEvent, OutboundPhase, late_outbound_step, outbound_step


@dataclass(slots=True, kw_only=True)
class Delivery:
    """A message on its way through the session, in the queue or in the window.

    Attributes:
        qos: The QoS for this client: the message's, lowered by the subscriptions at the time of acceptance.
        order: Grows with each message accepted. A message that returns to the queue is sorted by it.
        attempts: Transmissions that the client had the time to answer. A connection that ends early gives one back.
        crashes: Transmissions that the client got and answered by losing the connection.
        first_sent_ms: None = never sent.
        queue_ttl_ends_ms: End of the policy's time to live in the queue; None = the policy sets none.
        last_refusal: Reason code of the client's last refusal; 0 = none.
        position: Position in `inflight.messages`; None = it has none, or no gateway can be sending it by the fast path.
        fast_path: A gateway sent it before the session did.
    """

    message: Message
    qos: QoS
    order: int
    attempts: int = 0
    first_sent_ms: int | None = None
    queue_ttl_ends_ms: int | None = None
    last_refusal: int = 0
    position: Position | None = None
    fast_path: bool = False
    crashes: int = 0

    @property
    def transmissions(self) -> int:
        """The number of the newest transmission, for ledger and receipt. Those that the client cannot have got do not count."""
        return self.attempts + self.crashes

    @property
    def expires_at_ms(self) -> int | None:
        """The time at which the message expires in the queue, by its own time to live or the queue's; None = never.

        The earlier one counts. The device sees only the message's own, as Message Expiry Interval.
        """
        own, queue = self.message.expires_at_ms, self.queue_ttl_ends_ms
        if own is None or queue is None:
            return queue if own is None else own
        return min(own, queue)

    @property
    def size_bytes(self) -> int:
        """Returns the bytes that the message costs while it is stored."""
        return message_bytes(self.message)

    def expired(self, now_ms: int, *, at_once: bool = False) -> bool:
        """Returns True if the message has expired.

        Args:
            at_once: The message can be sent in this activation. Then a time to live of 0 has not expired.
        """
        own, queue = self.message.expires_at_ms, self.queue_ttl_ends_ms
        if at_once and self.message.expiration_ms == 0:
            own = None
        if at_once and queue == self.message.accepted_ms:
            queue = None
        return (own is not None and own <= now_ms) or (queue is not None and queue <= now_ms)


@dataclass(slots=True, kw_only=True)
class InflightEntry:
    """One unfinished exchange. Only the window sets `phase`.

    Attributes:
        sent_ms: When the packet that awaits its acknowledgement was last sent; the retry timer starts there.
        timeouts: How often the wait for that acknowledgement ran out; selects the next wait of a schedule.
        first_connection_id: The connection on which the packet id was first used for this message.
        overdue: The ledger says that the acknowledgement of this transmission is overdue, and nothing follows from it.
        given_back_by: The newest connection whose end gave an attempt back that has not been counted as a crash; 0 = none.
    """

    packet_id: PacketId
    phase: OutboundPhase
    delivery: Delivery
    sent_ms: int
    timeouts: int = 0
    first_connection_id: int = 0
    given_back_by: int = 0
    overdue: bool = False


class InflightWindow:
    """Entries by packet id, in the order of first transmission whatever the ids: replay must follow that order.

    Attributes:
        limit: How many QoS 1 and 2 messages may be unfinished. It may fall below the number of entries on resume; then the window
            drains first. The number of packet ids of a session limits it too. What is read ahead (transmission.py) may exceed it.
    """

    __slots__ = ("_entries", "limit")

    def __init__(self, limit: int) -> None:
        self._entries: dict[PacketId, InflightEntry] = {}
        self.limit = limit

    @property
    def send_quota(self) -> int:
        return max(0, min(self.limit, MAX_SESSION_PACKET_ID) - len(self._entries))

    def begin(self, packet_id: PacketId, delivery: Delivery, now_ms: int, *, connection_id: int) -> OutboundAction:
        """Makes the first step of an exchange, which becomes the newest in the window.

        Args:
            packet_id: Must be free.
            delivery: Of QoS 1 or 2.
            connection_id: The connection to which the PUBLISH goes.
        """
        entry = InflightEntry(
            packet_id=packet_id,
            phase=OutboundPhase.ABSENT,
            delivery=delivery,
            sent_ms=now_ms,
            first_connection_id=connection_id,
        )
        first = OutboundEvent.SEND_QOS_1 if delivery.qos == QoS.AT_LEAST_ONCE else OutboundEvent.SEND_QOS_2
        target, action = outbound_step(entry.phase, first)
        self._move(entry, target)
        return action

    def step(self, packet_id: PacketId, event: OutboundEvent) -> OutboundAction:
        """Makes a further step of the exchange under this packet id, if there is one. Raises SessionMisuse like
        `outbound_step`."""
        entry = self._entries.get(packet_id)
        if entry is None:
            return outbound_step(OutboundPhase.ABSENT, event)[1]
        target, action = outbound_step(entry.phase, event)
        self._move(entry, target)
        return action

    def late_step(self, entry: InflightEntry, event: OutboundEvent) -> OutboundAction:
        """Applies an acknowledgement from an earlier connection to the exchange (`late_outbound_step`)."""
        target, action = late_outbound_step(entry.phase, event)
        self._move(entry, target)
        return action

    def restore(self, entry: InflightEntry) -> None:
        """Adds an exchange from the stored session, as the newest."""
        self._entries[entry.packet_id] = entry

    def get(self, packet_id: PacketId) -> InflightEntry | None:
        return self._entries.get(packet_id)

    def at(self, position: Position) -> InflightEntry | None:
        """Returns the entry whose message has this position."""
        return next((entry for entry in self._entries.values() if entry.delivery.position == position), None)

    def index_of(self, entry: InflightEntry) -> int:
        """Returns how many entries are older."""
        return list(self._entries).index(entry.packet_id)

    def move_newest(self, index: int) -> None:
        """Moves the newest entry to this index, counted from the oldest."""
        *older, newest = self._entries.items()
        older.insert(index, newest)
        self._entries = dict(older)

    def restart_timer(self, index: int, now_ms: int) -> None:
        """Counts the wait of the n-th oldest entry (1 = the oldest) from now, if there is such an entry."""
        if 0 < index <= len(self._entries):
            next(islice(self._entries.values(), index - 1, None)).sent_ms = now_ms

    def oldest_sent_ms(self) -> int | None:
        return min((entry.sent_ms for entry in self._entries.values()), default=None)

    def oldest(self, count: int) -> Iterator[InflightEntry]:
        """Returns a snapshot of the `count` oldest entries."""
        return iter(tuple(islice(self._entries.values(), count)))

    def beyond(self, count: int) -> Iterator[InflightEntry]:
        """Iterates over all entries but the `count` oldest ones. The window must not change meanwhile."""
        return islice(self._entries.values(), count, None)

    def __contains__(self, packet_id: object) -> bool:
        return packet_id in self._entries

    def __iter__(self) -> Iterator[InflightEntry]:
        """Iterates over a snapshot, so entries may be removed meanwhile."""
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def _move(self, entry: InflightEntry, target: OutboundPhase) -> None:
        entry.phase = target
        if target is OutboundPhase.ABSENT:
            self._entries.pop(entry.packet_id, None)
        else:
            self._entries[entry.packet_id] = entry  # a present entry keeps its place in the order
