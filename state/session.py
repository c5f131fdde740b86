"""The session of one MQTT client: a function of (session, events, time).

An activation has five numbered steps, and a caller may rely on their order:

 1. It applies the events, in the order given.
 2. It applies what time has made due: expiry, timed resends, abandoned publications, the will, the end of the session, messages
    with `deliver-at`.
 3. It fills free slots of the window from the queue, then sends the QoS 0 messages that remain in it. Then it applies limits of
    the queue that the fence had suspended, or that hold since step 2, and compares the queue with its watermarks.
 4. It opens, renews or closes the fast path (state/outbound/fast_path/grants.py), writes what matchers must know
    (state/outbound/routing/routed.py), and tells backends whether the client is connected (state/presence.py). What may be read
    only when a will of this activation is in the log waits for the next one (state/inbound/wills.py).
 5. The caller carries out the commands in order, stores the session, and arranges the next call at `next_deadline_ms()`.

So an acknowledgement that is in the log together with a passed deadline prevents the resend, and a resend precedes what step 3
sends. A full queue drops messages in step 1 (state/outbound/admission.py, rules 3 and 5). The session reads no clock: `now_ms`
is the caller's, and never goes back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from state.activation import Activation
from state.commands import AcceptConnection, CloseConnection, Command, DropAwaitingRel, HeldCommand, Transition
from state.connection import SessionConnection
from state.errors import ProtocolViolation
from state.events import (
    PROTOCOL_NAMES,
    CancelRequested,
    Claim,
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    DeadlineReached,
    Event,
    FastPathClosed,
    FastSent,
    MessageArrived,
    MessageEvent,
    MessageRefused,
    MessageReturned,
    MessageSubmitted,
    PubAckReceived,
    PubCompReceived,
    PublishAccepted,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
    SessionPurged,
    Subscribed,
    Unsubscribed,
)
from state.inbound.inbound import SessionInbound
from state.inbound.wills import PendingWill, pending_will, publish_will, split_behind_wills
from state.model import NEVER_EXPIRES_S, ClientId, ReasonCode
from state.outbound import acknowledgements, admission, cancellation, collapsing, endings, retransmission, transmission
from state.outbound.backlog import Backlog
from state.outbound.fast_path import adoption, continuing, grants
from state.outbound.outbound import SessionOutbound
from state.outbound.routing import routed
from state.outbound.routing.session_routing import SessionRouting
from state.presence import PresenceState, changed
from state.records.session_marks import has_expired
from state.settings import RetryMqtt5, SessionSettings

_RETURN_COPIES_TIMEOUT_MS: Final = 3_600_000
"""Time for which a client without a session remembers the dead letters of the newest micro-batch that sent any.

