"""The fast path on one connection: the session's grant, and the offers of routers that it covers (protocol.md, 7).

1. An offer is taken if no `OfferRefusal` holds. A refusal costs latency and nothing else, so whatever the session might decide
   in another way is refused. The offers of a partition are a chain: each is taken once, in their order, and none past a message
   that goes by the slow path. An offer that only comes too early (`OfferHold`) is held, and those behind it, until a grant
   comes, a slot is free, or the session sends it.
2. A message that is taken has a packet id (`Outbox.reserve`), and `FastSent` with the whole message goes to the log. It is
   written when Kafka has confirmed that and a slot on the wire is free.
3. What was taken is remembered until a grant says that the session has read it; until then a PUBLISH of the session for it is a
   second copy.
4. The session names the partition of the client's messages, which changes only when partitions are added. What was taken in
   another one is known until a grant speaks of that one again.
5. What the device subscribes to holds at once. A grant that was written before the session has read it takes nothing back: the
   last word about a filter counts, so it does no harm to say again what the session knew.
6. A routed message that comes again has a new position, but no higher mark (known_marks.py). Known are the marks of what was
   taken here, and of all before the grant. What lies between breaks the chain, or leaves a gap, until a grant has its mark.
7. A routed message names the list of subscriptions that matched it. If that is the connection's own list, its QoS holds. If the
   own list is newer, and of the same connection, its filters decide. Else, or if no filter of it matches, the session decides,
   which knows when it began.
8. The connection that begins a session needs no grant for what is routed by its own list: none of that is older (`begin`). The
   chain goes on over other messages of the client, which are left to the session. A grant is needed again behind one that the
   session closes.
9. So does a connection of a client that left its session here (left_session.py): it goes on where the connection before it had
   stopped. What is of QoS 2 waits until the session has accepted the connection: one that refuses it would send that again.

Times are milliseconds: now_ms of a monotonic clock, wall_ms since 1970.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from sinks.fast_path.offering import FastPathState
from sinks.host.outbox import FastPublish, Outbox
from sinks.mqtt.codec.packets import Connect, EncodePublish
from sinks.mqtt.connection.held_offers import HeldOffers
from sinks.mqtt.connection.known_marks import KnownMarks
from sinks.mqtt.connection.left_session import LeftSession
from sinks.mqtt.settings import GatewaySettings
from sinks.mqtt_topics import is_shared
from state.commands import OfferPublish, OpenFastPath, SendPublish
from state.events import FastSent, MessageSubmitted
from state.inbound.subscriptions import Subscriptions
from state.model import Message, Position, QoS, Routing, Subscription
from state.outbound.deduplication import DIGEST_BYTES, message_digest
from state.records.messages import BCC, CC, message_event
from state.records.record import Header, accepted_at, position
from state.records.scheduling import DELIVER_AT, collapse_key

MAX_RESUBSCRIBED: Final = 1_000
"""Topic filters that a device may change on one connection, because each has to be remembered; beyond, it has no fast path."""
_MOST_UNADOPTED: Final = 32_768
_COPIES: Final = frozenset((CC, BCC))


class OfferRefusal(StrEnum):
    """Why an offer is left to the session."""

    PARTITION = "partition"
    """The grant is for another one."""
    NO_GRANT = "no_grant"
    """The session is new, and the message does not come by the subscriptions of this connection."""
    PRESSURE = "pressure"
    BURST = "burst"
    """It would be held, and the router has more to read than it can."""
    FULL = "full"
    """Too much is held."""
    SIZE = "size"
    INVALID = "invalid"
    """The record breaks the contract of `inflight.messages`, or MQTT cannot carry it."""
    PRIORITY = "priority"
    CC = "cc"
    """The message has CC or BCC."""
    DELIVER_AT = "deliver_at"
    EXPIRED = "expired"
    REPETITION = "repetition"
    COPY = "copy"
    """The routed message came before, in another record."""
    AMBIGUOUS = "ambiguous"
    """The session has handled messages with the mark of the routed message, so it alone can tell a copy."""
    SUBSCRIPTIONS = "subscriptions"
    """The routed message was matched with newer subscriptions, or with older ones of which none matches it now."""
    PACKET_IDS = "packet_ids"


class OfferHold(StrEnum):
    """Why an offer is held."""

    CLOSED = "closed"
    """There is no grant."""
    BROKEN = "broken"
    """A message before it was refused, and the session has not handled that yet."""
    GAP = "gap"
    """The gateway does not know of a message before it."""
    UNCONFIRMED = "unconfirmed"
    """Kafka has to confirm earlier records of the connection first."""
    UNREAD = "unread"
    """The device does not read."""
    WAITING = "waiting"
    """Something waits for a slot, or all slots are taken and no more messages may be ahead of them."""
    UNACCEPTED = "unaccepted"
    """The session has to accept the connection first."""
    UNADOPTED = "unadopted"
    """Too much was sent that the session has not read about."""


@dataclass(slots=True)
class Chain:
    """The offers of one partition.

    Attributes:
        after: the offset up to which all of the client's messages were handled by the session or taken here; -1 = nothing is
            known of the partition. An offer is the next one only if its router knows of no message between this and it.
        broken_at: the offset of an offer that was refused, or of a message above `after` that the session has sent first. What
            follows is the session's, until it says that it has handled that one. None = the chain is not broken.
        known_to: without a grant (rule 8): the offset up to which every message of the connection's own list was taken here, or
            handled by the session. None = a grant is needed.
        left_at: the highest offset of a message up to `known_to` that may be left to the session.
        taken_at: the highest offset that was taken; -1 = none was.
    """

    after: int = -1
    broken_at: int | None = None
    known_to: int | None = None
    left_at: int = -1
    taken_at: int = -1

    def hold(self, previous: int) -> OfferHold | None:
        """Why an offer above `after` is not the next one."""
        if self.broken_at is not None:
            return OfferHold.BROKEN
        return None if previous <= self.after else OfferHold.GAP

    def needs_no_grant(self, previous: int) -> bool:
        """Returns True if an offer above `last` is the next one of the connection's own list, if it is one of that."""
        return self.known_to is not None and self.broken_at is None and previous <= self.known_to

    @property
    def last(self) -> int:
        """Returns the highest offset of which no offer is accepted."""
        return self.reached if self.broken_at is None else max(self.reached, self.broken_at)

    @property
    def reached(self) -> int:
        """Returns the highest offset that was taken, handled or left to the session."""
        return self.after if self.known_to is None else max(self.after, self.known_to)

    def take(self, offset: int, *, is_granted: bool) -> int:
        """Returns `previous` of FastSent."""
        if is_granted:
            previous, self.after = self.after, offset
        else:
            previous = self.taken_at
        self.taken_at = offset
        if self.known_to is not None:
            self.known_to = offset
        return previous

    def leave(self, offset: int) -> None:
        """This message is the session's, and the chain of the connection's own list goes on behind it."""
        self.known_to = self.left_at = offset

    def break_at(self, offset: int) -> None:
        """This message goes by the slow path."""
        self.broken_at = offset if self.broken_at is None else max(self.broken_at, offset)

    def handled(self, offset: int) -> None:
        """The session has handled everything up to this."""
        if self.broken_at is not None and self.broken_at <= offset:
            self.broken_at = None
        self.after = max(self.after, offset)
        if self.known_to is not None:
            if self.left_at <= offset:  # what lies between was taken here
                self.after = max(self.after, self.known_to)
            self.known_to = max(self.known_to, self.after)


