"""Messages on their way to the client: queue, window, retries. What may follow what stands in state/transitions.py.

Every method takes the connection where it may send, and the activation that collects what it causes. Who is connected, and since
when, is the session's business (state/session.py).
"""

from typing import Final, assert_never

import msgspec

from state.activation import Activation
from state.commands import Transition, WithdrawPublish
from state.connection import Connection
from state.dead_letters.dead_letter import return_id
from state.errors import ProtocolViolation
from state.events import MessageRefused, MessageReturned, MessageSubmitted, PubAckReceived, PubCompReceived, PubRecReceived
from state.model import NO_PROPERTIES, Message, Outcome, PublishProperties, QoS, ReasonCode
from state.outbound.deduplication import RecentMessageIds, ReturnsOfBatch
from state.outbound.inflight_window import Delivery, InflightEntry, InflightWindow
from state.outbound.message_queue import MessageQueue
from state.outbound.packet_ids import PacketIds
from state.outbound.packet_size import publish_packet_bytes
from state.outbound.queue_throttle import follow_queue
from state.retry import backoff_wait_ms, retry_wait_ms
from state.settings import Overflow, RetryMqtt5, SessionSettings
from state.subscriptions import Subscriptions
from state.transitions import FIRST_PHASE, OutboundAction, OutboundEvent, OutboundPhase, outbound_step

REFUSED_FOR_GOOD: Final = frozenset({ReasonCode.NOT_AUTHORIZED, ReasonCode.TOPIC_NAME_INVALID, ReasonCode.PAYLOAD_FORMAT_INVALID})
"""Refusals that the same message would meet again: a dead letter. All others but QUOTA_EXCEEDED are tried again at once."""

_REFUSED_FROM: Final = 0x80
_REASON_CHARACTERS: Final = 200
"""Of the text with which a client explains a refusal: enough for people, and no way to fill ledger and dead letters."""


