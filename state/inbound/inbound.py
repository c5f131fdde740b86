"""QoS 2 publications of the client on their way to the backends: each is handed on once."""

from state.activation import Activation
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

    def publication(self, event: PublishReceived, activation: Activation) -> bool:
        """Hand a publication on unless it is a repetition [MQTT-4.3.3-10]. True if its id was not in the set before."""
        content = content_hash(event.topic, event.payload)
        late = self.awaiting_rel.is_late_repetition(event.packet_id, content, dup=event.dup)
        cause = InboundEvent.LATE_REPETITION if late else InboundEvent.PUBLISH
        _, action = inbound_step(self.awaiting_rel.phase(event.packet_id), cause)
        if action is not InboundAction.IGNORE:
            self.awaiting_rel.admit(event.packet_id, content, now_ms=activation.now_ms)
        if action is InboundAction.HAND_ON:
            self.hand_on(event, activation)
        else:
            activation.record(Transition.PUBLICATION_REPEATED, event.publication_id, packet_id=event.packet_id)
        return action is not InboundAction.IGNORE

    @staticmethod
    def hand_on(event: PublishReceived, activation: Activation) -> None:
        activation.add(
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
        activation.record(Transition.PUBLICATION_FORWARDED, event.publication_id, packet_id=event.packet_id)

    def release(self, event: PubRelReceived, activation: Activation) -> None:
        """PUBREL: the id is free for a new publication."""
        _, action = inbound_step(self.awaiting_rel.phase(event.packet_id), InboundEvent.PUBREL)
        if action is InboundAction.RELEASE:
            self.awaiting_rel.release(event.packet_id)
            activation.record(Transition.PUBLICATION_RELEASED, packet_id=event.packet_id)

    def abandon_overdue(self, timeout_ms: int, activation: Activation) -> tuple[PacketId, ...]:
        """Give up ids that were not released in time; returns them for the gateway to forget."""
        overdue = self.awaiting_rel.older_than(activation.now_ms - timeout_ms)
        for packet_id in overdue:
            inbound_step(self.awaiting_rel.phase(packet_id), InboundEvent.TIMEOUT)
            self.awaiting_rel.abandon(packet_id)
            activation.record(Transition.PUBLICATION_ABANDONED, packet_id=packet_id)
        return tuple(overdue)
