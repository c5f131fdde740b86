"""The grant of one connection, and what was taken under it (docs/protocol.md, 7). It knows neither the wire nor Kafka."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from sinks.fast_path.chain import Chain, Link
from sinks.fast_path.known_message_ids import KnownMessageIds
from sinks.fast_path.offering import PathHere
from sinks.fast_path.packet_ids import FastPacketIds
from state.commands import OpenFastPath
from state.inbound.subscriptions import Subscriptions
from state.model import Message, PacketId, Position, QoS, Subscription
from state.outbound.deduplication import message_digest

MAX_RESUBSCRIBED: Final = 1_000
"""Topic filters."""


class Taken(NamedTuple):
    """digest: of the message id, None = the backend did not name it. taken_ms: of a monotonic clock."""

    packet_id: PacketId
    digest: bytes | None
    taken_ms: int


class Adopted(NamedTuple):
    """What a grant says that the session has read: so many messages, and the time from taking them to this, together."""

    messages: int
    delay_ms: int


class FastPath:
    """The session names the partition of the client's messages, which changes only when partitions are added. What was taken in
    another one is known until a grant speaks of that one again."""

    __slots__ = ("_chains", "_is_open", "_known_ids", "_partition", "_resubscribed", "_subscriptions", "_taken", "packet_ids")

    def __init__(self) -> None:
        self.packet_ids = FastPacketIds()
        self._is_open = False
        self._partition = -1
        self._chains: dict[int, Chain] = {}
        self._taken: dict[Position, Taken] = {}
        self._known_ids = KnownMessageIds()
        self._subscriptions = Subscriptions()
        self._resubscribed: dict[str, Subscription | None] = {}
        """By filter: what the device has changed on this connection, None = it has unsubscribed."""

    # --- from the session -----------------------------------------------------------------------------------------------------

    def open(self, grant: OpenFastPath, now_ms: int) -> Adopted:
        partition, offset = grant.after
        self._chains.setdefault(partition, Chain()).handled(offset)
        self._partition = partition
        self._is_open = True  # the last: a router asks `here` on its own thread
        adopted = self._forget_adopted(partition, grant.adopted, now_ms)
        self.packet_ids.granted(grant.after, grant.ids_in_use, grant.last_id)
        self._known_ids.granted(
            grant.recent_ids,
            is_snapshot=grant.is_snapshot,
            unadopted=[taken.digest for taken in self._taken.values() if taken.digest is not None],
        )
        if grant.subscriptions is not None:
            self._subscriptions = Subscriptions()
            for subscription in grant.subscriptions:
                self._subscriptions.add(subscription)
            # The session may have written this before it has read all that the device has changed. The last word about a filter
            # counts, so it does no harm to say again what the session knew.
            for topic_filter, change in self._resubscribed.items():
                self._resubscribe(topic_filter, change)
        return adopted

    def _forget_adopted(self, partition: int, offset: int, now_ms: int) -> Adopted:
        """What the session has read, it does not send as if for the first time."""
        adopted = [position for position in self._taken if position.partition == partition and position.offset <= offset]
        return Adopted(len(adopted), sum(now_ms - self._taken.pop(position).taken_ms for position in adopted))

    def close(self) -> None:
        self._is_open = False

    def was_taken(self, position: Position) -> bool:
        """A PUBLISH of the session that is a second copy of what was taken here."""
        return position in self._taken

    def sent_by_session(self, position: Position) -> None:
        """The session sends for the first time what was not taken here."""
        chain = self._chains.get(position.partition)
        if chain is not None and position.offset > chain.after:
            chain.break_at(position.offset)

    # --- from the device --------------------------------------------------------------------------------------------------------

    def subscribed(self, subscriptions: Iterable[Subscription]) -> None:
        """It has; from the answer on this holds [MQTT-3.8.4-8]."""
        for subscription in subscriptions:
            self._resubscribe(subscription.topic_filter, subscription)

    def unsubscribed(self, topic_filters: Iterable[str]) -> None:
        """It has; from the answer on nothing is sent by these [MQTT-3.10.4-1]."""
        for topic_filter in topic_filters:
            self._resubscribe(topic_filter, None)

    def _resubscribe(self, topic_filter: str, change: Subscription | None) -> None:
        self._resubscribed[topic_filter] = change
        if change is None:
            self._subscriptions.discard(topic_filter)
        else:
            self._subscriptions.add(change)

    # --- offers -----------------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Not for a device that changes ever new subscriptions on one connection: each has to be remembered."""
        return self._is_open and len(self._resubscribed) <= MAX_RESUBSCRIBED

    @property
    def here(self) -> PathHere:
        """What becomes of an offer now. On any thread."""
        if not self.is_open:
            return PathHere.CLOSED
        return PathHere.OPEN if self._chains[self._partition].broken_at is None else PathHere.BROKEN

    @property
    def unadopted(self) -> int:
        """Messages taken, of which the session has not said that it has read them."""
        return len(self._taken)

    def link(self, position: Position, previous: int) -> Link | None:
        """None = the grant is for another partition."""
        return self._chains[position.partition].link(previous, position.offset) if position.partition == self._partition else None

    def refuse(self, position: Position) -> None:
        """This offer is left to the session, and what follows it."""
        if position.partition == self._partition:
            self._chains[self._partition].break_at(position.offset)

    def knows(self, message: Message) -> bool:
        """A message whose id the backend has named may be a repetition."""
        return self._known_ids.knows(message_digest(message.message_id))

    def qos_of(self, message: Message) -> QoS:
        """As the session caps it [MQTT-3.8.4-8]."""
        return self._subscriptions.capped_qos(message.topic, message.qos)

    def take(self, position: Position, message: Message, packet_id: PacketId, *, explicit_id: bool, now_ms: int) -> int:
        """The offer is taken. Returns the offset up to which everything was handled or taken before."""
        digest = message_digest(message.message_id) if explicit_id else None
        self._taken[position] = Taken(packet_id, digest, now_ms)
        if packet_id:
            self.packet_ids.use(packet_id, position)
        if digest is not None:
            self._known_ids.remember(digest)
        return self._chains[position.partition].take(position.offset)
