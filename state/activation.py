"""Collects the commands of one activation in order, and keeps the rule that whatever leaves a session leaves with an outcome."""

from dataclasses import dataclass, field

from state.commands import (
    Command,
    RecordTransition,
    SendPublish,
    SendPubRel,
    Transition,
)
from state.connection import SessionConnection
from state.dead_letters.dead_letter import NOT_DEAD, dead_letter, wants_dead_letter
from state.dead_letters.message_end import message_end
from state.model import ClientId, MessageId, Outcome, PacketId, QoS, ReasonCode
from state.outbound.inflight_window import Delivery
from state.settings import SessionSettings


@dataclass(slots=True)
class FastPathNews:
    """What an activation has to say about the fast path at its end (state/outbound/fast_path/grants.py).

    handled: it has handled a message that no gateway had sent before. remembered: digests of the message ids that it remembered
    from such messages, and from dead letters that came back. subscriptions: they have changed.
    waits_for_fence: something has to end that a gateway may be sending. fence_fell: the queue may be cut to its limit again.
    """

    handled: bool = False
    remembered: list[bytes] = field(default_factory=list)
    subscriptions: bool = False
    waits_for_fence: bool = False
    fence_fell: bool = False

    @property
    def is_news(self) -> bool:
        """For a gateway that has a grant."""
        return self.handled or self.subscriptions or bool(self.remembered)


class Activation:
    """now_ms: the time of the activation, stamped on all that is recorded in it. settings: policy and exchanges are used here."""

    __slots__ = ("client_id", "commands", "fast_path", "now_ms", "settings")

    def __init__(self, client_id: ClientId, now_ms: int, settings: SessionSettings) -> None:
        self.client_id = client_id
        self.now_ms = now_ms
        self.settings = settings
        self.commands: list[Command] = []
        self.fast_path = FastPathNews()

    def add(self, command: Command) -> None:
        self.commands.append(command)

    def record(
        self,
        transition: Transition,
        message_id: MessageId | None = None,
        *,
        packet_id: PacketId | None = None,
        attempt: int = 0,
        outcome: Outcome | None = None,
        reason_code: int = 0,
        detail: str = "",
        time_ms: int | None = None,
    ) -> None:
        """One row of the ledger. time_ms: of what had happened before the session heard of it; None = now."""
        self.commands.append(
            RecordTransition(
                transition=transition,
                time_ms=self.now_ms if time_ms is None else time_ms,
                message_id=message_id,
                packet_id=packet_id,
                attempt=attempt,
                outcome=outcome,
                reason_code=reason_code,
                detail=detail,
            )
        )

    def publish(
        self,
        connection: SessionConnection,
        delivery: Delivery,
        *,
        transition: Transition,
        packet_id: PacketId,
        qos: QoS,
        dup: bool,
    ) -> None:
        """Send the delivery's message and record it as `transition`. What the backend wrote is not altered: [MQTT-3.3.2-4]
        [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]."""
        message = delivery.message
        expires_at_ms = message.expires_at_ms
        self.commands.append(
            SendPublish(
                connection_id=connection.connection_id,
                partition=connection.partition,
                sequence=connection.next_sequence(),
                packet_id=packet_id,
                topic=message.topic,
                payload=message.payload,
                qos=qos,
                dup=dup,
                retain=message.retain,
                # What is left [MQTT-3.3.2-6], rounded up: 0 would mean "already over" (MQTT 5, 3.3.2.3.3).
                expiry_interval_s=None if expires_at_ms is None else max(1, -(-(expires_at_ms - self.now_ms) // 1_000)),
                properties=message.properties,
                message_id=message.message_id,
                position=delivery.position,
            )
        )
        self.record(transition, message.message_id, packet_id=packet_id or None, attempt=delivery.attempts)

    def pubrel(
        self,
        connection: SessionConnection,
        packet_id: PacketId,
        message_id: MessageId | None,
        *,
        reason_code: int = ReasonCode.SUCCESS,
    ) -> None:
        """Send PUBREL under the id of its PUBLISH [MQTT-2.2.1-5], and record it."""
        self.commands.append(
            SendPubRel(
                connection_id=connection.connection_id,
                partition=connection.partition,
                sequence=connection.next_sequence(),
                packet_id=packet_id,
                reason_code=reason_code,
            )
        )
        self.record(Transition.PUBREL_SENT, message_id, packet_id=packet_id, reason_code=reason_code)

    def finish(
        self,
        delivery: Delivery,
        outcome: Outcome,
        *,
        packet_id: PacketId | None = None,
        reason_code: int = 0,
        detail: str = "",
        payload_kept: bool = True,
    ) -> None:
        """The message leaves the session: a ledger row, a receipt and, where the outcome says so, dead letters.

        payload_kept: False once the client has taken a QoS 2 message over (PUBREC): there is nothing left to dead-letter.
        """
        died = NOT_DEAD
        if payload_kept and wants_dead_letter(
            delivery.message, queue=self.client_id, reason=outcome, policy=self.settings.policy
        ):
            died = dead_letter(
                delivery.message,
                queue=self.client_id,
                reason=outcome,
                time_ms=self.now_ms,
                policy=self.settings.policy,
                exchanges=self.settings.exchanges,
                detail=detail,
            )
        self.commands += message_end(
            delivery,
            outcome,
            client_id=self.client_id,
            now_ms=self.now_ms,
            died=died,
            packet_id=packet_id,
            reason_code=reason_code,
            detail=detail,
        )
