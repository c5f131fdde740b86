"""Forwards QoS 2 publications of the client to the backends, each once."""

from typing import Final

from state.activation import Activation
from state.commands import ForwardPublication, Transition
from state.events import PublishReceived, PubRelReceived
from state.inbound.awaiting_rel import AwaitingRel, content_hash
from state.model import PacketId, QoS
from state.transitions import InboundAction, InboundEvent

_TOO_EARLY: Final = "its packet id awaited PUBREL of another publication"


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
        return action is not InboundAction.IGNORE

    @staticmethod
    def forward(event: PublishReceived, activation: Activation, *, detail: str = "") -> None:
        """Writes a record for the backends, whatever the set contains.

        Args:
            detail: For the ledger.
        """
        activation.add(
            ForwardPublication(
                publication_id=event.publication_id,
                topic=event.topic,
                payload=event.payload,
                qos=QoS.EXACTLY_ONCE,
                retain=event.retain,
                expiry_interval_s=event.expiry_interval_s,
                properties=event.properties,
                username=event.username,
            )
        )
        activation.record(Transition.PUBLICATION_FORWARDED, event.publication_id, packet_id=event.packet_id, detail=detail)

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