A re-executed micro-batch writes its dead letters again. A copy that is read after the queue has become empty must be recognised.
"""
_EXPIRED: Final = "session expiry interval passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """The figures of a session that can be queried without decoding it.

    Attributes:
        oldest_unacked_ms: Time at which the oldest unacknowledged packet was last sent.
    """

    connected: bool
    inflight: int
    queued: int
    queued_bytes: int
    oldest_unacked_ms: int | None


class Session:
    """Holds the state of one client over its connections.

    Connections are accepted in the order of their ids only. So those of this session have the ids from `started_by` to
    `newest_connection_id`.

    Attributes:
        started_by: Id of the connection that began the present session.
        newest_connection_id: Id of the newest connection that was accepted; 0 = none.
        established: A client session exists that a CONNECT can resume. Otherwise this is only a queue of addressed messages.
        offline_since_ms: The session expiry counts from here; None = connected. Without a client session it is the time at which
            the queue last accepted a message. So messages for a client that never connects end one expiry interval later, or by
            their own time to live.
    """

    __slots__ = (
        "client_id",
        "close_unconfirmed",
        "connection",
        "established",
        "held",
        "held_since_ms",
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
        """The session has closed its newest connection, and the gateway has not confirmed the end."""
        self.session_expiry_interval_s = settings.session_expiry_interval_s
        self.pending_will: PendingWill | None = None
        self.held: tuple[HeldCommand, ...] = ()
        """Commands for the next activation: a will that was published in the last one belongs before them in the log."""
        self.held_since_ms = 0
        self.outbound = SessionOutbound(settings)
        self.inbound = SessionInbound()

    # --- the contract -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event | MessageArrived, *, now_ms: int) -> tuple[Command, ...]:
        """Applies one event in an activation of its own. See `handle_all`."""
        return self.handle_all((event,), now_ms=now_ms)

    def handle_all(self, events: Iterable[Event | MessageArrived], *, now_ms: int) -> tuple[Command, ...]:
        """Runs one activation (the steps are in the module's docstring).

        A peer cannot make it raise: a protocol violation closes the connection of the client that committed it.

        Args:
            now_ms: Time of the activation.

        Returns:
            The commands, in the order in which to carry them out.
        """
        activation = Activation(self.client_id, now_ms, self.settings)
        activation.commands += self.held
        self.held = ()
        if self.is_empty:  # the host may have forgotten it: both cases must give the same commands
            self.offline_since_ms = now_ms
            self.started_by = self.newest_connection_id = 0
            self.outbound.positions.forget()
            self.outbound.routing = SessionRouting()
        grants.begin_of_activation(self.outbound, activation)
        if not self.outbound.queue:
            if self.connection is not None:
                self.outbound.backlog.progressed(now_ms, self.settings)
            elif self.outbound.backlog.keeps_up_until_ms <= now_ms:
                self.outbound.backlog = Backlog()
        self.outbound.apply_limits()
        events, presence = tuple(events), self._presence()
        activation.ended = {event.connection_id for event in events if isinstance(event, ClientDisconnected | ConnectionLost)}
        for event in events:  # step 1
            try:
                self._apply(event, activation)
            except ProtocolViolation as violation:  # [MQTT-4.13.1-1]
                self._close(violation.reason_code, violation.reason, activation)
        self._pass_time(activation)  # step 2
        transmission.fill(self.outbound, self.connection, activation)  # step 3
        endings.drop_above_limit(self.outbound, self.connection, activation)
        self.outbound.compare_with_watermarks(activation)
        if not self.outbound.queue and self.connection is not None:
            self.outbound.backlog = Backlog()  # of a connected client without a queue each activation knows that it keeps up
        grants.end_of_activation(self.outbound, self.connection, activation)  # step 4
        if self.settings.routing:
            routed.end_of_activation(
                self.outbound,
                activation,
                has_session=self.established,
                is_kept=self.established and self.session_expiry_interval_s > 0,
                is_online=self.connection is not None,
                has_will=self.pending_will is not None or (self.connection is not None and self.connection.will is not None),
                newest_connection_id=self.newest_connection_id,
            )
        commands: list[Command] = activation.commands
        if activation.has_published_will:
            commands, self.held = split_behind_wills(commands)
            self.held_since_ms = now_ms
        told = changed(
            presence,
            self._presence(),
            activation.presence,
            self.connection,
            session_expiry_interval_s=self.session_expiry_interval_s,
            now_ms=now_ms,
        )
        return (*commands, told) if told is not None else tuple(commands)

    def next_deadline_ms(self) -> int | None:
        """Returns the time at which the session must be called even without an event; None = only an event can change it."""
        outbound, connection = self.outbound, self.connection
        # While the fast path closes, timers wait for FastPathClosed or the end of the connection.
        sends = None if connection is None or connection.fast_path_closing else connection
        oldest = self.inbound.awaiting_rel.oldest_received_ms()
        deadlines = (
            outbound.queue.next_expiry_ms() if connection is None or sends is not None else None,
            None if sends is None else outbound.next_dequeue_ms(sends),
            None if sends is None else retransmission.next_ack_due_ms(outbound, sends),
            outbound.backlog.next_ms() if outbound.queue else None,
            None if oldest is None else oldest + self.settings.await_rel_timeout_ms,
            self._session_ends_ms(),
            self._return_copies_expire_ms(),
            outbound.scheduled.next_due_ms() if outbound.scheduled.waiting else None,
            None if self.pending_will is None else self.pending_will.due_ms,
            self.held_since_ms + 1 if self.held else None,
            routed.next_end_ms(outbound.routing, has_session=self.established) if outbound.routing.is_needed else None,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def is_empty(self) -> bool:
        """Says that no later event could need anything in the session, so that the caller may forget it."""
        outbound = self.outbound
        if self.connection is not None or self.established or self.pending_will is not None or self.held:
            return False
        is_needed = outbound.positions.unread or outbound.returns.digests or outbound.routing.is_needed
        return not outbound.queue and not outbound.scheduled.waiting and not is_needed

    def accepts_fast_sent(self, event: FastSent) -> bool:
        """Returns True if a FastSent is of the newest connection.

        That connection may have ended meanwhile. After a later connection was accepted the event does not count.
        """
        return event.connection_id == self.newest_connection_id and self._is_of_this_session(event.connection_id)

    @property
    def keeps_up(self) -> bool:
        """Returns True while the queue may have `max_backlog_bytes` (outbound/backlog.py, rule 1)."""
        return self.outbound.backlog.keeps_up

    def summary(self) -> SessionSummary:
        return SessionSummary(
            connected=self.connection is not None,
            inflight=len(self.outbound.window),
            queued=len(self.outbound.queue),
            queued_bytes=self.outbound.queue.size_bytes,
            oldest_unacked_ms=self.outbound.window.oldest_sent_ms(),
        )

    def _presence(self) -> PresenceState:
        connection_id = 0 if self.connection is None else self.connection.connection_id
        return PresenceState(connection_id, self.newest_connection_id, self.established)

    # --- 1: events ----------------------------------------------------------------------------------------------------------

    def _apply(self, event: Event | MessageArrived, activation: Activation) -> None:
        match event:  # the most frequent kinds come first
            case FastSent():
                if self.accepts_fast_sent(event):
                    adoption.adopt(self.outbound, event, self._current_connection(event.connection_id), activation)
            case PubAckReceived() | PubRecReceived() | PubCompReceived():  # valid from an earlier connection, too
                if (connection := self._current_connection(event.connection_id)) is not None:
                    self._apply_to_connection(connection, event, activation)
                elif self._is_of_this_session(event.connection_id):
                    acknowledgements.acknowledge_late(self.outbound, event, self.connection, activation)
            case MessageArrived():
                if not grants.was_adopted(self.outbound, event.position, activation):
                    self._apply_message(event.read(), activation)
            case MessageSubmitted() | MessageRefused() | CancelRequested():
                if not grants.was_adopted(self.outbound, event.position, activation):
                    self._apply_message(event, activation)
            case MessageReturned():
                accepted = admission.accept_returned(self.outbound, event, self.connection, activation)
                self._restart_queue_expiry(accepted, activation)
            case SessionPurged():
                self._purge(activation)
            case DeadlineReached():
                pass  # steps 2 and 3 do the work
            case ClientConnected():
                self._connect(event, activation)
            case PublishReceived():
                self._apply_publication(event, activation)
            case PublishAccepted():
                self._apply_accepted(event, activation)
            case PubRelReceived() | Subscribed() | Unsubscribed():
                # The client was answered as soon as the event was in the log, so it counts after the connection's end too.
                if self._is_of_this_session(event.connection_id):
                    self._apply_to_session(event, activation)
            # The end of an earlier connection may come late. It matters only if the session waits for the confirmation that it is
            # over, or if the client died on a message.
            case ClientDisconnected() | ConnectionLost():
                if (connection := self._current_connection(event.connection_id)) is not None:
                    self._apply_to_connection(connection, event, activation)
                else:
                    self._confirm_close(event, activation)
                retransmission.count_crash(self.outbound, event.connection_id, event.unanswered)
            case FastPathClosed():
                if (connection := self._current_connection(event.connection_id)) is not None:
                    grants.closed(connection, activation)
            case _:
                assert_never(event)

    def _confirm_close(self, event: ClientDisconnected | ConnectionLost, activation: Activation) -> None:
        """Restarts the session expiry at the end of a connection that the session itself had closed [MQTT-3.1.2-23]."""
        if self.close_unconfirmed and event.connection_id == self.newest_connection_id:
            self.close_unconfirmed = False
            self.offline_since_ms = activation.now_ms

    def _apply_message(self, event: MessageEvent, activation: Activation) -> None:
        if isinstance(event, MessageRefused):
            admission.refuse(self.outbound, event, activation)
        elif isinstance(event, CancelRequested):
            cancellation.cancel(self.outbound, event.message_id, self.connection, activation)
        elif event.message.routing is not None:
            if routed.is_new(self.outbound, event.message, activation):
                self._apply_routed(event, activation)
        else:
            self._restart_queue_expiry(admission.submit(self.outbound, event, self.connection, activation), activation)

    def _apply_routed(self, event: MessageSubmitted, activation: Activation) -> None:
        """Admits a routed message if the client is subscribed. It restarts nothing: without a session it is not accepted."""
        admissible = routed.admissible(
            self.outbound,
            event,
            activation,
            newest_connection_id=self.newest_connection_id,
            started_by=self.started_by,
            has_session=self.established,
        )
        if admissible is not None:
            admission.submit(self.outbound, admissible, self.connection, activation)

    def _restart_queue_expiry(self, accepted: bool, activation: Activation) -> None:
        if accepted and not self.established:
            self.offline_since_ms = activation.now_ms

    def _apply_to_session(self, event: PubRelReceived | Subscribed | Unsubscribed, activation: Activation) -> None:
        match event:
            case PubRelReceived():
                self.inbound.release(event, activation)
            case Subscribed() | Unsubscribed() if not routed.is_overtaken(self.outbound, event):
                subscriptions, changes = self.outbound.subscriptions, activation.fast_path
                if isinstance(event, Subscribed):
                    for subscription in event.subscriptions:
                        changes.subscriptions_changed |= subscriptions.add(subscription)
                else:
                    for topic_filter in event.topic_filters:
                        changes.subscriptions_changed |= subscriptions.discard(topic_filter)
                is_late = self._current_connection(event.connection_id) is None
                routed.list_read(self.outbound, event, activation, is_late=is_late)
            case Subscribed() | Unsubscribed():
                pass
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
                    activation.was_kept = True
                    self.session_expiry_interval_s = self.settings.granted_session_expiry_s(event.session_expiry_interval_s)
                if event.reason_code == ReasonCode.SUCCESS:
                    connection.will = None  # [MQTT-3.14.4-3]
                self._disconnected(connection, f"DISCONNECT 0x{event.reason_code:02X}", activation)
            case ConnectionLost():
                self._disconnected(connection, event.reason, activation, reconnect_grace_ms=event.reconnect_grace_ms)
            case _:
                assert_never(event)

    def _apply_publication(self, event: PublishReceived, activation: Activation) -> None:
        """Applies a publication. The client may have its PUBREC already, so it counts even if its connection is over."""
        if not self._is_of_this_session(event.connection_id):
            self.inbound.forward(event, activation)  # of an ended session, whose packet ids are independent of this one's
            return
        is_earlier = event.connection_id < self.newest_connection_id
        entered = self.inbound.publication(event, activation, is_of_earlier_connection=is_earlier)
        if entered:
            self._check_receive_maximum(event.connection_id)

    def _apply_accepted(self, event: PublishAccepted, activation: Activation) -> None:
        """Applies a publication that its gateway hands on, unless a later CONNECT is before it (state/inbound/inbound.py)."""
        is_newest = event.connection_id == self.newest_connection_id and self._is_of_this_session(event.connection_id)
        if is_newest and self.inbound.accepted(event, activation):
            self._check_receive_maximum(event.connection_id)

    def _check_receive_maximum(self, connection_id: int) -> None:
        """Raises ProtocolViolation if the client has too many publications that it has not released [MQTT-3.3.4-7]."""
        connection = self._current_connection(connection_id)
        # MQTT 3.1.1 has no Receive Maximum: only the number of packet ids limits unreleased publications.
        has_maximum = connection is not None and connection.protocol_version >= 5
        limit = self.settings.max_awaiting_rel
        if has_maximum and 0 < limit < len(self.inbound.awaiting_rel.entries):
            raise ProtocolViolation("Receive Maximum exceeded", reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)

    def _current_connection(self, connection_id: int) -> SessionConnection | None:
        """Returns the present connection if it has this id."""
        return self.connection if self.connection is not None and self.connection.connection_id == connection_id else None

    def _is_of_this_session(self, connection_id: int) -> bool:
        return self.established and self.started_by <= connection_id <= self.newest_connection_id

    # --- connections --------------------------------------------------------------------------------------------------------

    def _connect(self, event: ClientConnected, activation: Activation) -> None:
        if event.connection_id <= self.newest_connection_id:
            self._refuse_older(event, activation)
            return
        newest_connection_id, was_connected = self.newest_connection_id, self.connection is not None
        self.newest_connection_id = event.connection_id
        if self.connection is not None:
            self._close(ReasonCode.SESSION_TAKEN_OVER, "another connection uses this client id", activation)  # [MQTT-3.1.4-3]
        # What was sent behind the CONNECT may have been read before it, as two topics are.
        sent_before_ms = event.logged_ms or None
        if event.clean_start:
            self._end_session("clean start", activation, sent_before_ms=sent_before_ms)  # [MQTT-3.1.2-4]
        elif self._has_expired(event, newest_connection_id, is_connected=was_connected, now_ms=activation.now_ms):
            self._end_session(_EXPIRED, activation, sent_before_ms=sent_before_ms)  # [MQTT-3.1.2-23] [MQTT-4.1.0-2]
        session_present = self.established  # [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3]
        if event.claim and (event.claim == Claim.RESUMED) is not session_present:
            self._refuse_claim(event, activation)
            return
        if not session_present:
            self.established = True
            self.started_by = event.connection_id
            routed.session_began(self.outbound, event.connection_id)
        else:
            if event.continued is not None and not continuing.is_known_list(self.outbound, event.continued):
                routed.claim_refused(self.outbound, event.connection_id, activation)
            routed.session_resumed(self.outbound, event.connection_id, activation)
        self.pending_will = None  # [MQTT-3.1.3-9]
        self.offline_since_ms, self.close_unconfirmed = None, False
        self.session_expiry_interval_s = self.settings.granted_session_expiry_s(event.session_expiry_interval_s)
        # With a claim the gateway has marked it, behind the end of an earlier session.
        activation.marks_session |= self.session_expiry_interval_s > 0 and not event.claim
        send_quota = min(self.settings.window_limit, event.receive_maximum)  # [MQTT-3.3.4-9] [MQTT-4.9.0-1]
        connection = SessionConnection.of(event, send_quota=send_quota)
        subscriptions, list_id = self.outbound.subscriptions, self.outbound.routing.list_id
        topic_filters = subscriptions.topic_filters(self.settings.max_subscription_bytes)
        with_routing = self.settings.routing
        continues = False
        if not session_present:
            grants.session_began(self.outbound, connection)
        elif event.continued is not None:
            continues = continuing.continue_path(self.outbound, connection, event.continued, newest_connection_id, activation)
        max_left, max_left_bytes = continuing.max_left(self.outbound)
        self.connection, activation.presence.gateway = connection, event.gateway
        self.outbound.window.limit = connection.send_quota
        self.outbound.progressed(activation.now_ms)
        activation.record(Transition.CONNECTED, detail=f"MQTT {PROTOCOL_NAMES.get(event.protocol_version, '3.1.1')}")
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
                topic_filters=topic_filters,
                max_subscriptions=self.settings.max_subscriptions,
                max_subscription_bytes=self.settings.max_subscription_bytes,
                subscriptions=tuple(subscriptions) if with_routing and topic_filters is not None else None,
                list_connection_id=list_id.connection_id if with_routing else 0,
                list_version=list_id.version if with_routing else 0,
                known_publications=self.inbound.known_publications() if with_routing else (),
                continues=continues,
                max_left=max_left,
                max_left_bytes=max_left_bytes,
            )
        )
        if connection.connection_id in activation.ended:
            activation.not_replayed.add(connection.connection_id)
        else:
            retransmission.replay(self.outbound, connection, activation)
        for early in routed.pop_early(self.outbound, event.connection_id):
            self._apply_routed(early, activation)

    def _has_expired(self, event: ClientConnected, newest_connection_id: int, *, is_connected: bool, now_ms: int) -> bool:
        """Returns True if the session is there, and has expired as the gateway claims.

        Args:
            newest_connection_id: Before this CONNECT.
            is_connected: Before this CONNECT.
        """
        return (
            self.established
            and event.expired is not None
            and has_expired(
                event.expired,
                started_by=self.started_by,
                newest_connection_id=newest_connection_id,
                interval_s=self.session_expiry_interval_s,
                is_connected=is_connected,
                now_ms=now_ms,
            )
        )

    def _refuse_claim(self, event: ClientConnected, activation: Activation) -> None:
        """Refuses a CONNECT whose gateway has answered it with a wrong Session Present, and keeps what there is.

        The gateway has acknowledged nothing of the device that the session would need. So neither of them has lost anything when
        the device connects again, and gateways know by then whether there is a session.
        """
        if self.established:
            activation.marks_session = True
            routed.claim_refused(self.outbound, event.connection_id, activation)
        reason = "CONNACK was wrong about the session: connect again"
        activation.presence.reason = activation.presence.reason or reason
        activation.record(Transition.CONNECTION_REFUSED, detail=reason)
        activation.mark_ends = max(activation.mark_ends, event.connection_id)  # unless there is a session
        activation.add(
            CloseConnection(
                connection_id=event.connection_id,
                partition=event.commands_partition,
                sequence=1,
                reason_code=ReasonCode.SERVER_BUSY,
                reason=reason,
            )
        )

    def _refuse_older(self, event: ClientConnected, activation: Activation) -> None:
        """Refuses a CONNECT whose connection id is below the newest one: it is older, or the clock of its gateway is behind.

        Of the session only the number of its list changes. The gateway learns the newest id, so the client's next attempt gets a
        higher one.
        """
        connection = self.connection
        if connection is not None and (event.connection_id, event.commands_partition) == (
            connection.connection_id,
            connection.partition,
        ):
            return  # a repetition of the record
        activation.record(Transition.CONNECTION_REFUSED, detail="a later connection is known")
        routed.connection_refused(self.outbound, event.connection_id, self.newest_connection_id, activation)
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
        """Ends the connection from the session's side. It is over for the session at once; the gateway follows."""
        connection = self.connection
        assert connection is not None, "only a connected client violates the protocol, is taken over or stalls"
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
        if connection.connection_id not in activation.not_replayed:
            retransmission.connection_ended(self.outbound, connection, now_ms)
        else:  # a late PUBACK of the connection before may have completed a message that would have been replayed
            self.outbound.abandoned.connection_ended()
        grants.connection_ended(connection, activation)
        self.outbound.backlog.connection_ended(now_ms, self.settings)
        self.outbound.apply_limits()
        self.connection = None
        self.offline_since_ms = now_ms
        activation.announces = True
        activation.presence.ended(connection, reason)
        activation.record(Transition.DISCONNECTED, detail=reason)
        pending = pending_will(connection, self.session_expiry_interval_s, now_ms, reconnect_grace_ms)
        if self.session_expiry_interval_s == 0:
            self._end_session("session expiry interval 0", activation)
        self.pending_will = pending
        self._publish_due_will(activation)

    # --- 2: time ------------------------------------------------------------------------------------------------------------

    def _pass_time(self, activation: Activation) -> None:
        has_only_answers = activation.acknowledged > 0 and not activation.fast_path.read
        if self.outbound.backlog.pass_time(activation.now_ms, has_only_answers=has_only_answers):
            self.outbound.apply_limits()
            activation.limits_lowered = True
        endings.drop_expired(self.outbound, self.connection, activation)
        if self.outbound.queue.has_repeated_keys:
            collapsing.drop_superseded(self.outbound, self.connection, activation)
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
        if connection is not None:
            self._await_acknowledgements(connection, activation)
        self._publish_due_will(activation)
        ends_ms = self._session_ends_ms()
        if ends_ms is not None and ends_ms <= activation.now_ms:
            self._end_session(_EXPIRED, activation, with_scheduled=self.established)
        copies_end_ms = self._return_copies_expire_ms()
        if copies_end_ms is not None and copies_end_ms <= activation.now_ms:
            self.outbound.returns.forget()
        if self.outbound.routing.is_needed:
            routed.pass_time(self.outbound, activation, has_session=self.established)
        if self.outbound.scheduled.waiting:
            self._restart_queue_expiry(admission.admit_due(self.outbound, self.connection, activation), activation)

    def _await_acknowledgements(self, connection: SessionConnection, activation: Activation) -> None:
        """Does what follows from acknowledgements that are overdue: a resend, the end of the connection, or nothing."""
        if retransmission.timers_run(self.outbound, connection):
            retransmission.retry(self.outbound, connection, activation)
        elif not self._reconnect_brings_replay:
            retransmission.note_overdue(self.outbound, connection, activation)
        elif retransmission.is_stalled(self.outbound, connection, activation.now_ms):
            self._close_stalled(connection, activation)

    def _close_stalled(self, connection: SessionConnection, activation: Activation) -> None:
        """Closes a stalled MQTT 5 connection, so that the client reconnects and gets its replay.

        Timed resends are forbidden here [MQTT-4.4.0-1]. An open fast path is closed first: a message that the gateway still sends
        would end as if the client were offline.
        """
        if connection.fence is not None:
            activation.fast_path.waits_for_fence = True
            return
        reason = "a message was not acknowledged in time: reconnect to receive it again"
        self._close(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason, activation)

    @property
    def _reconnect_brings_replay(self) -> bool:
        """Says that closing a stalled connection gives the client a replay. A session that ends with its connection has none."""
        return self.settings.retry_mqtt5 is RetryMqtt5.RECONNECT and self.session_expiry_interval_s > 0

    def _session_ends_ms(self) -> int | None:
        """Returns when the session expires.

        It does not expire while connected [MQTT-4.1.0-1]. After that it lives for its interval [MQTT-3.1.2-23] and no longer
        [MQTT-4.1.0-2].
        """
        if self.offline_since_ms is None or self.session_expiry_interval_s == NEVER_EXPIRES_S:
            return None
        if not self.established and not self.outbound.queue:
            return None
        return self.offline_since_ms + self.session_expiry_interval_s * 1_000

    def _return_copies_expire_ms(self) -> int | None:
        """Returns when a client without a session may forget the dead letters of the newest micro-batch."""
        if self.offline_since_ms is None or self.established or not self.outbound.returns.digests:
            return None
        return self.offline_since_ms + _RETURN_COPIES_TIMEOUT_MS

    def _publish_due_will(self, activation: Activation) -> None:
        if self.pending_will is not None and self.pending_will.due_ms <= activation.now_ms:
            self._publish_will(self.pending_will, activation)

    def _publish_will(self, pending: PendingWill, activation: Activation) -> None:
        self.pending_will = None  # [MQTT-3.1.2-10]
        publish_will(pending, activation)
        activation.has_published_will = True
        activation.mark_ends = max(activation.mark_ends, self.newest_connection_id)

    def _purge(self, activation: Activation) -> None:
        """Ends the session of an offline client.

        A connected client keeps its session: its gateway may be sending messages by the fast path that the session has not read.
        """
        if self.connection is not None:
            activation.record(Transition.REFUSED, detail="the client is connected: its session is not purged")
        else:
            self._end_session("purged by an operator", activation)

    def _end_session(
        self, reason: str, activation: Activation, *, with_scheduled: bool = True, sent_before_ms: int | None = None
    ) -> None:
        """Ends everything in window and queue; later events start a new session. The pending will of an earlier session stays
        pending.

        Args:
            with_scheduled: Ends what waits for its `deliver-at` too.
            sent_before_ms: As in `endings.end`.
        """
        if self.pending_will is not None and self.established:
            self._publish_will(self.pending_will, activation)  # [MQTT-3.1.2-8]
        if self.established:
            was_kept = activation.was_kept or self.session_expiry_interval_s > 0 or self.started_by < self.newest_connection_id
            if was_kept:
                activation.mark_ends = max(activation.mark_ends, self.newest_connection_id)
            routed.session_ends(self.outbound, self.newest_connection_id, activation)
        endings.end(self.outbound, activation, with_scheduled=with_scheduled, sent_before_ms=sent_before_ms)
        self.inbound.end()
        if self.established:
            activation.presence.reason = activation.presence.reason or reason
            activation.record(Transition.SESSION_ENDED, detail=reason)
        self.established = self.close_unconfirmed = False
        self.session_expiry_interval_s = self.settings.session_expiry_interval_s