class TakenOffer(msgspec.Struct, frozen=True):
    """An offer that was taken. Append `sent`, and write `publish` when that is confirmed."""

    publish: FastPublish
    sent: FastSent


class _Unadopted(msgspec.Struct, frozen=True):
    """A message that was sent here and whose FastSent no grant has confirmed as read.

    Attributes:
        digest: The digest of the message id; None = the backend did not name it.
        taken_ms: Time at which the offer was taken.
    """

    digest: bytes | None
    taken_ms: int


@dataclass(slots=True, eq=False)
class WireFastPath:
    """Decides which offers one connection takes, holds or leaves to the session.

    Attributes:
        connect: The CONNECT of the device.
        encode: Encodes a PUBLISH in the device's MQTT version.
        list_id: Connection id and version of the device's list in `inflight.subscriptions`. Set it before `subscribed` and
            `unsubscribed` change the filters.
        held: Offers that came too early.
    """

    connect: Connect
    connection_id: int
    encode: EncodePublish
    outbox: Outbox
    settings: GatewaySettings
    list_id: tuple[int, int] = (0, 0)
    held: HeldOffers = field(init=False)
    _awaits_slot: bool = False
    """The first held offer needs a slot, as far as is known: so it is not decoded again before there is one."""
    _may_be_ahead: bool = False
    """It may be taken ahead of the slots."""
    _wall_ahead_ms: int = 0
    """The difference of the two clocks, as of the newest offer: what is held is judged later."""
    _is_open: bool = False
    _partition: int = -1
    _queued_to: int = -1
    """The field of the same name in the newest OpenFastPath."""
    _chains: dict[int, Chain] = field(default_factory=dict)
    _taken: dict[Position, _Unadopted] = field(default_factory=dict)
    _known_ids: dict[bytes, None] = field(default_factory=dict)
    """Digests of the message ids of which a repetition may be known to the session."""
    _marks: KnownMarks = field(default_factory=KnownMarks)
    _subscriptions: Subscriptions = field(default_factory=Subscriptions)
    _began_at: int = -1
    """The offset of `begin`."""
    _own_list: int = -1
    """Rule 9: the connection whose list of subscriptions holds here, besides the own one; -1 = none."""
    _is_accepted: bool = True
    """Rule 9: False until the session has accepted the connection."""
    _resubscribed: dict[str, Subscription | None] = field(default_factory=dict)
    """Changes of the device on this connection by filter; None = it has unsubscribed."""

    def __post_init__(self) -> None:
        self.held = HeldOffers(self.settings.fast_path.max_held_bytes)

    # --- from the session -----------------------------------------------------------------------------------------------------

    def begin(self, read_to: Position) -> None:
        """Begins without a grant: the connection has begun a session.

        Args:
            read_to: A position in the partition of the client's messages, below that of any that the connection's own list can
                match.
        """
        if not self._chains:
            partition, offset = read_to
            self._chains[partition] = Chain(known_to=offset, left_at=offset)
            self._began_at = offset
            self._partition = partition  # the last: a router asks for `state` on its own thread

    def leave(self, max_messages: int, max_bytes: int) -> LeftSession | None:
        """Returns what the next connection of the client can go on with (rule 9); None = only the session can.

        A session with a shared subscription announces a new list when it is resumed.

        Args:
            max_messages, max_bytes: Of what comes meanwhile.
        """
        chain, outbox = self._chains.get(self._partition), self.outbox
        if chain is None or len(self._chains) > 1 or self.state is not FastPathState.OPEN or not outbox.is_empty:
            return None
        if any(is_shared(subscription.topic_filter) for subscription in self._subscriptions):
            return None
        after = chain.after if self._is_open else chain.known_to
        if after is None or after < max(self._queued_to, chain.reached) or (not self._is_open and chain.left_at > self._began_at):
            return None
        used_ids, listed_ids, last_id = outbox.fast_ids
        return LeftSession(
            connection_id=self.connection_id,
            list_id=self.list_id,
            after=Position(self._partition, after),
            is_granted=self._is_open,
            began_at=self._began_at,
            taken_at=chain.taken_at,
            max_messages=max_messages,
            max_bytes=max_bytes,
            subscriptions=self._subscriptions,
            known_ids=b"".join(self._known_ids),
            marks=self._marks,
            used_ids=used_ids,
            listed_ids=listed_ids,
            last_id=last_id,
            held=HeldOffers(self.settings.fast_path.max_held_bytes),
        )

    def continue_session(self, left: LeftSession, *, is_accepted: bool) -> None:
        """Goes on with a session that the client has left here. Then call `take_next`.

        Args:
            is_accepted: The session has accepted the connection. If not, call `accepted` when it has.
        """
        partition, offset = left.after
        if left.is_granted:
            chain = Chain(after=offset, taken_at=left.taken_at)
        else:
            chain = Chain(known_to=offset, left_at=left.began_at, taken_at=left.taken_at)
        self._chains[partition], self._began_at = chain, left.began_at
        self._learn_ids(left.known_ids)
        self._marks, self._subscriptions = left.marks, left.subscriptions
        self.outbox.continue_fast_ids(left.used_ids, left.listed_ids, left.last_id)
        self._own_list, self._is_accepted, self._wall_ahead_ms = left.list_id[0], is_accepted, left.wall_ahead_ms
        self.held = left.held
        self._partition, self._is_open = partition, left.is_granted  # the last: a router asks for `state` on its own thread

    def accepted(self, *, continues: bool) -> bool:
        """The session has accepted the connection, which was served before (rule 9).

        Args:
            continues: The session is as the client has left it here.

        Returns:
            False if something was sent that the session knows otherwise: then the connection has to end.
        """
        self._is_accepted = True
        if not continues and not self._taken:
            self.close()
            self._chains.clear()
            self.held.clear()
        return continues or not self._taken

    def open(self, grant: OpenFastPath, now_ms: int) -> tuple[int, int]:
        """Opens the path, or renews the grant. Then call `take_next`.

        Returns:
            How many messages the session has read since, and the time from taking them to this, together, in ms.
        """
        partition, offset = grant.after
        chain = self._chains.setdefault(partition, Chain())
        if offset > chain.reached:
            self._marks.forget_messages()
        chain.handled(offset)
        self.held.forget(partition, chain.last)
        self._awaits_slot = False
        self._partition, self._queued_to = partition, grant.queued_to
        self._is_open = True  # the last: a router asks for `state` on its own thread
        adopted = self._forget_adopted(partition, grant.adopted, now_ms)
        self.outbox.free_fast_ids(grant.after, grant.ids_in_use, grant.last_id)
        if grant.is_snapshot:
            self._known_ids = {taken.digest: None for taken in self._taken.values() if taken.digest is not None}
        self._learn_ids(grant.recent_ids)
        self._marks.handled(grant.marks or ())
        if grant.subscriptions is not None:
            self._subscriptions = Subscriptions()
            for subscription in grant.subscriptions:
                self._subscriptions.add(subscription)
            for topic_filter, change in self._resubscribed.items():
                self._resubscribe(topic_filter, change)
        return adopted

    def _learn_ids(self, digests: bytes) -> None:
        for start in range(0, len(digests), DIGEST_BYTES):
            self._known_ids[digests[start : start + DIGEST_BYTES]] = None

    def _forget_adopted(self, partition: int, offset: int, now_ms: int) -> tuple[int, int]:
        """Forgets what the session has read: it does not send that as if for the first time."""
        adopted = [taken for taken in self._taken if taken.partition == partition and taken.offset <= offset]
        return len(adopted), sum(now_ms - self._taken.pop(taken).taken_ms for taken in adopted)

    def close(self) -> None:
        self._is_open = False
        for chain in self._chains.values():
            chain.known_to = None

    def was_taken(self, publish: SendPublish) -> bool:
        """A PUBLISH of the session is a second copy of what was taken here. If not, the chain breaks at a first transmission."""
        position = publish.position
        if position is None:
            return False
        if position in self._taken:
            return True
        if publish.dup:
            return False
        self.held.forget(*position)
        chain = self._chains.get(position.partition)
        if chain is not None and position.offset > chain.reached:
            self._break(chain, position.offset)
        return False

    def _break(self, chain: Chain, offset: int) -> None:
        """Leaves a message to the session, and all behind it until a grant has it."""
        chain.break_at(offset)
        self._marks.forget_messages()

    # --- from the device ------------------------------------------------------------------------------------------------------

    def subscribed(self, subscriptions: Iterable[Subscription]) -> None:
        """Add subscriptions, which hold from the answer on [MQTT-3.8.4-8]."""
        for subscription in subscriptions:
            self._resubscribe(subscription.topic_filter, subscription)

    def unsubscribed(self, topic_filters: Iterable[str]) -> None:
        """Drop filters: from the answer on nothing is sent by these [MQTT-3.10.4-1]."""
        for topic_filter in topic_filters:
            self._resubscribe(topic_filter, None)

    def _resubscribe(self, topic_filter: str, change: Subscription | None) -> None:
        self._resubscribed[topic_filter] = change
        if change is None:
            self._subscriptions.discard(topic_filter)
        else:
            self._subscriptions.add(change)

    # --- from routers ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> FastPathState:
        """Returns what an offer would lead to now. Safe on any thread."""
        if len(self._resubscribed) > MAX_RESUBSCRIBED:
            return FastPathState.CLOSED
        if self.held.offers or self._is_broken:
            return FastPathState.HOLDING
        return FastPathState.OPEN

    @property
    def _is_broken(self) -> bool:
        """Returns True if no next message would be taken before there is a grant. Safe on any thread."""
        chain = self._chains.get(self._partition)
        if chain is None or chain.broken_at is not None:
            return True
        return not self._is_open and chain.known_to is None

    @property
    def needs_session(self) -> bool:
        """Returns True if the next message waits for a grant. One that only waits for a slot or for Kafka does not."""
        if len(self._resubscribed) > MAX_RESUBSCRIBED or self._is_broken:
            return True
        offers = self.held.offers
        return bool(offers) and self._hold_of_chain(offers[0]) is not None

    @property
    def may_wait_for_session(self) -> bool:
        """Returns False if no message waits for what the session does next: each is taken here, or will be."""
        if self.needs_session:
            return True
        return self._is_open and not self.held.offers and self._chains[self._partition].after < self._queued_to

    def offer(
        self, offer: OfferPublish, under_pressure: bool, is_unconfirmed: bool, wall_ms: int, now_ms: int
    ) -> TakenOffer | OfferRefusal | bool:
        """Takes an offer, holds it, or leaves it to the session.

        Args:
            is_unconfirmed: True if Kafka has to confirm records first.

        Returns:
            True if it is held: then call `take_next`. False if it is known, or there will be no grant.
        """
        if len(self._resubscribed) > MAX_RESUBSCRIBED:
            return False
        partition, offset = offer.position
        if self._is_open and partition != self._partition:
            return OfferRefusal.PARTITION
        chain = self._chains.get(partition)
        held = self.held
        if (chain is not None and offset <= chain.last) or held.is_known(offer):
            return False
        if under_pressure:
            return OfferRefusal.PRESSURE
        self._wall_ahead_ms = wall_ms - now_ms
        if not held.offers:
            decided = self._decide(offer, is_unconfirmed, now_ms)
            if not isinstance(decided, OfferHold):
                return decided
        return held.add(offer) or OfferRefusal.FULL

    def take_next(self, is_unconfirmed: bool, now_ms: int) -> TakenOffer | OfferRefusal | OfferHold | None:
        """Takes the first held offer, or leaves it to the session. Call it again until it is held still, or there is none.

        Args:
            is_unconfirmed: True if Kafka has to confirm records first.
        """
        if not self.held.offers:
            return None
        decided = self._decide(self.held.offers[0], is_unconfirmed, now_ms)
        if not isinstance(decided, OfferHold):
            self.held.remove_first()
        return decided

    def _decide(self, offer: OfferPublish, is_unconfirmed: bool, now_ms: int) -> TakenOffer | OfferRefusal | OfferHold:
        """Decides about an offer before which none is held."""
        hold = self._hold_of_chain(offer) or self._hold(is_unconfirmed)
        if hold is not None:
            return hold
        partition, offset = offer.position
        chain = self._chains[partition]
        is_granted = self._is_open and chain.hold(offer.previous) is None
        taken = self._take(offer, chain, is_granted, now_ms + self._wall_ahead_ms, now_ms)
        self._awaits_slot = taken is OfferHold.WAITING
        if taken is OfferRefusal.NO_GRANT:
            chain.leave(offset)
        elif isinstance(taken, OfferRefusal):
            self._break(chain, offset)
        return taken

    def _hold_of_chain(self, offer: OfferPublish) -> OfferHold | None:
        """Why an offer is not the next one of its partition."""
        chain = self._chains.get(offer.position.partition)
        if chain is not None and chain.needs_no_grant(offer.previous):
            return None
        if chain is None or not self._is_open or offer.position.partition != self._partition:
            return OfferHold.CLOSED
        return chain.hold(offer.previous)

    def _hold(self, is_unconfirmed: bool) -> OfferHold | None:
        """Returns the reason to hold any offer now, or None if the message decides."""
        if is_unconfirmed:
            return OfferHold.UNCONFIRMED
        if self.outbox.is_blocked:
            return OfferHold.UNREAD
        if self.outbox.held or (self._awaits_slot and not self._has_room(self._may_be_ahead)):
            return OfferHold.WAITING
        return OfferHold.UNADOPTED if len(self._taken) >= _MOST_UNADOPTED else None

    def _has_room(self, may_be_ahead: bool) -> bool:
        """Returns True if there is a slot, or room ahead of the slots for a message that may be there."""
        return self.outbox.has_free_slot or (may_be_ahead and self.outbox.has_room_ahead)

    def _take(
        self, offer: OfferPublish, chain: Chain, is_granted: bool, wall_ms: int, now_ms: int
    ) -> TakenOffer | OfferRefusal | OfferHold:
        settings, outbox = self.settings, self.outbox
        if len(offer.payload) > settings.fast_path.max_payload_bytes:
            return OfferRefusal.SIZE
        event = message_event(
            [Header(name, value) for name, value in offer.headers],
            offer.payload,
            accepted_ms=accepted_at(offer.timestamp_ms, now_ms=wall_ms),
            default_message_id=position(settings.fast_path.messages_topic, *offer.position),
            limits=settings.limits,
            recipient=offer.recipient,
        )
        if not isinstance(event, MessageSubmitted):  # a cancellation too is the session's
            return OfferRefusal.INVALID
        message, digest = event.message, message_digest(event.message.message_id) if event.explicit_id else None
        if not is_granted and (refusal := self._judge_without_grant(message.routing)) is not None:
            return refusal
        if (refusal := _judge(message, wall_ms)) is not None:
            return refusal
        is_queued = offer.position.offset <= self._queued_to
        if (
            digest is not None and digest in self._known_ids and not is_queued
        ):  # one that the backend has not named cannot be repeated
            return OfferRefusal.REPETITION
        routing = message.routing
        if routing is None:
            qos = self._subscriptions.capped_qos(message.topic, message.qos)  # as the session caps it [MQTT-3.8.4-8]
        elif isinstance(granted := self._routed_qos(message, routing, is_queued), OfferRefusal):
            return granted
        else:
            qos = granted
        if qos == QoS.EXACTLY_ONCE and not self._is_accepted:
            return OfferHold.UNACCEPTED
        if qos and not outbox.has_free_slot:
            self._may_be_ahead = _may_be_ahead(message)
            if not self._has_room(self._may_be_ahead):
                return OfferHold.WAITING
        packet_id = outbox.next_fast_id() if qos else 0
        if packet_id is None:
            return OfferRefusal.PACKET_IDS
        expiry_s, subscription_ids = _left_s(message, wall_ms), () if routing is None else routing.subscription_ids
        try:
            data = self.encode(
                message, qos=qos, packet_id=packet_id, expiry_interval_s=expiry_s, subscription_ids=subscription_ids
            )
        except (ValueError, OverflowError):
            return OfferRefusal.INVALID
        limit_bytes = self.connect.maximum_packet_size_bytes
        if limit_bytes is not None and len(data) > limit_bytes:  # [MQTT-3.1.2-24]
            return OfferRefusal.SIZE
        publish = FastPublish(offer.position, message, qos, packet_id, expiry_s, data, now_ms)
        if not outbox.reserve(publish):
            return OfferHold.WAITING
        self._taken[offer.position] = _Unadopted(digest, now_ms)
        if digest is not None:
            self._known_ids[digest] = None
        if routing is not None:
            self._marks.sent(routing, message.message_id)
        sent = FastSent(
            connection_id=self.connection_id,
            position=offer.position,
            previous=chain.take(offer.position.offset, is_granted=is_granted),
            packet_id=packet_id,
            qos=qos,
            message=message,
            sent_ms=wall_ms,
            explicit_id=event.explicit_id,
            is_granted=is_granted,
        )
        return TakenOffer(publish, sent)

    def _judge_without_grant(self, routing: Routing | None) -> OfferRefusal | None:
        """Leaves to the session what does not come by the connection's own list (rule 8).

        It also decides about what is shared: the message may have been matched for an earlier session before, which gives it back
        to the group.
        """
        if routing is None or routing.connection_id not in (self.connection_id, self._own_list):
            return OfferRefusal.NO_GRANT
        return OfferRefusal.SUBSCRIPTIONS if routing.share else None

    def _routed_qos(self, message: Message, routing: Routing, is_queued: bool) -> QoS | OfferRefusal:
        """Returns the QoS for a routed message, which has that of the list of subscriptions that matched it."""
        is_copy = False if is_queued else self._marks.is_copy(routing, message.message_id)
        if is_copy or is_copy is None:
            return OfferRefusal.COPY if is_copy else OfferRefusal.AMBIGUOUS
        matched_by = routing.connection_id, routing.version
        if matched_by == self.list_id:
            return message.qos
        is_own = routing.connection_id in (self.list_id[0], self._own_list)
        if matched_by > self.list_id or not is_own or routing.share:
            return OfferRefusal.SUBSCRIPTIONS  # the session gives what is shared back to the group
        granted = self._subscriptions.granted_qos(message.topic)
        return OfferRefusal.SUBSCRIPTIONS if granted is None else min(message.qos, granted)


def _judge(message: Message, wall_ms: int) -> OfferRefusal | None:
    """Refuses what the session may handle in another way."""
    if message.priority:
        return OfferRefusal.PRIORITY
    for name, _ in message.headers:
        if name in _COPIES:
            return OfferRefusal.CC
        if name == DELIVER_AT:
            return OfferRefusal.DELIVER_AT
    # A message with a time to live of 0 may be sent if that is possible at once, and this is.
    if message.expires_at_ms is not None and message.expires_at_ms <= wall_ms and message.expiration_ms != 0:
        return OfferRefusal.EXPIRED
    return None


def _may_be_ahead(message: Message) -> bool:
    """Returns False for a message that the session may end or replace while it waits for a slot (state/outbound/transmission.py,
    rule 2)."""
    return message.expires_at_ms is None and collapse_key(message) is None


def _left_s(message: Message, wall_ms: int) -> int | None:
    """Seconds that are left of its life, as the session says them [MQTT-3.3.2-6]: rounded up, because 0 would mean "already over"
    (MQTT 5, 3.3.2.3.3)."""
    expires_at_ms = message.expires_at_ms
    return None if expires_at_ms is None else max(1, -(-(expires_at_ms - wall_ms) // 1_000))
