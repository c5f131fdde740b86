"""The inflight window: what has been given to the client and is not finished, in the order in which it was first sent.

It owns the phase of every exchange. `begin` and the steps ask the table (state/transitions.py); `_move` alone sets the phase, and
keeps the rule that an exchange is in the window for as long as it is not ABSENT. What the action asks for is the caller's work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from state.model import MAX_SESSION_PACKET_ID, Message, PacketId, Position, QoS
from state.outbound.packet_size import properties_bytes
from state.transitions import OutboundAction, OutboundEvent, OutboundPhase, late_outbound_step, outbound_step


@dataclass(slots=True, kw_only=True)
class Delivery:
    """A message on its way through the session, in the queue or in the window.

    qos: with which it goes to this client: the message's, lowered by the subscriptions of the moment when the session took it.
    order: grows with each message that the session takes; a message that comes back to the queue finds its old place by it.
    attempts: transmissions that the client could have received; a lost connection gives one back.
    first_sent_ms: None = never sent. queue_ttl_ends_ms: until when the queue may hold it, None = the policy sets no limit.
    last_refusal: the reason code with which the client last refused it, 0 = never.
    position: in `inflight.messages`, None = it has none, or no gateway can be sending it by the fast path any more.
    fast_path: a gateway has sent it before the session did.
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

    @property
    def expires_at_ms(self) -> int | None:
        """When it may no longer be taken from the queue: its own time to live or the queue's, whichever ends first.

        Only its own is the Message Expiry Interval that the device sees.
        """
        own, queue = self.message.expires_at_ms, self.queue_ttl_ends_ms
        if own is None or queue is None:
            return queue if own is None else own
        return min(own, queue)

    @property
    def size_bytes(self) -> int:
        """Of payload, properties and headers."""
        message = self.message
        headers = sum(len(name) + len(value) for name, value in message.headers)
        return len(message.payload) + properties_bytes(message.properties) + headers

    def expired(self, now_ms: int, *, at_once: bool = False) -> bool:
        """at_once: it can be sent in this very activation, which is all that a time to live of 0 asks for."""
        own, queue = self.message.expires_at_ms, self.queue_ttl_ends_ms
        if at_once and self.message.expiration_ms == 0:
            own = None
        if at_once and queue == self.message.accepted_ms:
            queue = None
        return (own is not None and own <= now_ms) or (queue is not None and queue <= now_ms)


@dataclass(slots=True, kw_only=True)
class InflightEntry:
    """One unfinished exchange. Only the window sets `phase`.

    sent_ms: when the packet that is now waited for was last sent; the retry clock starts there.
    timeouts: how often the wait for that packet's answer has been in vain; picks the next wait from a schedule.
    first_connection_id: the connection on which the packet id was first used for this message.
    """

    packet_id: PacketId
    phase: OutboundPhase
    delivery: Delivery
    sent_ms: int
    timeouts: int = 0
    first_connection_id: int = 0


class InflightWindow:
    """Entries by packet id. Iteration order is the order of first transmission, whatever the ids: replay must follow it.

    limit: how many QoS 1 and 2 messages may be unfinished; may shrink below the number of entries on resume, and then the window
    drains first: `send_quota` is never negative. Nor is it larger than the packet ids that the session has, whatever
    `prefetch` adds.
    """

    __slots__ = ("_entries", "limit")

    def __init__(self, limit: int) -> None:
        self._entries: dict[PacketId, InflightEntry] = {}
        self.limit = limit

    @property
    def send_quota(self) -> int:
        return max(0, min(self.limit, MAX_SESSION_PACKET_ID) - len(self._entries))

    def begin(self, packet_id: PacketId, delivery: Delivery, now_ms: int, *, connection_id: int) -> OutboundAction:
        """The first step of an exchange; it becomes the youngest in the window. packet_id: must be free.

        delivery: of QoS 1 or 2. connection_id: where the PUBLISH goes.
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
        """A further step of the exchange under this packet id, or of none. Raises SessionMisuse like `outbound_step`."""
        entry = self._entries.get(packet_id)
        if entry is None:
            return outbound_step(OutboundPhase.ABSENT, event)[1]
        target, action = outbound_step(entry.phase, event)
        self._move(entry, target)
        return action

    def late_step(self, entry: InflightEntry, event: OutboundEvent) -> OutboundAction:
        """What an acknowledgement from an earlier connection does to the exchange (`late_outbound_step`)."""
        target, action = late_outbound_step(entry.phase, event)
        self._move(entry, target)
        return action

    def restore(self, entry: InflightEntry) -> None:
        """An exchange as it was stored; it becomes the youngest."""
        self._entries[entry.packet_id] = entry

    def get(self, packet_id: PacketId) -> InflightEntry | None:
        return self._entries.get(packet_id)

    def at(self, position: Position) -> InflightEntry | None:
        """The entry whose message has this position."""
        return next((entry for entry in self._entries.values() if entry.delivery.position == position), None)

    def index_of(self, entry: InflightEntry) -> int:
        """How many entries are older."""
        return list(self._entries).index(entry.packet_id)

    def move_newest(self, index: int) -> None:
        """The youngest entry is put where so many are older."""
        *older, youngest = self._entries.items()
        older.insert(index, youngest)
        self._entries = dict(older)

    def restart_timer(self, index: int, now_ms: int) -> None:
        """The entry at this place, 1 = the oldest, is sent now, if there is one."""
        if 0 < index <= len(self._entries):
            next(islice(self._entries.values(), index - 1, None)).sent_ms = now_ms

    def oldest_sent_ms(self) -> int | None:
        return min((entry.sent_ms for entry in self._entries.values()), default=None)

    def oldest(self, count: int) -> Iterator[InflightEntry]:
        """A snapshot of so many entries."""
        return iter(tuple(islice(self._entries.values(), count)))

    def __contains__(self, packet_id: object) -> bool:
        return packet_id in self._entries

    def __iter__(self) -> Iterator[InflightEntry]:
        """A snapshot: entries may be removed while iterating."""
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def _move(self, entry: InflightEntry, target: OutboundPhase) -> None:
        entry.phase = target
        if target is OutboundPhase.ABSENT:
            self._entries.pop(entry.packet_id, None)
        else:
            self._entries[entry.packet_id] = entry  # an entry that is there already keeps its place
