"""Keeps the packet ids of QoS 2 publications, and forwards publications that no gateway hands on, each once.

With routing, the gateway hands on what its device publishes (`PublishAccepted`), and answers PUBREC behind that:

1. A gateway is told which publications the session knows. So it can tell a new one from a repetition.
2. A gateway hands on nothing that is in the log behind a later CONNECT of its client (sinks/mqtt/connection/handing_on.py). The
   session ignores such an event: the device has no PUBREC, and repeats the publication on the later connection.
3. A publication without PUBREC may be handed on or not, if its gateway has died. The device repeats it. Whoever reads the
   repetition hands it on under the same `inflight-id`, and says that it may be a copy. Matchers route only the first of copies.
4. That is the gateway, unless it cannot hand on publications itself. Then it is the session (`publication`).
"""

from typing import Final

from state.activation import Activation
from state.commands import ForwardPublication, KnownPublication, Transition
from state.events import PublishAccepted, PublishReceived, PubRelReceived
from state.inbound.awaiting_rel import AwaitingRel, HandOver, content_hash
from state.model import PacketId, QoS
from state.transitions import InboundAction, InboundEvent

_TOO_EARLY: Final = "its packet id awaited PUBREL of another publication"
_NOT_CERTAIN: Final = "its gateway may have handed it on"
_MOST_KNOWN_BYTES: Final = 65_536
"""Size of what a gateway is told of publications: it is in one record."""
_KNOWN_BYTES: Final = 40


