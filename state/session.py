"""The session of one MQTT client: a function of (session, events, time).

An activation has five numbered steps, and a caller may rely on their order:

 1. the events, in the order given;
 2. what time has brought about: expiry, timed resends, abandoned publications, the will, the end of the session;
 3. free slots of the window are filled from the queue, QoS 0 that they leave behind follows, and what is left in the queue is
    compared with its limits, where they could not be kept before, and with the watermarks;
 4. the fast path opens, closes or goes on (state/outbound/fast_path/grants.py);
 5. the caller carries out the commands in order, stores the session, and arranges to call again at `next_deadline_ms()`.

So an acknowledgement that waits in the log together with a passed deadline prevents the resend, and a resend goes before what
step 3 sends. Where the queue is full, messages leave it in step 1 (state/outbound/admission.py, rules 3 and 5). The session reads
no clock: `now_ms` is the caller's, and never goes back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from state.activation import Activation
from state.commands import AcceptConnection, CloseConnection, Command, DropAwaitingRel, Transition
from state.connection import SessionConnection
from state.errors import ProtocolViolation
from state.events import (
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    DeadlineReached,
    Event,
    FastPathClosed,
    FastSent,
    MessageRefused,
    MessageReturned,
    MessageSubmitted,
    PubAckReceived,
    PubCompReceived,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
    SessionPurged,
    Subscribed,
    Unsubscribed,
)
from state.inbound.inbound import SessionInbound
from state.inbound.wills import PendingWill, pending_will, publish_will
from state.model import NEVER_EXPIRES_S, ClientId, ReasonCode
from state.outbound import acknowledgements, admission, endings, retransmission, transmission
from state.outbound.fast_path import adoption, grants
from state.outbound.outbound import SessionOutbound
from state.settings import RetryMqtt5, SessionSettings

_RETURN_COPIES_TIMEOUT_MS: Final = 3_600_000
"""A micro-batch that is executed again writes its dead letters a second time. Without a session they are known for so long after
the last one was taken, also when nothing waits any more: else a copy that is read after the first one has left would count again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """What people want to query without decoding a session. oldest_unacked_ms: when the oldest awaited packet was last sent."""

    connected: bool
    inflight: int
    queued: int
    queued_bytes: int
    oldest_unacked_ms: int | None


