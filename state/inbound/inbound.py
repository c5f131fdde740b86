"""QoS 2 publications of the client on their way to the backends: each is handed on once."""

from state.activation import Outbox
from state.commands import ForwardPublication, Transition
from state.events import PublishReceived, PubRelReceived
from state.inbound.awaiting_rel import AwaitingRel, content_hash
from state.model import PacketId, QoS
from state.transitions import InboundAction, InboundEvent, inbound_step


class Inbound:
    """The receiving half of a session. The gateway has already answered what arrives here: PUBREC and PUBCOMP are its own."""

    __slots__ = ("awaiting_rel",)

    def __init__(self) -> None:
        self.awaiting_rel = AwaitingRel()

    def publication(self, event: PublishReceived, outbox: Outbox) -> bool:
        """Hand a publication on unless it is a repetition [MQTT-4.3.3-10]. True if its id was not in the set before."""
        content = content_hash(event.topic, event.payload)
        late = self.awaiting_rel.is_late_repetition(event.packet_id, content, dup=event.dup)
        cause = InboundEvent.LATE_REPETITION if late else InboundEvent.PUBLISH
        _, action = inbound_step(self.awaiting_rel.phase(event.packet_id), cause)
        if action is not InboundAction.IGNORE:
            self.awaiting_rel.admit(event.packet_id, content, now_ms=outbox.now_ms)
        if action is InboundAction.HAND_ON:
            self.hand_on(event, outbox)
        else:
            outbox.record(Transition.PUBLICATION_REPEATED, event.publication_id, packet_id=event.packet_id)
        return action is not InboundAction.IGNORE

    @staticmethod
    def hand_on(event: PublishReceived, outbox: Outbox) -> None:
        outbox.add(
            ForwardPublication(
                publication_id=event.publication_id,
                topic=event.topic,
                payload=event.payload,
                qos=QoS.EXACTLY_ONCE,
                retain=event.retain,
                expiry_interval_s=event.expiry_interval_s,
                properties=event.properties,
            )
        )
        outbox.record(Transition.PUBLICATION_FORWARDED, event.publication_id, packet_id=event.packet_id)

    def release(self, event: PubRelReceived, outbox: Outbox) -> None:
        """PUBREL: the id is free for a new publication."""
        _, action = inbound_step(self.awaiting_rel.phase(event.packet_id), InboundEvent.PUBREL)
        if action is InboundAction.RELEASE:
            self.awaiting_rel.release(event.packet_id)
            outbox.record(Transition.PUBLICATION_RELEASED, packet_id=event.packet_id)

    def abandon_overdue(self, timeout_ms: int, outbox: Outbox) -> tuple[PacketId, ...]:
        """Give up ids that were not released in time; returns them for the gateway to forget."""
        overdue = self.awaiting_rel.older_than(outbox.now_ms - timeout_ms)
        for packet_id in overdue:
            inbound_step(self.awaiting_rel.phase(packet_id), InboundEvent.TIMEOUT)
            self.awaiting_rel.abandon(packet_id)
            outbox.record(Transition.PUBLICATION_ABANDONED, packet_id=packet_id)
        return tuple(overdue)
