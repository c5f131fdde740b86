"""Collects the commands of one activation in order, and keeps the rule that whatever leaves a session leaves with an outcome."""

from typing import Final

from state.commands import (
    Command,
    DeadLetter,
    RecordTransition,
    SendPublish,
    SendPubRel,
    SendReceipt,
    Transition,
)
from state.connection import Connection
from state.inflight import Delivery
from state.model import ClientId, MessageId, Outcome, PacketId, QoS, ReasonCode

DEAD_LETTERED: Final = frozenset(
    {
        Outcome.EXPIRED,
        Outcome.REJECTED,
        Outcome.MAXLEN,
        Outcome.DELIVERY_LIMIT,
        Outcome.TOO_LARGE,
        Outcome.SESSION_ENDED,
        Outcome.INVALID,
    }
)
"""The outcomes that make a dead letter; the others are deliveries and named drops."""


class Outbox:
    """now_ms: the time of the activation, stamped on all that is recorded in it."""

    __slots__ = ("client_id", "commands", "now_ms")

    def __init__(self, client_id: ClientId, now_ms: int) -> None:
        self.client_id = client_id
        self.now_ms = now_ms
        self.commands: list[Command] = []

    def add(self, command: Command) -> None:
        self.commands.append(command)

    def record(
        self,
        transition: Transition,
        message_id: MessageId | None = None,
        *,
        packet_id: PacketId | None = None,
        attempt: int = 0,
        reason_code: int = 0,
        detail: str = "",
    ) -> None:
        """One row of the ledger."""
        self.commands.append(
            RecordTransition(
                transition=transition,
                time_ms=self.now_ms,
                message_id=message_id,
                packet_id=packet_id,
                attempt=attempt,
                reason_code=reason_code,
                detail=detail,
            )
        )

    def publish(
        self, connection: Connection, delivery: Delivery, *, transition: Transition, packet_id: PacketId, qos: QoS, dup: bool
    ) -> None:
        """Send the delivery's message and record it as `transition`."""
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
                # What is left, rounded up: 0 would mean "already over" (MQTT 5, 3.3.2.3.3).
                expiry_interval_s=None if expires_at_ms is None else max(1, -(-(expires_at_ms - self.now_ms) // 1_000)),
                properties=message.properties,
                message_id=message.message_id,
            )
        )
        self.record(transition, message.message_id, packet_id=packet_id or None, attempt=delivery.attempts)

    def pubrel(
        self, connection: Connection, packet_id: PacketId, message_id: MessageId | None, *, reason_code: int = ReasonCode.SUCCESS
    ) -> None:
        """Send PUBREL and record it."""
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
        """The message leaves the session: a ledger row, a receipt and, where the outcome says so, a dead letter.

        payload_kept: False once the client has taken a QoS 2 message over (PUBREC): there is nothing left to dead-letter.
        """
        message = delivery.message
        self.commands.append(
            RecordTransition(
                transition=Transition.FINISHED,
                time_ms=self.now_ms,
                message_id=message.message_id,
                packet_id=packet_id,
                attempt=delivery.attempts,
                outcome=outcome,
                reason_code=reason_code,
                detail=detail,
            )
        )
        if outcome in DEAD_LETTERED and payload_kept:
            self.commands.append(DeadLetter(message=message, reason=outcome, time_ms=self.now_ms, detail=detail))
        if outcome is not Outcome.DUPLICATE:  # its receipt is that of the message it repeats
            self.commands.append(
                SendReceipt(
                    message_id=message.message_id,
                    client_id=self.client_id,
                    outcome=outcome,
                    reason_code=reason_code,
                    attempts=delivery.attempts,
                    accepted_ms=message.accepted_ms,
                    first_sent_ms=delivery.first_sent_ms,
                    outcome_ms=self.now_ms,
                    detail=detail,
                )
            )