class Session:
    """Everything that Inflight knows about one client.

    started_by: the connection that began the present session; newest_connection_id: the latest one that was accepted, 0 = none.
    Connections are accepted in the order of their ids only, so those of this session are the ids from the one to the other.
    established: a client session exists that a CONNECT can resume; without one this is only a queue of addressed messages.
    offline_since_ms: the session's expiry counts from here; None = connected. Without a session, it is when the queue last took a
    message: what waits for a client that never comes ends one interval after that, or by its own time to live.
    """

    __slots__ = (
        "client_id",
        "close_unconfirmed",
        "connection",
        "established",
        "inbound",
        "newest_connection_id",
        "offline_since_ms",
        "outbound",
        "pending_will",
        "session_expiry_interval_s",
        "settings",
        "started_by",
    )

    def __init__(self, *, client_id: ClientId, settings: SessionSettings) -> None:
        self.client_id = client_id
        self.settings = settings
        self.connection: SessionConnection | None = None
        self.established = False
        self.started_by = 0
        self.newest_connection_id = 0
        self.offline_since_ms: int | None = None
        self.close_unconfirmed = False
        """The newest connection was ended from here, and its gateway has not said that it is over."""
        self.session_expiry_interval_s = settings.session_expiry_interval_s
        self.pending_will: PendingWill | None = None
        self.outbound = SessionOutbound(settings)
        self.inbound = SessionInbound()

    # --- the contract -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, *, now_ms: int) -> tuple[Command, ...]:
        """One event in an activation of its own. See `handle_all`."""
        return self.handle_all((event,), now_ms=now_ms)

    def handle_all(self, events: Iterable[Event], *, now_ms: int) -> tuple[Command, ...]:
        """One activation (the steps of the module's docstring). Returns what to do, in order.

        Never raises for what a peer did: a protocol violation closes the connection of the client that committed it.
        """
        activation = Activation(self.client_id, now_ms, self.settings)
        if self.is_empty:  # as if it had been forgotten, which it may have been
            self.offline_since_ms = now_ms
            self.started_by = self.newest_connection_id = 0
            self.outbound.positions.forget()
        for event in events:  # 1
            try:
                self._apply(event, activation)
            except ProtocolViolation as violation:  # [MQTT-4.13.1-1]
                self._close(violation.reason_code, violation.reason, activation)
        self._pass_time(activation)  # 2
        transmission.fill(self.outbound, self.connection, activation)  # 3
        endings.drop_above_limit(self.outbound, activation)
        self.outbound.compare_with_watermarks(activation)
        grants.end_of_activation(self.outbound, self.connection, activation)  # 4
        return tuple(activation.commands)

    def next_deadline_ms(self) -> int | None:
        """When the session must be called next even if nothing happens; None = only when something happens."""
        outbound, connection = self.outbound, self.connection
        # What is to be done at a time when the fast path closes is done when it has closed.
        sends = None if connection is None or connection.fast_path_closing else connection
        timers_run = sends is not None and (retransmission.timers_run(outbound, sends) or self._reconnect_brings_replay)
        oldest = self.inbound.awaiting_rel.oldest_received_ms()
        deadlines = (
            outbound.queue.next_expiry_ms() if connection is None or sends is not None else None,
            None if sends is None else outbound.next_dequeue_ms(sends),
            retransmission.next_answer_due_ms(outbound, sends) if sends is not None and timers_run else None,
            None if oldest is None else oldest + self.settings.await_rel_timeout_ms,
            self._session_ends_ms(),
            self._return_copies_expire_ms(),
            None if self.pending_will is None else self.pending_will.due_ms,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def is_empty(self) -> bool:
        """Nothing is left that a later event could need: the caller may forget the session."""
        outbound = self.outbound
        if self.connection is not None or self.established or self.pending_will is not None:
            return False
        return not outbound.queue and not outbound.positions.unread and not outbound.returns.digests

    def accepts_fast_sent(self, event: FastSent) -> bool:
        """It may be on the wire although the connection is said to be over; not if the client has come back since."""
        return event.connection_id == self.newest_connection_id and self._is_of_this_session(event.connection_id)

    def summary(self) -> SessionSummary:
        return SessionSummary(
            connected=self.connection is not None,
            inflight=len(self.outbound.window),
            queued=len(self.outbound.queue),
            queued_bytes=self.outbound.queue.size_bytes,
            oldest_unacked_ms=self.outbound.window.oldest_sent_ms(),
        )

    # --- 1: events ----------------------------------------------------------------------------------------------------------

    def _apply(self, event: Event, activation: Activation) -> None:
        match event:
            case MessageSubmitted() | MessageRefused():
                if not grants.was_adopted(self.outbound, event.position, activation):
                    self._apply_message(event, activation)
            case MessageReturned():
                accepted = admission.accept_returned(self.outbound, event, self.connection, activation)
                self._restart_queue_expiry(accepted, activation)
            case SessionPurged():
                self._purge(activation)
            case DeadlineReached():
                pass  # steps 2 and 3 are the answer
            case ClientConnected():
                self._connect(event, activation)
            case PublishReceived():
                self._apply_publication(event, activation)
            case PubRelReceived() | Subscribed() | Unsubscribed():
                # Answered as soon as it was in the log: it counts for the session even if the connection is history.
                if self._is_of_this_session(event.connection_id):
                    self._apply_to_session(event, activation)
            # A connection that the session has left may still have something in the log: its acknowledgements count, its ending
            # only if the session itself has wanted it.
            case PubAckReceived() | PubRecReceived() | PubCompReceived():
                if (connection := self._current_connection(event.connection_id)) is not None:
                    self._apply_to_connection(connection, event, activation)
                elif self._is_of_this_session(event.connection_id):
                    acknowledgements.acknowledge_late(self.outbound, event, self.connection, activation)
            case ClientDisconnected() | ConnectionLost():
                if (connection := self._current_connection(event.connection_id)) is not None:
                    self._apply_to_connection(connection, event, activation)
                else:
                    self._confirm_close(event, activation)
            case FastSent():
                if self.accepts_fast_sent(event):
                    adoption.adopt(self.outbound, event, self._current_connection(event.connection_id), activation)
            case FastPathClosed():
                if (connection := self._current_connection(event.connection_id)) is not None:
                    grants.closed(connection, activation)
            case _:
                assert_never(event)

    def _confirm_close(self, event: ClientDisconnected | ConnectionLost, activation: Activation) -> None:
        """The session's time begins when its connection has been closed, not when the session has wanted that [MQTT-3.1.2-23]."""
        if self.close_unconfirmed and event.connection_id == self.newest_connection_id:
            self.close_unconfirmed = False
            self.offline_since_ms = activation.now_ms

    def _apply_message(self, event: MessageSubmitted | MessageRefused, activation: Activation) -> None:
        if isinstance(event, MessageRefused):
            admission.refuse(self.outbound, event, activation)
        else:
            self._restart_queue_expiry(admission.submit(self.outbound, event, self.connection, activation), activation)

    def _restart_queue_expiry(self, accepted: bool, activation: Activation) -> None:
        if accepted and not self.established:
            self.offline_since_ms = activation.now_ms

    def _apply_to_session(self, event: PubRelReceived | Subscribed | Unsubscribed, activation: Activation) -> None:
        match event:
            case PubRelReceived():
                self.inbound.release(event, activation)
            case Subscribed():
                for subscription in event.subscriptions:
                    activation.fast_path.subscriptions |= self.outbound.subscriptions.add(subscription)
            case Unsubscribed():
                for topic_filter in event.topic_filters:
                    activation.fast_path.subscriptions |= self.outbound.subscriptions.discard(topic_filter)
            case _:
                assert_never(event)

    def _apply_to_connection(
        self,
        connection: SessionConnection,
        event: ClientDisconnected | ConnectionLost | PubAckReceived | PubRecReceived | PubCompReceived,
        activation: Activation,
    ) -> None:
        match event:
            case PubAckReceived() | PubRecReceived() | PubCompReceived():
                acknowledgements.acknowledge(self.outbound, event, connection, activation)
            case ClientDisconnected():
                if event.session_expiry_interval_s is not None and self.session_expiry_interval_s:  # MQTT 5, 3.14.2.2.2
                    self.session_expiry_interval_s = self.settings.granted_session_expiry_s(event.session_expiry_interval_s)
                if event.reason_code == ReasonCode.SUCCESS:
                    connection.will = None  # [MQTT-3.14.4-3]
                self._disconnected(connection, f"DISCONNECT 0x{event.reason_code:02X}", activation)
            case ConnectionLost():
                self._disconnected(connection, event.reason, activation, reconnect_grace_ms=event.reconnect_grace_ms)
            case _:
                assert_never(event)

    def _apply_publication(self, event: PublishReceived, activation: Activation) -> None:
        """A publication is in the log, so the client may have its PUBREC already: it counts even if the connection is history."""
        if not self._is_of_this_session(event.connection_id):
            self.inbound.forward(event, activation)  # of a session that has ended: its packet ids mean nothing to the next one
            return
        is_earlier = event.connection_id < self.newest_connection_id
        entered = self.inbound.publication(event, activation, is_of_earlier_connection=is_earlier)
        connection = self._current_connection(event.connection_id)
        # MQTT 3.1.1 has no Receive Maximum: a packet id is held until its PUBREL, and there are 65,535 of them.
        has_maximum = connection is not None and connection.protocol_version >= 5
        limit = self.settings.max_awaiting_rel
        if entered and has_maximum and 0 < limit < len(self.inbound.awaiting_rel.entries):
            # [MQTT-3.3.4-7]
            raise ProtocolViolation("Receive Maximum exceeded", reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)

    def _current_connection(self, connection_id: int) -> SessionConnection | None:
        """The connection if it is this one."""
        return self.connection if self.connection is not None and self.connection.connection_id == connection_id else None

    def _is_of_this_session(self, connection_id: int) -> bool:
        return self.established and self.started_by <= connection_id <= self.newest_connection_id

    # --- connections --------------------------------------------------------------------------------------------------------

    def _connect(self, event: ClientConnected, activation: Activation) -> None:
        if event.connection_id <= self.newest_connection_id:
            self._refuse_older(event, activation)
            return
        self.newest_connection_id = event.connection_id
        if self.connection is not None:
            self._close(ReasonCode.SESSION_TAKEN_OVER, "another connection uses this client id", activation)  # [MQTT-3.1.4-3]
        if event.clean_start:
            self._end_session("clean start", activation)  # [MQTT-3.1.2-4]
        session_present = self.established  # [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3]
        if not session_present:
            self.established = True
            self.started_by = event.connection_id
        self.pending_will = None  # [MQTT-3.1.3-9]
        self.offline_since_ms, self.close_unconfirmed = None, False
        self.session_expiry_interval_s = self.settings.granted_session_expiry_s(event.session_expiry_interval_s)
        send_quota = min(self.settings.window_limit, event.receive_maximum)  # [MQTT-3.3.4-9] [MQTT-4.9.0-1]
        connection = SessionConnection.of(event, send_quota=send_quota)
        self.connection = connection
        self.outbound.window.limit = connection.send_quota + self.settings.prefetch
        activation.record(Transition.CONNECTED, detail=f"MQTT {'5' if event.protocol_version >= 5 else '3.1.1'}")
        activation.add(
            AcceptConnection(
                connection_id=connection.connection_id,
                partition=connection.partition,
                sequence=connection.next_sequence(),
                session_present=session_present,
                session_expiry_interval_s=self.session_expiry_interval_s,
                send_quota=connection.send_quota,
                awaiting_rel=tuple(self.inbound.awaiting_rel.entries),
                max_awaiting_rel=self.settings.max_awaiting_rel,
                topic_filters=self.outbound.subscriptions.topic_filters(self.settings.max_subscription_bytes),
                max_subscriptions=self.settings.max_subscriptions,
                max_subscription_bytes=self.settings.max_subscription_bytes,
            )
        )
        retransmission.replay(self.outbound, connection, activation)

    def _refuse_older(self, event: ClientConnected, activation: Activation) -> None:
        """A CONNECT that was read before the newest one, or whose gateway has a clock behind another's: it changes nothing here.
        If it was the clock, the client's next attempt has an id above the newest."""
        connection = self.connection
        if connection is not None and (event.connection_id, event.commands_partition) == (
            connection.connection_id,
            connection.partition,
        ):
            return  # the same record once more
        activation.record(Transition.CONNECTION_REFUSED, detail="a later connection is known")
        activation.add(
            CloseConnection(
                connection_id=event.connection_id,
                partition=event.commands_partition,
                sequence=1,
                reason_code=ReasonCode.SERVER_BUSY,
                reason="a later connection of this client is known: connect again",
                newest_connection_id=self.newest_connection_id,
            )
        )

    def _close(self, reason_code: ReasonCode, reason: str, activation: Activation) -> None:
        """End the connection from our side. It is over for the session at once; the gateway follows."""
        connection = self.connection
        assert connection is not None, "who is not connected commits no violation, is not taken over and does not stall"
        activation.add(
            CloseConnection(
                connection_id=connection.connection_id,
                partition=connection.partition,
                sequence=connection.next_sequence(),
                reason_code=reason_code,
                reason=reason,
            )
        )
        self._disconnected(connection, reason, activation)
        self.close_unconfirmed = self.established

    def _disconnected(
        self, connection: SessionConnection, reason: str, activation: Activation, *, reconnect_grace_ms: int = 0
    ) -> None:
        now_ms = activation.now_ms
        retransmission.connection_ended(self.outbound, connection, now_ms)
        grants.connection_ended(connection, activation)
        self.connection = None
        self.offline_since_ms = now_ms
        activation.record(Transition.DISCONNECTED, detail=reason)
        pending = pending_will(connection, self.session_expiry_interval_s, now_ms, reconnect_grace_ms)
        if self.session_expiry_interval_s == 0:
            self._end_session("session expiry interval 0", activation)
        self.pending_will = pending
        self._publish_due_will(activation)

    # --- 2: time ------------------------------------------------------------------------------------------------------------

    def _pass_time(self, activation: Activation) -> None:
        endings.drop_expired(self.outbound, self.connection, activation)
        abandoned = self.inbound.abandon_overdue(self.settings.await_rel_timeout_ms, activation)
        connection = self.connection
        if connection is not None and abandoned:
            activation.add(
                DropAwaitingRel(
                    connection_id=connection.connection_id,
                    partition=connection.partition,
                    sequence=connection.next_sequence(),
                    packet_ids=abandoned,
                )
            )
        if connection is not None and retransmission.timers_run(self.outbound, connection):
            retransmission.retry(self.outbound, connection, activation)
        elif (
            connection is not None
            and self._reconnect_brings_replay
            and retransmission.is_stalled(self.outbound, connection, activation.now_ms)
        ):
            self._close_stalled(connection, activation)
        self._publish_due_will(activation)
        ends_ms = self._session_ends_ms()
        if ends_ms is not None and ends_ms <= activation.now_ms:
            self._end_session("session expiry interval passed", activation)
        copies_end_ms = self._return_copies_expire_ms()
        if copies_end_ms is not None and copies_end_ms <= activation.now_ms:
            self.outbound.returns.forget()

    def _close_stalled(self, connection: SessionConnection, activation: Activation) -> None:
        """MQTT 5 forbids to resend here [MQTT-4.4.0-1]; a client that comes back gets its replay. What the gateway still sends by
        the fast path has to be known first: it would end as if nobody had been there."""
        if connection.fence is not None:
            activation.fast_path.waits_for_fence = True
            return
        reason = "a message was not acknowledged in time: reconnect to receive it again"
        self._close(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason, activation)

    @property
    def _reconnect_brings_replay(self) -> bool:
        """Closing a stalled connection brings the client a replay, unless its session would end with the connection."""
        return self.settings.retry_mqtt5 is RetryMqtt5.RECONNECT and self.session_expiry_interval_s > 0

    def _session_ends_ms(self) -> int | None:
        """Never while connected [MQTT-4.1.0-1]; then kept for its interval [MQTT-3.1.2-23] and no longer [MQTT-4.1.0-2]."""
        if self.offline_since_ms is None or self.session_expiry_interval_s == NEVER_EXPIRES_S:
            return None
        if not self.established and not self.outbound.queue:
            return None
        return self.offline_since_ms + self.session_expiry_interval_s * 1_000

    def _return_copies_expire_ms(self) -> int | None:
        """Without a session, when no copy of the dead letters in the queue is expected any more."""
        if self.offline_since_ms is None or self.established or not self.outbound.returns.digests:
            return None
        return self.offline_since_ms + _RETURN_COPIES_TIMEOUT_MS

    def _publish_due_will(self, activation: Activation) -> None:
        if self.pending_will is not None and self.pending_will.due_ms <= activation.now_ms:
            self._publish_will(self.pending_will, activation)

    def _publish_will(self, pending: PendingWill, activation: Activation) -> None:
        self.pending_will = None  # [MQTT-3.1.2-10]
        publish_will(pending, activation)

    def _purge(self, activation: Activation) -> None:
        """What a gateway sends to a connected client by the fast path would have to be known first; who is away gets nothing."""
        if self.connection is not None:
            activation.record(Transition.REFUSED, detail="the client is connected: its session is not purged")
        else:
            self._end_session("purged by an operator", activation)

    def _end_session(self, reason: str, activation: Activation) -> None:
        """Everything in window and queue leaves; what comes next is a new session. A will of an earlier one waits on."""
        if self.pending_will is not None and self.established:
            self._publish_will(self.pending_will, activation)  # [MQTT-3.1.2-8]
        endings.end(self.outbound, activation)
        self.inbound.end()
        if self.established:
            activation.record(Transition.SESSION_ENDED, detail=reason)
        self.established = self.close_unconfirmed = False
        self.session_expiry_interval_s = self.settings.session_expiry_interval_s
