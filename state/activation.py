"""Collects the commands of one activation in order. A message that leaves a session always leaves with an outcome."""

from dataclasses import dataclass, field

from state.commands import (
    Command,
    RecordTransition,
    SendPublish,
    SendPubRel,
    Transition,
)
from state.connection import SessionConnection
from state.dead_letters.dead_letter import NOT_DEAD, DeathLimits, dead_letter, wants_dead_letter
from state.dead_letters.message_end import message_end
from state.model import ClientId, MessageId, Outcome, PacketId, Position, QoS, ReasonCode
from state.outbound.inflight_window import Delivery
from state.presence import PresenceChanges
from state.settings import SessionSettings


@dataclass(slots=True)
class FastPathChanges:
    """Collects what an activation changes for the fast path; its last step applies it (state/outbound/fast_path/grants.py).

    Attributes:
        has_handled: The session has handled a message that no gateway had sent before, or one has left the queue.
        handled: Positions of messages that were read or adopted.
        queued: Positions of messages that were in the queue before.
        new_digests: Digests of message ids remembered from such messages, and from returned dead letters.
        subscriptions_changed: Subscriptions were added or removed.
        waits_for_fence: A message that a gateway may be sending has to end, so the path must close first.
        fence_lifted: The limits of the queue apply again.
        marks_changed: The session has read a routed message.
        read: Number of FastSent of the present connection that were read.
    """

    has_handled: bool = False
    handled: set[Position] = field(default_factory=set)
    queued: set[Position] = field(default_factory=set)
    new_digests: list[bytes] = field(default_factory=list)
    subscriptions_changed: bool = False
    waits_for_fence: bool = False
    fence_lifted: bool = False
    marks_changed: bool = False
    read: int = 0

    @property
    def changes_grant(self) -> bool:
        """Says that a gateway with a grant needs a new one."""
        return self.has_handled or self.subscriptions_changed or bool(self.new_digests)


class Activation:
    """One activation.

    Args:
        now_ms: Time of the activation, and of everything that it records.
        settings: Policy and exchanges are used here.

    Attributes:
        ended: Ids of connections whose end is among the events.
        not_replayed: Those of them that also began among the events. Nobody is there to get a replay, so an engine that is
            behind, and whose devices give up and connect again, is spared the work.
        announces: The client's list of subscriptions is written again if it has shared ones (state/outbound/routing/routed.py).
        corrects_list: It is written again in any case: matchers have found the client in a list that is over, or a refused
            connection may have written one above it.
        lists_end: If no session is left, its list ends with this connection; 0 = nothing has ended.
        presence: What backends are told of the client's connections.
        marks_session: There is a session that outlives its connection, and its gateway has not marked it.
        mark_ends: If no such session is left, its mark ends with this connection; 0 = nothing has ended.
        acknowledged, acknowledged_bytes: Number and size of the messages that the client has acknowledged.
        limits_lowered: The client stands still, so lower limits of the queue hold from now on.
        has_published_will: A will is among the commands.
        was_kept: A DISCONNECT has ended a session that would have outlived its connection.
    """

    __slots__ = (
        "acknowledged",
        "acknowledged_bytes",
        "announces",
        "client_id",
        "commands",
        "corrects_list",
        "ended",
        "fast_path",
        "has_published_will",
        "limits_lowered",
        "lists_end",
        "mark_ends",
        "marks_session",
        "not_replayed",
        "now_ms",
        "presence",
        "settings",
        "was_kept",
    )

    def __init__(self, client_id: ClientId, now_ms: int, settings: SessionSettings) -> None:
        self.client_id = client_id
        self.now_ms = now_ms
        self.settings = settings
        self.commands: list[Command] = []
        self.fast_path = FastPathChanges()
        self.ended: set[int] = set()
        self.not_replayed: set[int] = set()
        self.announces = self.limits_lowered = False
        self.corrects_list = False
        self.lists_end = 0
        self.presence = PresenceChanges()
        self.marks_session = self.was_kept = self.has_published_will = False
        self.mark_ends = 0
        self.acknowledged = self.acknowledged_bytes = 0

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
        """Adds a ledger row.

        Args:
            time_ms: Time of a transition that happened before the session read of it; None = now.
        """
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

    def time_of(self, logged_ms: int, delivery: Delivery | None = None) -> int:
        """Returns when the client did what an event says, for whatever is recorded about it. Timers count from `now_ms`.

        Args:
            logged_ms: Of the event. Its gateway chose the time, so it counts only between the first transmission and now.
            delivery: The message that the event is about; None = it is about none.
        """
        earliest_ms = 0 if delivery is None else max(delivery.message.accepted_ms, delivery.first_sent_ms or 0)
        return min(max(logged_ms, earliest_ms), self.now_ms) if logged_ms else self.now_ms

    def publish(
        self,
        connection: SessionConnection,
        delivery: Delivery,
        *,
        transition: Transition,
        packet_id: PacketId,
        qos: QoS,
        dup: bool,
        detail: str = "",
    ) -> None:
        """Sends the message and records it as `transition`, with `detail` for people.

        The fields of the backend are unchanged: [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18]
        [MQTT-3.3.2-20].
        """
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
                # The rest of the time to live [MQTT-3.3.2-6] is rounded up: 0 would mean "expired" (MQTT 5, 3.3.2.3.3).
                expiry_interval_s=None if expires_at_ms is None else max(1, -(-(expires_at_ms - self.now_ms) // 1_000)),
                properties=message.properties,
                message_id=message.message_id,
                position=delivery.position,
                subscription_ids=() if message.routing is None else message.routing.subscription_ids,  # [MQTT-3.3.4-3]
            )
        )
        self.record(transition, message.message_id, packet_id=packet_id or None, attempt=delivery.transmissions, detail=detail)

    def pubrel(
        self,
        connection: SessionConnection,
        packet_id: PacketId,
        message_id: MessageId | None,
        *,
        reason_code: int = ReasonCode.SUCCESS,
    ) -> None:
        """Sends PUBREL under the id of its PUBLISH [MQTT-2.2.1-5], and records it."""
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
        logged_ms: int = 0,
    ) -> None:
        """Ends a message: a ledger row, a receipt and, depending on the outcome, dead letters.

        Args:
            payload_kept: False after PUBREC of a QoS 2 message: the client has it, so nothing is left to dead-letter.
            logged_ms: Of the event that ended it; 0 = the session ends it now.
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
                limits=DeathLimits(
                    max_dead_letters=self.settings.max_dead_letters,
                    max_client_id_bytes=self.settings.max_client_id_bytes,
                    max_record_bytes=self.settings.max_record_bytes,
                ),
            )
        self.commands += message_end(
            delivery,
            outcome,
            client_id=self.client_id,
            time_ms=self.time_of(logged_ms, delivery),
            now_ms=self.now_ms,
            died=died,
            packet_id=packet_id,
            reason_code=reason_code,
            detail=detail,
            with_receipt=delivery.message.routing is None or self.settings.routed_receipts,
        )
