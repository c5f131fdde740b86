"""The connection of one device, without sockets, Kafka, randomness or a clock.

Bytes, commands, confirmations, answers and time come in by method calls. Each call returns `Effects`: all that the connection
wants done. It makes no calls of its own.

Theory of operation
1. The host carries out the effects of each call before the next one (sinks/mqtt/device_socket.py): records to Kafka, reading on
   or off, the timer, bytes to the device, the end, and requests, whose answers are calls again.
2. A CONNECT goes `receive` → Register → `registered` → LogIn → `logged_in` → the record `ClientConnected`. The connection id is
   made from the time at which CONNECT came, and commands for that id reach the connection from then on. In a burst of CONNECTs
   the login waits in a queue (`turn_has_come`). Everything else waits in the buffer until `AcceptConnection`.
3. The engine refuses a CONNECT whose id is below the newest one of the client. If Kafka had our CONNECT without delay, the cause
   is not a late CONNECT but a clock that is behind: the connection is registered again, with an id above the newest.
4. With Clean Start nothing old is owed to the device. So CONNACK does not wait for the engine but for Kafka's confirmation of the
   CONNECT, which comes after the login. The content of CONNACK is known from the configuration. What the device then sends still
   waits for `AcceptConnection`.
5. A packet of an accepted device becomes a record first. Its answer goes out when Kafka has confirmed the record, in the order of
   the requests (`AppendQueue`), whatever the order of the confirmations [MQTT-4.6.0-2].
6. Packet ids, retries and the judgement of acknowledgements are the session's. Kept here are only what is on this wire
   (`Outbox`), the session's grant (`WireFastPath`), the packet ids that await PUBREL (`Publications`) and which topic filters
   exist (`SubscriptionJudge`).
7. After a protocol error the gateway reads nothing more from the device. It answers what it accepted before, and then closes.
   Without these answers a device that exceeds our Receive Maximum would send the same publications again after each reconnect.
8. A gateway that stops, or loses a partition, uses `close_gracefully`: it tells the engine first, and closes the socket when
   Kafka has confirmed this and all earlier records. So the end is in the log before the device can reconnect, and its packets are
   answered.
9. The engine hears of each end once: `ClientDisconnected` or `ConnectionLost`. It hears nothing after its own `CloseConnection`
   if the client has another connection, or if that command came instead of CONNACK. After a takeover it hears of the end only if
   the device had not answered a message: the device may have died on it (docs/protocol.md, section 2).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from typing import Final

from sinks.fast_path.offering import FastPathState
from sinks.host.command_order import BUILD_MISMATCH, CommandOrder, CommandStatus
from sinks.host.outbox import FastPublish, Outbox
from sinks.host.wire_table import WireAction
from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefused
from sinks.mqtt.codec import framing, packets
from sinks.mqtt.codec.acknowledgements import encode_acknowledgement, plain_acknowledgement
from sinks.mqtt.codec.framing import FrameBuffer
from sinks.mqtt.codec.packets import ConnAck, Connect, Disconnect, PubComp, Publish, PubRel, ServerPacket, Subscribe, Unsubscribe
from sinks.mqtt.connection.append_queue import Append, AppendQueue
from sinks.mqtt.connection.effects import ANNOUNCE, Effects, LogIn, Register, Registration, Request
from sinks.mqtt.connection.fast_path import OfferRefusal, WireFastPath
from sinks.mqtt.connection.handshake import (
    V5,
    V311,
    Codec,
    ConnectionRefused,
    check_first_bytes,
    connack,
    connected_event,
    expected_accept,
    limited_keep_alive_s,
    read_connect,
)
from sinks.mqtt.connection.phases import AWAITING_ACCEPT, BEFORE_CONNACK, DEVICE_FAILED, OPEN, OVERDUE, CloseReason, Phase
from sinks.mqtt.connection.publications import Publications
from sinks.mqtt.connection.subscribing import SubscriptionJudge
from sinks.mqtt.limits.adaptive_rate import AdaptiveRateLimiter
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.packet_rates import PacketRates
from sinks.mqtt.limits.settings import Limit
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import (
    AcceptConnection,
    CloseConnection,
    CloseFastPath,
    DropAwaitingRel,
    GatewayCommand,
    OfferPublish,
    OpenFastPath,
    SendPublish,
    SendPubRel,
    WithdrawPublish,
)
from state.errors import ProtocolViolation
from state.events import ClientDisconnected, ConnectionLost, FastPathClosed, GatewayEvent, Subscribed, Unsubscribed
from state.model import ClientId, PacketId, ReasonCode
from state.records.events import encode_event, encode_puback, encode_pubcomp, encode_pubrec, encode_pubrel

_PROMPT_MS: Final = 1_000
"""From reading a CONNECT to the confirmation of its record. Within this no later CONNECT is in the log before it."""
_KEEP_ALIVE_MS: Final = 1_500
"""Factor from the Keep Alive in seconds to one and a half times it in milliseconds [MQTT-3.1.2-22]."""
_BLOCKED_BYTES: Final = 4_096
"""While the device does not take what was written, this much of it is received, so that silence can be told from speech."""
OTHER_CONFIGURATION: Final = "configuration"
"""The cause by which a connection ends whose CONNACK has said something else than the engine."""
_NO_CONNECT: Final = Connect(protocol_version=4, client_id="", clean_start=True)
_VIOLATION: Final = "protocol error"
_TAKEN_OVER: Final = CloseReason("another connection uses this client id", "engine", ReasonCode.SESSION_TAKEN_OVER)
_PEER_CLOSED: Final = CloseReason("the client closed the socket", "socket")
_LOGIN_ENDED: Final = CloseReason("the login has ended", "login ended", ReasonCode.NOT_AUTHORIZED)
_STALLED: Final = CloseReason("the client does not read", "does not read", ReasonCode.KEEP_ALIVE_TIMEOUT)
_NO_APPENDS: Final[list[Append]] = []


@dataclass(slots=True, eq=False)
class WireConnection:
    """See the module. Every call with `now_ms` returns what the host must do next; all times are of one monotonic clock.

    Args:
        counters: the gateway's.
        total: what all connections have told Kafka; limiter: what each may send; None = there is no other connection.
    """

    settings: GatewaySettings
    counters: GatewayCounters
    now_ms: InitVar[int]
    total: InitVar[Unconfirmed | None] = None
    limiter: InitVar[AdaptiveRateLimiter | None] = None
    phase: Phase = Phase.AWAITING_CONNECT
    client_id: ClientId = ""
    key: bytes = b""
    connection_id: int = 0
    partition: int = -1
    was_taken_over: bool = False
    refused_because: str = ""
    """Why the first packet was not accepted as a CONNECT; empty = it was, or has not come."""
    _frames: FrameBuffer = field(init=False)
    _rates: PacketRates = field(init=False)
    _records: AppendQueue = field(init=False)
    _packets: list[bytes] = field(default_factory=list)
    """Encoded packets for the device, in their order."""
    # CONNECT and its way to the engine.
    _codec: Codec = V311  # until CONNECT says
    _connect: Connect = _NO_CONNECT
    _connect_read_ms: int = 0
    _connect_append: Append | None = None
    """The record with ClientConnected; None = the engine has never heard of the connection."""
    _was_prompt: bool = False
    _is_late: bool = False
    _knows_settings: bool = False
    _login: Grant = EVERYTHING
    _lease_id: str = ""
    _order: CommandOrder = field(default_factory=CommandOrder)
    _answer: ConnAck | None = None
    """The CONNACK that was sent in the phase ANSWERED."""
    # What an accepted connection has; the first two are None in every other phase.
    _outbox: Outbox | None = None
    _fast_path: WireFastPath | None = None
    _publications: Publications = field(init=False)
    _subscriptions: SubscriptionJudge = field(init=False)
    # The end.
    _peer_gone: bool = False
    _pending_close: CloseReason | None = None
    """The connection ends by it when everything before it is answered, or confirmed; what the device sends now is dropped."""
    _is_end_told: bool = False
    """The engine knows that the connection ends."""
    # Time.
    _handshake_ms: int | None = None
    """The deadline of the present step of the handshake; None after the handshake."""
    _last_received_ms: int = 0
    _keep_alive_ms: int = 0
    _stalled_write_ms: int = 0
    _taken_ms: int | None = None
    """When the device last took bytes of more than the buffers hold; None = the buffers hold all that was written."""
    _login_ends_ms: int | None = None

    def __post_init__(self, now_ms: int, total: Unconfirmed | None, limiter: AdaptiveRateLimiter | None) -> None:
        settings, limits = self.settings, self.settings.device_limits
        self._frames = FrameBuffer(min(limits.max_connect_bytes, settings.max_packet_size_bytes))
        self._rates = PacketRates(limits, self.counters, now_ms, limiter)
        self._records = AppendQueue(settings, Unconfirmed(limits) if total is None else total)
        self._handshake_ms = now_ms + settings.connect_timeout_ms
        self._stalled_write_ms = settings.stalled_write_timeout_ms

    @property
    def is_closed(self) -> bool:
        return self.phase is Phase.CLOSED

    def is_low_rate(self, now_ms: int) -> bool:
        """The device is connected and sends little, so others are slowed down for it. See AdaptiveRateLimiter."""
        return self._outbox is not None and self._rates.is_low_rate(now_ms)

    @property
    def fast_path(self) -> FastPathState:
        """Returns whether `offer` would accept a message now. Safe on any thread."""
        fast_path = self._fast_path
        if fast_path is None or self._pending_close is not None or self._peer_gone:
            return FastPathState.CLOSED
        return fast_path.state

    def _effects(self, requests: tuple[Request, ...] = ()) -> Effects:
        written, records, outbox = self._packets, self._records, self._outbox
        deadline_ms, write = self._next_deadline_ms(), b""
        if written:
            write = written[0] if len(written) == 1 else b"".join(written)
            written.clear()
        held_bytes, is_full = len(self._frames), records.is_full
        if outbox is not None or is_full:
            wants_data = not is_full and self._rates.paused_until_ms is None and not self._is_filled_while_blocked
        else:
            wants_data = self.phase is Phase.AWAITING_CONNECT or held_bytes < self._frames.max_packet_size_bytes
        if outbox is not None:
            held_bytes += outbox.held_bytes
        return Effects(
            write,
            records.take_new() if records.new else _NO_APPENDS,
            requests,
            wants_data,
            deadline_ms,
            self.phase is Phase.CLOSED,
            held_bytes,
        )

    # --- CONNECT: 1. read it, 2. register, 3. wait for the turn, 4. log in, 5. tell the engine, 6. CONNACK ----------------------

    def receive(self, data: bytes, now_ms: int) -> Effects:
        """Bytes of the device."""
        if self.phase is Phase.AWAITING_CONNECT:
            return self._read_connect(data, now_ms)
        if self.phase is not Phase.CLOSED and self._pending_close is None:
            self._last_received_ms = now_ms
            self._frames.feed(data)
            if self._outbox is not None:
                self._work_off(now_ms)
        return self._effects()

    def _read_connect(self, data: bytes, now_ms: int) -> Effects:
        frames = self._frames
        try:
            if not len(frames):
                check_first_bytes(data)
            frames.feed(data)
            packet = frames.next_packet()
            if packet is None:
                return self._effects()
            self._codec, self._connect = read_connect(*packet, self.settings, self._rates.parts)
        except ConnectionRefused as refusal:
            self.counters.connections_refused[refusal.reason_code] += 1
            self.refused_because = refusal.reason
            self._packets.append(refusal.answer)
            self._close()
            return self._effects()
        except ProtocolViolation as violation:
            self.counters.protocol_errors[violation.reason_code] += 1
            self.refused_because = violation.reason
            self._close()
            return self._effects()
        self.phase = Phase.QUEUED
        self._connect_read_ms = now_ms
        request = Register(self._connect.client_id)
        return Effects(b"", _NO_APPENDS, (request,), wants_data=True, deadline_ms=self._handshake_ms, close=False, held_bytes=0)

    def registered(self, request: Register, registration: Registration | None, turn: Turn, now_ms: int) -> Effects:
        """The answer to Register. registration: None = the connection cannot be held here now. turn: of a first request."""
        refusal = request.refusal
        if registration is None:
            if refusal is None:
                self._end(CloseReason("nobody is taken in now", "", ReasonCode.SERVER_UNAVAILABLE))
            else:
                self._close_for_engine(refusal)
            return self._effects()
        self.connection_id, self.client_id, self.partition, self._lease_id, self._knows_settings, self._is_late = registration
        self.key = self.client_id.encode()  # [MQTT-3.1.3-2]: by it the engine finds the session
        if refusal is not None:
            self._order = CommandOrder()
            return self._tell_connected()
        if turn is Turn.NEVER:
            self._end(CloseReason("too many CONNECTs wait", "", ReasonCode.SERVER_BUSY))
        return self.turn_has_come(now_ms) if turn is Turn.NOW else self._effects()

    def turn_has_come(self, now_ms: int) -> Effects:
        """Continues a CONNECT that waited for its login. Does nothing after the end of the connection or of its deadline."""
        self._expire(now_ms)
        if self.phase is not Phase.QUEUED:
            return self._effects()
        self.phase = Phase.AUTHENTICATING
        return self._effects((LogIn(self._connect, self.client_id),))

    def logged_in(self, login: Grant | LoginRefused, patience_ms: int, now_ms: int) -> Effects:
        """The answer to LogIn. Nothing happens if the connection has ended meanwhile, or its time is over.

        Args:
            patience_ms: How long the engine may take to answer the CONNECT.
        """
        self._expire(now_ms)
        if self.phase is not Phase.AUTHENTICATING:
            return self._effects()
        if isinstance(login, LoginRefused):  # [MQTT-3.1.4-2]
            self._end(CloseReason(str(login.refusal), "", login.reason_code))
            return self._effects()
        self._login = login
        if login.valid_ms is not None:
            self._login_ends_ms = now_ms + login.valid_ms
        self.phase = Phase.AWAITING_ACCEPT
        self._handshake_ms = now_ms + patience_ms
        return self._tell_connected()

    def _tell_connected(self) -> Effects:
        self._was_prompt = False
        event = connected_event(
            self._connect,
            connection_id=self.connection_id,
            partition=self.partition,
            lease_id=self._lease_id,
            has_fast_path=self.settings.fast_path.enabled,
            username=self._login.username,
        )
        self._connect_append = Append(encode_event(event))
        self._records.add(self._connect_append)
        return self._effects((ANNOUNCE,))

    def _answer_clean_start(self) -> None:
        """CONNECT is in the log: every later one comes behind it. See the module, 4."""
        if self.phase is Phase.AWAITING_ACCEPT and self._connect.clean_start and self._knows_settings:
            session = self.settings.session_of(self.client_id)
            self._answer = self._connack(expected_accept(self._connect, session, connection_id=self.connection_id))
            self._say_accepted(self._answer, Phase.ANSWERED)

    def _connack(self, accept: AcceptConnection) -> ConnAck:
        assigned_client_id = None if self._connect.client_id else self.client_id  # [MQTT-3.1.3-6]
        return connack(self._connect, accept, self.settings, assigned_client_id=assigned_client_id)

    def _say_accepted(self, answer: ConnAck, phase: Phase) -> bool:
        """CONNACK once [MQTT-3.2.0-2], and before everything else [MQTT-3.1.4-5] [MQTT-3.2.0-1]. False: it does not fit."""
        if not self._write_first_that_fits(answer):
            self._end(CloseReason("no room for CONNACK", _VIOLATION, ReasonCode.PACKET_TOO_LARGE))
            return False
        self.phase = phase
        self.counters.connections_accepted += 1
        self.counters.connections_open += 1
        return True

    def _accept(self, accept: AcceptConnection, now_ms: int) -> None:
        connect, settings = self._connect, self.settings
        limits, is_v5 = settings.device_limits, self._codec is V5
        answer = self._connack(accept)
        if self._answer is not None and answer != self._answer:
            self._end(CloseReason("the engine has another configuration", OTHER_CONFIGURATION, ReasonCode.SERVER_BUSY))
            return
        if self._answer is None and not self._say_accepted(answer, Phase.CONNECTED):
            return
        self.phase = Phase.CONNECTED
        self._outbox = Outbox(
            accept.send_quota,
            connect.receive_maximum if is_v5 else None,
            max_qos0_bytes=limits.max_blocked_qos0_bytes,
            is_blocked=self.is_blocked,
        )
        self._fast_path = WireFastPath(connect, self.connection_id, self._codec.encode_publish, self._outbox, settings)
        self._publications = Publications(
            client_id=self.client_id,
            connection_id=self.connection_id,
            is_v5=is_v5,
            grant=self._login,
            counters=self.counters,
            publish_rate=TokenBucket(settings.max_publish_rate, now_ms),
            topic_alias_maximum=settings.topic_alias_maximum,
            max_topic_levels=limits.max_topic_levels,
            awaiting_rel=dict.fromkeys(accept.awaiting_rel),
            max_awaiting_rel=accept.max_awaiting_rel,
        )
        self._subscriptions = SubscriptionJudge(
            None if accept.topic_filters is None else set(accept.topic_filters),
            self._login,
            accept.max_subscriptions,
            accept.max_subscription_bytes,
            limits.max_topic_levels,
        )
        self._rates.parts.session_filters = accept.max_subscriptions
        if not is_v5 and accept.max_awaiting_rel:
            self._records.max_unanswered = accept.max_awaiting_rel
        self._frames.max_packet_size_bytes = settings.max_packet_size_bytes
        self._handshake_ms = None
        self._keep_alive_ms = limited_keep_alive_s(connect.keep_alive_s, limits.max_keep_alive_s) * _KEEP_ALIVE_MS
        self._stalled_write_ms = max(self._stalled_write_ms, connect.keep_alive_s * _KEEP_ALIVE_MS)
        self._last_received_ms = now_ms
        self._work_off(now_ms)

    # --- from the engine and from routers ---------------------------------------------------------------------------------------

    def apply(self, commands: Iterable[GatewayCommand], code: str, now_ms: int) -> Effects:
        """Carry commands out, each once. code: of their record."""
        requests: tuple[Request, ...] = ()
        for command in commands:
            status = self._order.status_of(command.sequence, code)
            if status is CommandStatus.NEW:
                self.counters.commands_applied += 1
                request = self._apply(command, now_ms)
                if request is not None:
                    requests = (request,)
                continue
            self.counters.commands_repeated += 1
            if status is CommandStatus.BUILD_MISMATCH and self.phase is not Phase.CLOSED:
                self.counters.closed_for_other_code += 1
                self._end(CloseReason(BUILD_MISMATCH, "other code", ReasonCode.SERVER_BUSY))
        return self._effects(requests)

    def _apply(self, command: GatewayCommand, now_ms: int) -> Request | None:
        outbox, fast_path = self._outbox, self._fast_path
        if isinstance(command, CloseConnection):
            is_prompt = self.phase is Phase.AWAITING_ACCEPT and self._was_prompt and self._pending_close is None
            if command.newest_connection_id and is_prompt:
                return Register(self.client_id, command)
            self._close_for_engine(command)
        elif outbox is None or fast_path is None:
            if isinstance(command, AcceptConnection) and self.phase in AWAITING_ACCEPT:
                self._accept(command, now_ms)
        elif isinstance(command, SendPublish):
            self._send(command, outbox, fast_path, now_ms)
        elif isinstance(command, SendPubRel):
            self.counters.resends_dropped += outbox.release(command.packet_id) is WireAction.DROP
            self._write(PubRel(packet_id=command.packet_id, reason_code=command.reason_code))
        elif isinstance(command, WithdrawPublish):
            outbox.withdraw(command.packet_ids)
            self._write_due(outbox, now_ms)
        elif isinstance(command, OpenFastPath):
            messages, delay_ms = fast_path.open(command, now_ms)
            self.counters.adoptions += messages
            self.counters.adoption_delay_ms += delay_ms
        elif isinstance(command, CloseFastPath):
            fast_path.close()
            self._tell(FastPathClosed(connection_id=self.connection_id))  # behind what was sent under the grant
        elif isinstance(command, DropAwaitingRel):
            self._publications.forget(command.packet_ids)
        return None

    def _close_for_engine(self, command: CloseConnection) -> None:
        taken_over = command.reason_code == ReasonCode.SESSION_TAKEN_OVER
        self.was_taken_over |= taken_over and self.phase in OPEN
        if taken_over and self._oldest_unanswered() and not self._is_end_told:
            self._tell_lost(_TAKEN_OVER, 0)
        self._is_end_told |= taken_over or command.newest_connection_id > 0 or self.phase not in OPEN
        self._end(CloseReason(command.reason, "engine", command.reason_code), words=command.reason)

    def offer(self, offer: OfferPublish, under_pressure: bool, wall_ms: int, now_ms: int) -> Effects:
        """A message that a router has read: it is sent if the session's grant covers it. Call it only while the lease holds.

        under_pressure: messages are better left to the session. wall_ms: since 1970.
        """
        fast_path, counters = self._fast_path, self.counters
        if fast_path is None or self._pending_close is not None or self._peer_gone:
            counters.offers_ignored += 1
            return self._effects()
        taken = fast_path.offer(offer, under_pressure or self._records.is_full, wall_ms, now_ms)
        if taken is None:
            counters.offers_ignored += 1
        elif isinstance(taken, OfferRefusal):
            counters.offers_refused[taken] += 1
        else:
            counters.offers_taken += 1
            self._tell(taken.sent).fast_publish = taken.publish
        return self._effects()

    # --- from Kafka -------------------------------------------------------------------------------------------------------------

    def confirm(self, append: Append, failure: ReasonCode, now_ms: int) -> Effects:
        """Kafka has the record (SUCCESS), or will never have it; then failure is what the device is told."""
        records, outbox = self._records, self._outbox
        was_full = records.is_full
        if failure is ReasonCode.PACKET_TOO_LARGE and self._refuse_publication(append):
            failure = ReasonCode.SUCCESS
        records.settle(append, confirmed=not failure)
        if failure:
            self._end(CloseReason("Kafka did not take a record", "append", failure))
            return self._effects()
        if append is self._connect_append:
            self._was_prompt = not self._is_late and now_ms - self._connect_read_ms <= _PROMPT_MS
            self._answer_clean_start()
        if outbox is not None:
            if append.fast_publish is not None:
                append.fast_publish.is_confirmed = True
                self._write_due(outbox, now_ms)
            records.take_answers(self._packets)
            if was_full:
                self._resume(now_ms)
        if self._pending_close is not None:
            self._close_if_settled(self._pending_close)
        return self._effects()

    def _refuse_publication(self, append: Append) -> bool:
        """Answers 0x97 to a publication that is too large for Kafka. False: the packet has no such answer."""
        answer = append.answer
        if self._codec is not V5 or self._outbox is None or answer is None:
            return False
        packet_id = plain_acknowledgement(answer.data)
        refusals: dict[int, type[packets.PubAck | packets.PubRec]] = {
            framing.PUBACK: packets.PubAck,
            framing.PUBREC: packets.PubRec,
        }
        if answer.data[0] not in refusals or not packet_id:
            return False
        refusal = refusals[answer.data[0]](packet_id=packet_id, reason_code=ReasonCode.QUOTA_EXCEEDED)
        if isinstance(refusal, packets.PubRec):
            self._publications.release(packet_id)
        self.counters.publications_too_large += 1
        self._records.replace_answer(append, self._codec.encode(refusal))
        return True

    def resume(self, now_ms: int) -> Effects:
        """Go on if there is room again: the records of other connections count too."""
        self._resume(now_ms)
        return self._effects()

    def _resume(self, now_ms: int) -> None:
        if self._outbox is not None and not self._records.is_full:
            self._last_received_ms = now_ms  # until now we did not listen
            self._work_off(now_ms)

    # --- from the device --------------------------------------------------------------------------------------------------------

    def peer_closed(self, now_ms: int) -> Effects:
        """No byte will come any more. What has come is still worked off, as far as Kafka keeps pace."""
        self._peer_gone = True
        if self._outbox is not None:
            self._work_off(now_ms)
        elif self.phase is not Phase.ANSWERED:  # there, what it has said before counts
            self._end(_PEER_CLOSED)
        return self._effects()

    def writing_blocked(self, blocked: bool, now_ms: int) -> Effects:
        """The device takes less than we write (True), or has caught up (False). While it is blocked, it is not answered."""
        if self._is_filled_while_blocked:
            self._last_received_ms = now_ms  # until now we did not listen
        self._taken_ms = now_ms if blocked else None
        if self._outbox is not None:
            self._outbox.block(blocked)
            self._write_due(self._outbox, now_ms)
            self._work_off(now_ms)
        return self._effects()

    @property
    def is_blocked(self) -> bool:
        """Returns True if the device takes less than is written; then report its progress by `bytes_taken`."""
        return self._taken_ms is not None

    @property
    def _is_filled_while_blocked(self) -> bool:
        return self._taken_ms is not None and len(self._frames) >= _BLOCKED_BYTES

    def bytes_taken(self, now_ms: int) -> Effects:
        """A blocked device has taken bytes since the last call: it is slow, but it has not stopped."""
        if self._taken_ms is not None:
            self._taken_ms = now_ms
        return self._effects()

    def _work_off(self, now_ms: int) -> None:
        """Work off the buffer, as far as Kafka and the rates allow."""
        frames, records, rates = self._frames, self._records, self._rates
        is_v5 = self._codec is V5
        try:
            while (outbox := self._outbox) is not None and self._pending_close is None and not records.is_full:
                if self._taken_ms is not None and not self._peer_gone:
                    return
                if len(frames) and not rates.may_read(now_ms):
                    return
                packet = frames.next_packet()
                if packet is None:
                    if self._peer_gone:
                        self._end(_PEER_CLOSED)
                    return
                excess = rates.read(*packet, is_v5=is_v5)
                answers = outbox.answers
                if packet_id := plain_acknowledgement(packet[0]):  # one that says nothing else
                    name, handle = _ACKNOWLEDGEMENTS[packet[0][0]]
                    self.counters.packets_received[name] += 1
                    handle(self, packet_id, outbox, now_ms)
                elif excess is None:
                    self._on_packet(*packet, outbox, now_ms)
                else:
                    self._on_packet(excess.packet, excess.body_start, outbox, now_ms, excess.filters, excess.is_refused)
                if outbox.answers != answers:
                    rates.give_back(packet[0])
        except ProtocolViolation as violation:
            self.counters.protocol_errors[violation.reason_code] += 1
            self._pending_close = CloseReason(violation.reason, _VIOLATION, violation.reason_code)
            frames.clear()
        if self._pending_close is not None and self._pending_close.cause == _VIOLATION:
            self._close_if_settled(self._pending_close)

    def _on_packet(
        self, packet: bytes, body_start: int, outbox: Outbox, now_ms: int, excess: int = 0, is_refused: bool = False
    ) -> None:
        """Raises ProtocolViolation. excess, is_refused: see Excess."""
        decoded = self._codec.decode(packet, body_start)
        self.counters.packets_received[type(decoded).__name__] += 1
        match decoded:
            case Publish():
                self._on_publish(decoded, now_ms, is_refused)
            case packets.PubAck():
                self._on_puback(decoded.packet_id, outbox, now_ms, decoded.reason_code, decoded.reason)
            case packets.PubRec():
                self._on_pubrec(decoded.packet_id, outbox, now_ms, decoded.reason_code, decoded.reason)
            case PubComp():
                self._on_pubcomp(decoded.packet_id, outbox, now_ms, decoded.reason_code)
            case PubRel():
                self._on_pubrel(decoded.packet_id, outbox, now_ms, decoded.reason_code)
            case packets.PingReq():
                self._write(packets.PING_RESP)  # [MQTT-3.12.4-1]
            case Subscribe():
                self._on_subscribe(decoded, excess, is_refused)
            case Unsubscribe():
                self._on_unsubscribe(decoded, excess, is_refused)
            case Disconnect():
                self._on_disconnect(decoded)
            case Connect():
                raise ProtocolViolation("a second CONNECT [MQTT-3.1.0-2]")

    def _on_puback(self, packet_id: PacketId, outbox: Outbox, now_ms: int, reason_code: int = 0, reason: str = "") -> None:
        outbox.acknowledged(packet_id)
        self._write_due(outbox, now_ms)
        self._records.add_acknowledgement(encode_puback(self.connection_id, packet_id, reason_code, reason), None)

    def _on_pubrec(self, packet_id: PacketId, outbox: Outbox, now_ms: int, reason_code: int = 0, reason: str = "") -> None:
        answers = outbox.received(packet_id, reason_code)
        self._write_due(outbox, now_ms)
        event = encode_pubrec(self.connection_id, packet_id, reason_code, reason, pubrel_sent=answers)
        answer = self._fitting(encode_acknowledgement(framing.PUBREL, packet_id)) if answers else None
        self._records.add_acknowledgement(event, answer)

    def _on_pubcomp(self, packet_id: PacketId, outbox: Outbox, now_ms: int, reason_code: int = 0) -> None:
        outbox.completed(packet_id)
        self._write_due(outbox, now_ms)
        self._records.add_acknowledgement(encode_pubcomp(self.connection_id, packet_id, reason_code), None)

    def _on_pubrel(self, packet_id: PacketId, outbox: Outbox, now_ms: int, reason_code: int = 0) -> None:
        if self._publications.release(packet_id):
            answer = encode_acknowledgement(framing.PUBCOMP, packet_id)
        else:
            answer = self._codec.encode(PubComp(packet_id=packet_id, reason_code=ReasonCode.PACKET_ID_NOT_FOUND))
        event = encode_pubrel(self.connection_id, packet_id, reason_code)
        self._records.add_acknowledgement(event, self._fitting(answer))

    def _on_publish(self, publish: Publish, now_ms: int, is_excessive: bool) -> None:
        judged = self._publications.judge(publish, self._records.unanswered, now_ms, is_excessive=is_excessive)
        if isinstance(judged, Append):
            self._records.add(judged)
        elif judged is not None:
            self._answer_in_order(judged)

    def _on_subscribe(self, subscribe: Subscribe, excess: int, is_refused: bool) -> None:
        assert self._fast_path is not None
        answer, granted = self._subscriptions.subscribe(subscribe, excess=excess, is_refused=is_refused)
        if refused := answer.reason_codes.count(ReasonCode.NOT_AUTHORIZED):
            self.counters.not_authorized["subscribe"] += refused
        too_many = answer.reason_codes.count(ReasonCode.QUOTA_EXCEEDED) - excess
        if too_many and not is_refused:
            self.counters.limits_reached[Limit.SUBSCRIPTIONS] += too_many
        if granted:  # [MQTT-3.8.4-1]
            self._fast_path.subscribed(granted)
            self._tell(Subscribed(connection_id=self.connection_id, subscriptions=granted), answer)
        else:
            self._answer_in_order(answer)

    def _on_unsubscribe(self, unsubscribe: Unsubscribe, excess: int, is_refused: bool) -> None:
        assert self._fast_path is not None
        answer, topic_filters = self._subscriptions.unsubscribe(unsubscribe, excess=excess, is_refused=is_refused)
        if topic_filters:  # [MQTT-3.10.4-4]
            self._fast_path.unsubscribed(topic_filters)
            self._tell(Unsubscribed(connection_id=self.connection_id, topic_filters=topic_filters), answer)
        else:
            self._answer_in_order(answer)

    def _on_disconnect(self, disconnect: Disconnect) -> None:
        if disconnect.session_expiry_interval_s and self._connect.session_expiry_interval_s == 0:
            raise ProtocolViolation("DISCONNECT sets a session expiry where CONNECT had none (MQTT 5, 3.14.2.2.2)")
        has_failed = disconnect.reason_code >= ReasonCode.UNSPECIFIED_ERROR
        self._tell_end(
            ClientDisconnected(
                connection_id=self.connection_id,
                reason_code=disconnect.reason_code,
                session_expiry_interval_s=disconnect.session_expiry_interval_s,
                unanswered=self._oldest_unanswered() if has_failed else 0,
            )
        )
        self._close()

    # --- to the device ----------------------------------------------------------------------------------------------------------

    def _send(self, publish: SendPublish, outbox: Outbox, fast_path: WireFastPath, now_ms: int) -> None:
        if fast_path.was_taken(publish):
            self.counters.copies_dropped += 1
            return
        action = outbox.send(publish, now_ms)
        if action is WireAction.WRITE_PUBLISH:
            self._write_publish(publish, 0, outbox)
        elif action is WireAction.DROP:
            if publish.qos:
                self.counters.resends_dropped += 1
            else:
                self.counters.qos0_dropped += 1

    def _write_due(self, outbox: Outbox, now_ms: int) -> None:
        while (due := outbox.next_due(now_ms)) is not None:
            publish, waited_s = due
            if isinstance(publish, FastPublish):
                self._write_fast(publish, waited_s)
            else:
                self._write_publish(publish, waited_s, outbox)

    def _write_publish(self, publish: SendPublish, waited_s: int, outbox: Outbox) -> None:
        """Encodes a PUBLISH. A message that the codec refuses is skipped; the session gives it up by `delivery_limit`."""
        expiry_s = publish.expiry_interval_s
        try:
            data = self._codec.encode_publish(
                publish,
                qos=publish.qos,
                packet_id=publish.packet_id,
                dup=publish.dup,
                expiry_interval_s=None if expiry_s is None else _left_s(expiry_s, waited_s),
            )
        except (ValueError, OverflowError):
            self.counters.unsendable += 1
            if publish.qos:
                outbox.unwritten(publish.packet_id)
            return
        self._packets.append(data)
        self.counters.publishes_sent += 1

    def _write_fast(self, fast: FastPublish, waited_s: int) -> None:
        data = fast.data
        if waited_s and fast.expiry_interval_s is not None:
            expiry_s = _left_s(fast.expiry_interval_s, waited_s)
            data = self._codec.encode_publish(fast.message, qos=fast.qos, packet_id=fast.packet_id, expiry_interval_s=expiry_s)
        self._packets.append(data)
        self.counters.publishes_sent += 1
        self.counters.fast_publishes_sent += 1

    def _write(self, packet: ServerPacket) -> None:
        self._packets.append(self._codec.encode(packet))

    def _write_first_that_fits(self, *candidates: ConnAck | Disconnect) -> bool:
        """Writes the first one that can carry its reason code and is not larger than the client's Maximum Packet Size
        [MQTT-3.1.2-24] [MQTT-3.14.2-3]. False: there is none."""
        for packet in candidates:
            with suppress(ValueError):
                data = self._codec.encode(packet)
                if self._fits(data):
                    self._packets.append(data)
                    return True
        return False

    def _answer_in_order(self, answer: ServerPacket) -> None:
        """An answer that needs no record, but has its turn. Raises ProtocolViolation if it is too large."""
        self._records.add_answer(self._fitting(self._codec.encode(answer)))
        self._records.take_answers(self._packets)

    def _fitting(self, data: bytes) -> bytes:
        """An answer that does not fit ends the connection: it is owed, so the client cannot be left without it."""
        if not self._fits(data):
            raise ProtocolViolation(
                f"an answer of {len(data)} bytes is larger than the client's Maximum Packet Size",
                reason_code=ReasonCode.PACKET_TOO_LARGE,
            )
        return data

    def _fits(self, data: bytes) -> bool:
        limit_bytes = self._connect.maximum_packet_size_bytes
        return limit_bytes is None or len(data) <= limit_bytes

    # --- to the engine ----------------------------------------------------------------------------------------------------------

    def _tell(self, event: GatewayEvent, answer: ServerPacket | None = None) -> Append:
        """An event, and what to answer when it is in the log. Raises ProtocolViolation for an answer that is too large."""
        append = Append(encode_event(event), None if answer is None else self._fitting(self._codec.encode(answer)))
        self._records.add(append)
        return append

    def _tell_end(self, event: ClientDisconnected | ConnectionLost) -> None:
        """The last event of the connection."""
        self._is_end_told = True
        self._records.add(Append(encode_event(event), is_farewell=True))

    # --- time -------------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Effects:
        """Time has passed."""
        if self._rates.resume(now_ms):
            self._resume(now_ms)
        is_paused = self._rates.paused_until_ms is not None or self._is_filled_while_blocked
        if self._pending_close is not None or self._records.is_full or is_paused:
            self._last_received_ms = now_ms  # we do not listen, so we cannot say that it is silent
        self._expire(now_ms)
        return self._effects()

    def _next_deadline_ms(self) -> int | None:
        if self._outbox is None:
            return self._handshake_ms
        next_ms = self._last_received_ms + self._keep_alive_ms
        if self._rates.paused_until_ms is not None:
            next_ms = min(next_ms, self._rates.paused_until_ms)
        if self._login_ends_ms is not None:
            next_ms = min(next_ms, self._login_ends_ms)
        if self._taken_ms is not None:
            next_ms = min(next_ms, self._taken_ms + self._stalled_write_ms)
        return next_ms

    def _expire(self, now_ms: int) -> None:
        """End a connection whose time is over."""
        deadline_ms = self._next_deadline_ms()
        if deadline_ms is None or now_ms < deadline_ms:
            return
        if self._outbox is not None and self._login_ends_ms is not None and now_ms >= self._login_ends_ms:
            self._end(_LOGIN_ENDED)
        elif self._outbox is not None and self._taken_ms is not None and now_ms >= self._taken_ms + self._stalled_write_ms:
            self._end(_STALLED)
        else:
            self._end(OVERDUE[self.phase])  # [MQTT-3.1.2-22]

    # --- the end ----------------------------------------------------------------------------------------------------------------

    def close(self, why: CloseReason, reconnect_grace_ms: int, now_ms: int) -> Effects:
        """Say goodbye to both sides and close. reconnect_grace_ms: see ConnectionLost."""
        self._end(why, reconnect_grace_ms=reconnect_grace_ms)
        return self._effects()

    def close_gracefully(self, why: CloseReason, reconnect_grace_ms: int, now_ms: int) -> Effects:
        """Close when Kafka has everything; see the module, 8. Go on with the connection as before until it is closed."""
        if self._connect_append is None:  # the engine has never heard of it
            self._end(why)
        elif not self._is_end_told and self.phase is not Phase.CLOSED:
            self._tell_lost(why, reconnect_grace_ms)
            self._pending_close = self._pending_close or why
            self._frames.clear()
        return self._effects()

    def _close_if_settled(self, why: CloseReason) -> None:
        """Ends a connection that is no longer read once no answer is owed, or after `close_gracefully` no confirmation."""
        if why.cause == _VIOLATION:
            is_owed = self._records.owes_answers and not self._peer_gone
        else:
            is_owed = self._records.unconfirmed > 0
        if not is_owed:
            self._end(why)

    def _end(self, why: CloseReason, *, words: str = "", reconnect_grace_ms: int = 0) -> None:
        """words: for the device."""
        reason_code = why.reason_code
        if self.phase is Phase.CLOSED:
            return
        if self.phase in BEFORE_CONNACK:  # no DISCONNECT before CONNACK [MQTT-3.14.0-1]
            self.counters.connections_refused[reason_code] += 1
            if reason_code:
                self._write_first_that_fits(ConnAck(reason_code=reason_code), ConnAck(reason_code=ReasonCode.SERVER_UNAVAILABLE))
        elif self.phase in OPEN:
            self.counters.connections_lost[why.cause] += 1
            if reason_code:
                self._write_first_that_fits(
                    Disconnect(reason_code=reason_code, reason=words),
                    Disconnect(reason_code=reason_code),
                    Disconnect(reason_code=ReasonCode.UNSPECIFIED_ERROR),
                )
        if self._connect_append is not None and not self._is_end_told:
            self._tell_lost(why, reconnect_grace_ms)
        self._close()

    def _tell_lost(self, why: CloseReason, reconnect_grace_ms: int) -> None:
        self._tell_end(
            ConnectionLost(
                connection_id=self.connection_id,
                reason=why.text,
                reconnect_grace_ms=reconnect_grace_ms,
                unanswered=self._oldest_unanswered() if why.cause in DEVICE_FAILED or why is _TAKEN_OVER else 0,
            )
        )

    def _oldest_unanswered(self) -> PacketId:
        """Returns the message that the device may have failed on; 0 = none, as far as is known.

        What a device has not taken (`is_blocked`) it need not have got.
        """
        outbox = self._outbox  # it remembers that the device was blocked when the socket was lost
        return 0 if outbox is None or outbox.is_blocked else outbox.oldest_unanswered()

    def _close(self) -> None:
        """Ends the connection: nothing is read or written any more [MQTT-3.1.4-6] [MQTT-3.14.4-1]. The host closes the socket
        [MQTT-3.14.4-2] [MQTT-4.13.2-1]."""
        self.counters.connections_open -= self.phase in OPEN
        self.phase = Phase.CLOSED
        self._outbox = self._fast_path = None
        self._handshake_ms = None
        self._frames.clear()
        self._records.drop_answers()


_ACKNOWLEDGEMENTS: Final[dict[int, tuple[str, Callable[[WireConnection, PacketId, Outbox, int], None]]]] = {
    framing.PUBACK: ("PubAck", WireConnection._on_puback),
    framing.PUBREC: ("PubRec", WireConnection._on_pubrec),
    framing.PUBREL: ("PubRel", WireConnection._on_pubrel),
    framing.PUBCOMP: ("PubComp", WireConnection._on_pubcomp),
}


def _left_s(expiry_s: int, waited_s: int) -> int:
    """The time that a message waits here is taken off its Message Expiry Interval [MQTT-3.3.2-6]. What was given out does not
    expire any more, so at least a second is left."""
    return max(1, expiry_s - waited_s)