class Outbound:
    """The sending half of a session.

    next_order: of the next message taken. quota_refusals: rounds of 0x97 in a row; blocked_until_ms: nothing leaves the queue
    before, None = not blocked. throttled_since_ms: since when backends are asked to wait, None = they are not.
    """

    __slots__ = (
        "blocked_until_ms",
        "next_order",
        "packet_ids",
        "queue",
        "quota_refusals",
        "recent_ids",
        "returns",
        "settings",
        "subscriptions",
        "throttled_since_ms",
        "window",
    )

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.queue = MessageQueue(max_len=settings.max_mqueue_len, max_bytes=settings.max_mqueue_bytes)
        self.window = InflightWindow(settings.window_limit + settings.prefetch)
        self.packet_ids = PacketIds()
        self.subscriptions = Subscriptions()
        self.recent_ids = RecentMessageIds(settings.deduplication_window)
        self.returns = ReturnsOfBatch()
        self.next_order = 0
        self.quota_refusals = 0
        self.blocked_until_ms: int | None = None
        self.throttled_since_ms: int | None = None

    # --- from the backend ---------------------------------------------------------------------------------------------------

    def submit(self, event: MessageSubmitted, connection: Connection | None, activation: Activation) -> None:
        """Take a message: send it if nothing is in front of it, else queue it.

        Its id is remembered once it is taken: a backend that sends a refused message again, later, means it.
        """
        delivery, message_id = self._take(event.message), event.message.message_id
        if event.explicit_id and self.recent_ids.knows(message_id):
            activation.finish(delivery, Outcome.DUPLICATE)
            return
        activation.record(Transition.ACCEPTED, message_id)
        taken = self._begin(delivery, connection, activation)
        if taken and event.explicit_id:
            self.recent_ids.remember(message_id)

    def take_back(self, event: MessageReturned, connection: Connection | None, activation: Activation) -> None:
        """Take a dead letter that was routed to this queue: like any message from here on, with its history."""
        delivery = self._take(event.message)
        history = event.message.history
        if event.return_id or history is None:
            known = not self.recent_ids.admit(event.return_id or event.message.message_id)
        else:
            known = not self.returns.admit(return_id(event.message), history.last_time_ms)
        if known:
            activation.finish(delivery, Outcome.DUPLICATE)
            return
        came_from = "" if history is None else f"{history.deaths[0].reason} in the queue of {history.deaths[0].queue}"
        activation.record(Transition.RETURNED, event.message.message_id, detail=came_from)
        self._begin(delivery, connection, activation)

    def _begin(self, delivery: Delivery, connection: Connection | None, activation: Activation) -> bool:
        """False: the message is refused, because the queue is full (`overflow = reject`) or the client offline (QoS 0)."""
        at_once = connection is not None and (
            delivery.message.qos == QoS.AT_MOST_ONCE or self._nothing_in_front(activation.now_ms)
        )
        if delivery.expired(activation.now_ms, at_once=at_once):
            activation.finish(delivery, Outcome.EXPIRED)
        elif connection is not None and at_once:
            self._send(delivery, connection, activation)
        elif delivery.message.qos == QoS.AT_MOST_ONCE and not self.settings.mqueue_store_qos0:
            activation.finish(delivery, Outcome.OFFLINE)
            return False
        else:
            return self._enqueue(delivery, connection, activation)
        return True

    def refuse(self, event: MessageRefused, activation: Activation) -> None:
        """A message that breaks the contract of `inflight.messages` ends here."""
        activation.finish(self._take(event.message), Outcome.INVALID, detail=event.detail)

    def _take(self, message: Message) -> Delivery:
        self.next_order += 1
        ttl_ms = self.settings.policy.message_ttl_ms
        ttl_ends_ms = None if ttl_ms is None else message.accepted_ms + ttl_ms
        return Delivery(message=message, order=self.next_order, queue_ttl_ends_ms=ttl_ends_ms)

    def _enqueue(self, delivery: Delivery, connection: Connection | None, activation: Activation) -> bool:
        """False: see `_begin`."""
        size_bytes = len(delivery.message.payload)
        if self.queue.would_overflow(size_bytes):
            self.drop_expired(activation)
            self.fill(connection, activation)  # slots freed earlier in this activation come before any loss
        if self.settings.overflow is Overflow.REJECT and self.queue.would_overflow(size_bytes):
            activation.finish(delivery, Outcome.MAXLEN, detail="the queue is full and refuses new messages (overflow = reject)")
            return False
        for dropped in self.queue.make_room(size_bytes):
            activation.finish(dropped, Outcome.MAXLEN, detail="dropped from a full queue to make room for a newer message")
        self.queue.append(delivery)
        activation.record(Transition.QUEUED, delivery.message.message_id)
        return True

    # --- to the client ------------------------------------------------------------------------------------------------------

    def fill(self, connection: Connection | None, activation: Activation) -> None:
        """Move messages from the queue to the window while there are both messages and slots. After `drop_expired`."""
        if connection is None:
            return
        while self.queue and self._may_dequeue(activation.now_ms):
            self._send(self.queue.pop(), connection, activation)

    def follow_queue(self, activation: Activation) -> None:
        """Tell backends about the length of the queue; the last step of an activation."""
        self.throttled_since_ms = follow_queue(self.queue, self.throttled_since_ms, self.settings, activation)

    def replay(self, connection: Connection, activation: Activation) -> None:
        """The client is back: everything unfinished again, in the order first sent [MQTT-4.4.0-1] [MQTT-4.6.0-1]."""
        for entry in self.window:
            self._resend(entry, OutboundEvent.REPLAY, connection, activation)
        for delivery in self.queue.take_qos0():
            if delivery.expired(activation.now_ms):
                activation.finish(delivery, Outcome.EXPIRED)
            else:
                self._send(delivery, connection, activation)

    def retry(self, connection: Connection, activation: Activation) -> None:
        """Send again what has waited for `retry_interval`. Not for a connection on which timers do not run (see `stalled`)."""
        for entry in self.window.on_wire(connection.send_quota):
            if self._overdue(entry, activation.now_ms):
                self._resend(entry, OutboundEvent.RETRY_DUE, connection, activation)

    def stalled(self, connection: Connection, now_ms: int) -> bool:
        """Whether the connection holds an acknowledgement back for longer than `retry_interval`."""
        return any(self._overdue(entry, now_ms) for entry in self.window.on_wire(connection.send_quota))

    def timers_run(self, connection: Connection) -> bool:
        """MQTT 5 forbids timed resends on a live connection [MQTT-4.4.0-1] unless the operator insists."""
        return connection.protocol_version < 5 or self.settings.retry_mqtt5 is RetryMqtt5.TIMER

    def _nothing_in_front(self, now_ms: int) -> bool:
        return not self.queue and self._may_dequeue(now_ms)

    def _may_dequeue(self, now_ms: int) -> bool:
        return self.window.send_quota > 0 and not self._blocked(now_ms)

    def _blocked(self, now_ms: int) -> bool:
        return self.blocked_until_ms is not None and self.blocked_until_ms > now_ms

    def _send(self, delivery: Delivery, connection: Connection, activation: Activation) -> None:
        """First transmission, DUP 0, under a new packet id [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.3-1] [MQTT-4.3.3-2], or the
        only one at QoS 0, without an id [MQTT-2.2.1-2] [MQTT-4.3.1-1]."""
        message = delivery.message
        qos = self.subscriptions.capped_qos(message.topic, message.qos)
        if self._give_up(delivery, connection, qos, activation):
            return
        self._count_attempt(delivery, activation.now_ms)
        if qos == QoS.AT_MOST_ONCE:
            activation.publish(connection, delivery, transition=Transition.SENT, packet_id=0, qos=qos, dup=False)
            activation.finish(delivery, Outcome.SENT)
            return
        packet_id = self.packet_ids.allocate(self.window)
        self.window.add(InflightEntry(packet_id=packet_id, phase=FIRST_PHASE[qos], delivery=delivery, sent_ms=activation.now_ms))
        activation.publish(connection, delivery, transition=Transition.SENT, packet_id=packet_id, qos=qos, dup=False)

    def _resend(self, entry: InflightEntry, cause: OutboundEvent, connection: Connection, activation: Activation) -> None:
        delivery = entry.delivery
        entry.phase, action = outbound_step(entry.phase, cause)
        if cause is OutboundEvent.RETRY_DUE:
            entry.timeouts += 1
        if action is OutboundAction.RESEND_PUBREL:
            entry.sent_ms = activation.now_ms
            activation.pubrel(connection, entry.packet_id, delivery.message.message_id)
            return
        qos = QoS.AT_LEAST_ONCE if entry.phase is FIRST_PHASE[1] else QoS.EXACTLY_ONCE
        if self._give_up(delivery, connection, qos, activation):
            self._free(entry, connection, activation.now_ms)
            if cause is OutboundEvent.RETRY_DUE:
                activation.add(
                    WithdrawPublish(
                        connection_id=connection.connection_id,
                        partition=connection.partition,
                        sequence=connection.next_sequence(),
                        packet_ids=(entry.packet_id,),
                    )
                )
            return
        entry.sent_ms = activation.now_ms
        self._count_attempt(
            delivery, activation.now_ms
        )  # DUP 1 below, because this is a repetition [MQTT-3.3.1-1] [MQTT-3.3.1-3]
        transition = Transition.REPLAYED if cause is OutboundEvent.REPLAY else Transition.RESENT
        activation.publish(connection, delivery, transition=transition, packet_id=entry.packet_id, qos=qos, dup=True)

    def _free(self, entry: InflightEntry, connection: Connection, now_ms: int) -> None:
        """The exchange is over. The message that the gateway held back behind it goes out now, and its clock starts now."""
        held_back = len(self.window) > connection.send_quota
        self.window.remove(entry.packet_id)
        if held_back:
            self.window.youngest_on_wire(connection.send_quota).sent_ms = now_ms

    def _give_up(self, delivery: Delivery, connection: Connection, qos: QoS, activation: Activation) -> bool:
        """Finish a message that must not be sent (once more); True if so."""
        message = delivery.message
        if self._used_up(delivery):
            detail = f"not acknowledged in {delivery.attempts} attempt{'' if delivery.attempts == 1 else 's'}"
            if delivery.last_refusal:
                detail += f"; the last refusal had reason code 0x{delivery.last_refusal:02X}"
            activation.finish(delivery, Outcome.DELIVERY_LIMIT, reason_code=delivery.last_refusal, detail=detail)
            return True
        limit_bytes = connection.maximum_packet_size_bytes
        if limit_bytes is None:
            return False
        size_bytes = publish_packet_bytes(
            message, qos=qos, protocol_version=connection.protocol_version, expires=message.expires_at_ms is not None
        )
        if size_bytes <= limit_bytes:
            return False
        detail = f"the PUBLISH takes {size_bytes} bytes, the client's Maximum Packet Size is {limit_bytes}"  # [MQTT-3.1.2-25]
        activation.finish(delivery, Outcome.TOO_LARGE, detail=detail)
        return True

    def _used_up(self, delivery: Delivery) -> bool:
        return 0 <= self.settings.delivery_limit <= delivery.attempts

    @staticmethod
    def _count_attempt(delivery: Delivery, now_ms: int) -> None:
        delivery.attempts += 1
        if delivery.first_sent_ms is None:
            delivery.first_sent_ms = now_ms

    def _overdue(self, entry: InflightEntry, now_ms: int) -> bool:
        return self._answer_due_ms(entry) <= now_ms

    def _answer_due_ms(self, entry: InflightEntry) -> int:
        # Asked for each entry of each activation, so the usual answer is spelt out.
        wait_ms = retry_wait_ms(entry.timeouts, self.settings) if entry.timeouts else self.settings.retry_interval_ms
        return entry.sent_ms + wait_ms

    # --- from the client ----------------------------------------------------------------------------------------------------

    def acknowledge(
        self, event: PubAckReceived | PubRecReceived | PubCompReceived, connection: Connection, activation: Activation
    ) -> None:
        """One acknowledgement. Raises ProtocolViolation if it is of the wrong kind for its packet id."""
        packet_id, reason_code = event.packet_id, event.reason_code
        entry = self.window.get(packet_id)
        phase = OutboundPhase.ABSENT if entry is None else entry.phase
        next_phase, action = outbound_step(phase, _kind(event))
        match action:
            case OutboundAction.IGNORE:
                activation.record(Transition.UNKNOWN_ACKNOWLEDGEMENT, packet_id=packet_id, reason_code=reason_code)
                return
            case OutboundAction.ANSWER_UNKNOWN_PUBREC:
                activation.record(Transition.UNKNOWN_ACKNOWLEDGEMENT, packet_id=packet_id, reason_code=reason_code)
                known_to_v5 = ReasonCode.PACKET_ID_NOT_FOUND if connection.protocol_version >= 5 else ReasonCode.SUCCESS
                activation.pubrel(connection, packet_id, None, reason_code=known_to_v5)
                return
            case OutboundAction.PROTOCOL_ERROR:
                raise ProtocolViolation(f"{_kind(event).name} for packet id {packet_id}, which is {phase.name}")
        assert entry is not None
        # The table has no resend in the row of an acknowledgement.
        assert action is not OutboundAction.RESEND_PUBLISH
        assert action is not OutboundAction.RESEND_PUBREL
        entry.phase = next_phase
        match action:
            case OutboundAction.COMPLETE:
                self._free(entry, connection, activation.now_ms)
                self.quota_refusals, self.blocked_until_ms = 0, None
                activation.finish(entry.delivery, Outcome.DELIVERED, packet_id=packet_id, reason_code=reason_code)
            case OutboundAction.REFUSE:
                self._free(entry, connection, activation.now_ms)
                assert not isinstance(event, PubCompReceived)
                self._refused(entry, event, activation)
            case OutboundAction.RELEASE | OutboundAction.ANSWER_PUBREL:
                entry.sent_ms, entry.timeouts = activation.now_ms, 0
                message_id = entry.delivery.message.message_id
                activation.record(Transition.PUBREC, message_id, packet_id=packet_id, reason_code=reason_code)
                entry.delivery.message = _without_payload(entry.delivery.message)
                if not (isinstance(event, PubRecReceived) and event.pubrel_sent):
                    activation.pubrel(connection, packet_id, message_id)
            case _:
                assert_never(action)

    def acknowledge_late(
        self, event: PubAckReceived | PubRecReceived | PubCompReceived, connection: Connection | None, activation: Activation
    ) -> None:
        """What the client said on a connection that this session has left, in so far as it got further there.

        It counts: a gateway answers a PUBREC as soon as it is in the log, so the client may have handed the message on and
        forgotten the packet id: a PUBLISH under it would be a second delivery [MQTT-4.3.3-6]. Refusals, and what does not
        fit, are ignored: the replay asks again, and a message sent anew under another id could be delivered twice.
        connection: the present one, if there is one.
        """
        entry = self.window.get(event.packet_id)
        if entry is None:
            return
        next_phase, action = outbound_step(entry.phase, _kind(event))
        delivery = entry.delivery
        if action is OutboundAction.RELEASE:
            entry.phase, entry.sent_ms, entry.timeouts = next_phase, activation.now_ms, 0
            delivery.attempts = max(1, delivery.attempts)  # given back when the connection ended, but it had arrived
            activation.record(Transition.PUBREC, delivery.message.message_id, packet_id=event.packet_id)
            delivery.message = _without_payload(delivery.message)
        elif action is OutboundAction.COMPLETE:
            delivery.attempts = max(1, delivery.attempts)
            if connection is None:
                self.window.remove(event.packet_id)
            else:
                self._free(entry, connection, activation.now_ms)
            activation.finish(delivery, Outcome.DELIVERED, packet_id=event.packet_id, reason_code=event.reason_code)

    def _refused(self, entry: InflightEntry, event: PubAckReceived | PubRecReceived, activation: Activation) -> None:
        delivery, reason_code, reason = entry.delivery, event.reason_code, event.reason[:_REASON_CHARACTERS]
        message_id = delivery.message.message_id
        for_good = reason_code in REFUSED_FOR_GOOD
        delivery.last_refusal = reason_code
        # One round of refusals is one step of the backoff, however many messages of the round are refused.
        if reason_code == ReasonCode.QUOTA_EXCEEDED and not self._blocked(activation.now_ms):
            self.quota_refusals += 1
            jitter_key = f"{activation.client_id}/{message_id}/{delivery.attempts}"
            wait_ms = backoff_wait_ms(self.quota_refusals, self.settings.backoff, jitter_key=jitter_key)
            self.blocked_until_ms = entry.sent_ms + wait_ms
        activation.record(
            Transition.REFUSED,
            message_id,
            packet_id=entry.packet_id,
            attempt=delivery.attempts,
            reason_code=reason_code,
            detail=": ".join(filter(None, ("" if for_good else self._next_attempt(entry, activation.now_ms), reason))),
        )
        if for_good:
            detail = f"the client refused it with reason code 0x{reason_code:02X}" + (f": {reason}" if reason else "")
            activation.finish(delivery, Outcome.REJECTED, packet_id=entry.packet_id, reason_code=reason_code, detail=detail)
        else:
            self.queue.put_back(delivery)

    def _next_attempt(self, entry: InflightEntry, now_ms: int) -> str:
        """For people: when a message that was just refused is sent again. The second number counts from the row's own time."""
        if self._used_up(entry.delivery):
            return "it was the last attempt"
        throttled = entry.delivery.last_refusal == ReasonCode.QUOTA_EXCEEDED or self._blocked(now_ms)
        if self.blocked_until_ms is None or not throttled:
            return "next attempt at once"
        wait_ms, left_ms = self.blocked_until_ms - entry.sent_ms, max(0, self.blocked_until_ms - now_ms)
        return f"next attempt {wait_ms} ms after the start of this one, in {left_ms} ms"

    # --- time and endings ---------------------------------------------------------------------------------------------------

    def drop_expired(self, activation: Activation) -> None:
        """Messages whose time ran out while they waited [MQTT-3.3.2-5]; what was sent once does not expire [MQTT-4.3.3-7]."""
        for delivery in self.queue.take_expired(activation.now_ms):
            activation.finish(delivery, Outcome.EXPIRED)

    def connection_ended(self, connection: Connection, now_ms: int) -> None:
        """An attempt counts once the client had `retry_interval` to answer it; a connection that ends earlier gives it back."""
        for position, entry in enumerate(self.window):
            if position < connection.send_quota and self._overdue(entry, now_ms):
                entry.timeouts += 1
            elif entry.phase is not OutboundPhase.AWAITING_PUBCOMP:
                entry.delivery.attempts -= 1

    def end(self, activation: Activation) -> None:
        """The session is over: everything leaves with `session_ended`."""
        for entry in self.window:
            activation.finish(
                entry.delivery,
                Outcome.SESSION_ENDED,
                packet_id=entry.packet_id,
                payload_kept=entry.phase is not OutboundPhase.AWAITING_PUBCOMP,
            )
        for delivery in self.queue.take_all():
            activation.finish(delivery, Outcome.SESSION_ENDED)
        self.window.clear()
        self.subscriptions.clear()
        self.quota_refusals, self.blocked_until_ms = 0, None

    def next_deadline_ms(self, connection: Connection | None, *, reconnect_helps: bool) -> int | None:
        """The earliest moment at which this half has something to do. reconnect_helps: a stalled connection is to be closed."""
        deadlines = [self.queue.next_expiry_ms()]
        if connection is not None:
            if self.queue and self.window.send_quota > 0:
                deadlines.append(self.blocked_until_ms)
            if self.timers_run(connection) or reconnect_helps:
                answers = map(self._answer_due_ms, self.window.on_wire(connection.send_quota))
                deadlines.append(min(answers, default=None))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)


def _kind(event: PubAckReceived | PubRecReceived | PubCompReceived) -> OutboundEvent:
    refused = event.reason_code >= _REFUSED_FROM
    match event:
        case PubAckReceived():
            return OutboundEvent.PUBACK_REFUSED if refused else OutboundEvent.PUBACK
        case PubRecReceived():
            return OutboundEvent.PUBREC_REFUSED if refused else OutboundEvent.PUBREC
        case PubCompReceived():  # 0x92 too: the client has let the packet id go
            return OutboundEvent.PUBCOMP
        case _:
            assert_never(event)


def _without_payload(message: Message) -> Message:
    """What must be known about a message that the client has taken over: who it was, for its receipt."""
    properties = NO_PROPERTIES
    if message.properties.response_topic is not None:
        properties = PublishProperties(
            response_topic=message.properties.response_topic, correlation_data=message.properties.correlation_data
        )
    return msgspec.structs.replace(message, payload=b"", properties=properties, headers=())