class SessionInbound:
    """The receiving half of a session. The gateway has answered these packets already: it sends PUBREC and PUBCOMP itself."""

    __slots__ = ("awaiting_rel",)

    def __init__(self) -> None:
        self.awaiting_rel = AwaitingRel()

    def publication(self, event: PublishReceived, activation: Activation, *, is_of_earlier_connection: bool) -> bool:
        """Forwards a publication unless it is a repetition [MQTT-4.3.3-10].

        One under an id that awaits PUBREL is forwarded if it has other content and no DUP: the client is wrong, and has the
        publication answered like any other.

        Returns:
            True if its id was not in the set before.
        """
        awaiting = self.awaiting_rel
        content = content_hash(event.topic, event.payload)
        if is_of_earlier_connection and awaiting.was_repeated(event.packet_id, content):
            cause = InboundEvent.OVERTAKEN
        elif awaiting.is_late_repetition(event.packet_id, content, dup=event.dup):
            cause = InboundEvent.LATE_REPETITION
        elif not is_of_earlier_connection and awaiting.is_other_content(event.packet_id, content, dup=event.dup):
            cause = InboundEvent.OTHER_CONTENT
        else:
            cause = InboundEvent.PUBLISH
        if event.dup:
            awaiting.record_repetition(event.packet_id, content, activation.now_ms)
        action = awaiting.step(event.packet_id, cause, content=content, now_ms=activation.now_ms)
        if action is InboundAction.FORWARD:
            self.forward(event, activation, detail=_TOO_EARLY if cause is InboundEvent.OTHER_CONTENT else "")
        else:
            assert action in (InboundAction.RECOGNISE, InboundAction.IGNORE)
            activation.record(Transition.PUBLICATION_REPEATED, event.publication_id, packet_id=event.packet_id)
            hand_over = awaiting.hand_overs.get(event.packet_id)
            is_later = hand_over is not None and hand_over.connection_id < event.connection_id  # else its gateway is there
            if hand_over is not None and is_later and content == awaiting.content(event.packet_id):
                del awaiting.hand_overs[event.packet_id]
                self.forward(event, activation, detail=_NOT_CERTAIN, hand_over=hand_over)
        return action is not InboundAction.IGNORE

    def accepted(self, event: PublishAccepted, activation: Activation) -> bool:
        """Keeps the packet id of a publication that its gateway hands on.

        Returns:
            True if its id was not in the set before.
        """
        awaiting, is_open = self.awaiting_rel, event.packet_id in self.awaiting_rel.entries
        if not event.is_repetition:
            cause = InboundEvent.OTHER_CONTENT if is_open else InboundEvent.PUBLISH
        else:
            cause = InboundEvent.LATE_REPETITION if event.packet_id in awaiting.tombstones else InboundEvent.PUBLISH
        if event.dup:
            awaiting.record_repetition(event.packet_id, event.content, activation.now_ms)
        action = awaiting.step(event.packet_id, cause, content=event.content, now_ms=activation.now_ms)
        awaiting.hand_overs[event.packet_id] = HandOver(
            connection_id=event.connection_id, publication_id=event.publication_id, since_ms=event.since_ms
        )
        transition = Transition.PUBLICATION_REPEATED if event.is_repetition else Transition.PUBLICATION_FORWARDED
        detail = _TOO_EARLY if cause is InboundEvent.OTHER_CONTENT else ""
        activation.record(transition, event.publication_id, packet_id=event.packet_id, detail=detail)
        return action is not InboundAction.IGNORE

    def known_publications(self) -> tuple[KnownPublication, ...] | None:
        """Returns what a gateway has to know to tell a new publication from a repetition; None = that is too much."""
        awaiting = self.awaiting_rel
        count = len(awaiting.entries) + len(awaiting.tombstones)
        ids_bytes = sum(len(hand_over.publication_id.encode()) for hand_over in awaiting.hand_overs.values())
        if count * _KNOWN_BYTES + ids_bytes > _MOST_KNOWN_BYTES:
            return None
        contents = {packet_id: entry.content for packet_id, entry in awaiting.entries.items()} | awaiting.tombstones
        known = []
        for packet_id, content in contents.items():
            hand_over = awaiting.hand_overs.get(packet_id)
            known.append(
                KnownPublication(
                    packet_id=packet_id,
                    content=content,
                    publication_id="" if hand_over is None else hand_over.publication_id,
                    since_ms=0 if hand_over is None else hand_over.since_ms,
                    is_abandoned=packet_id in awaiting.tombstones,
                )
            )
        return tuple(known)

    @staticmethod
    def forward(event: PublishReceived, activation: Activation, *, detail: str = "", hand_over: HandOver | None = None) -> None:
        """Writes a record for the backends, whatever the set contains.

        Args:
            detail: For the ledger.
            hand_over: Set if a gateway may have written it.
        """
        publication_id = event.publication_id if hand_over is None else hand_over.publication_id
        activation.add(
            ForwardPublication(
                publication_id=publication_id,
                topic=event.topic,
                payload=event.payload,
                qos=QoS.EXACTLY_ONCE,
                retain=event.retain,
                expiry_interval_s=event.expiry_interval_s,
                properties=event.properties,
                username=event.username,
                may_be_copy_since_ms=None if hand_over is None else hand_over.since_ms,
            )
        )
        activation.record(Transition.PUBLICATION_FORWARDED, publication_id, packet_id=event.packet_id, detail=detail)

    def release(self, event: PubRelReceived, activation: Activation) -> None:
        """Applies PUBREL: the id is free for a new publication."""
        action = self.awaiting_rel.step(event.packet_id, InboundEvent.PUBREL)
        if action is InboundAction.RELEASE:
            activation.record(
                Transition.PUBLICATION_RELEASED, packet_id=event.packet_id, time_ms=activation.time_of(event.logged_ms)
            )
        else:
            assert action is InboundAction.IGNORE

    def abandon_overdue(self, timeout_ms: int, activation: Activation) -> tuple[PacketId, ...]:
        """Gives up ids that were not released in time. Returns them, so that the gateway forgets them too."""
        awaiting = self.awaiting_rel
        awaiting.forget_repeated(activation.now_ms - timeout_ms)
        overdue = awaiting.older_than(activation.now_ms - timeout_ms)
        for packet_id in overdue:
            action = awaiting.step(packet_id, InboundEvent.TIMEOUT, content=awaiting.entries[packet_id].content)
            assert action is InboundAction.ABANDON
            activation.record(Transition.PUBLICATION_ABANDONED, packet_id=packet_id)
        return tuple(overdue)

    def end(self) -> None:
        """Forgets all ids, because the session is over."""
        for packet_id in (*self.awaiting_rel.entries, *self.awaiting_rel.tombstones):
            action = self.awaiting_rel.step(packet_id, InboundEvent.SESSION_ENDED)
            assert action is InboundAction.FORGET
        self.awaiting_rel.repeated.clear()
