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
   One whose client has sent DISCONNECT is not: the later connection is the one that the client uses.
4. With Clean Start nothing old is owed to the device. So CONNACK does not wait for the engine but for Kafka's confirmation of the
   CONNECT, which comes after the login. The content of CONNACK is known from the configuration. With routing nothing is written
   before an empty list of subscriptions is confirmed, too. The device is served from then on, because its session is empty, and
   the engine reads the records that this makes behind the CONNECT. If the session may outlive the connection, QoS 2 waits for
   `AcceptConnection`, and so does all behind it: if the engine refuses the CONNECT, the device may repeat the publication to
   another session, which would hand it on again.
   Everything waits if connections are not numbered by the brokers' clock: a CONNECT could be refused that is the latest one,
   and with it a subscription that was acknowledged. An engine that has other settings ends the connection. Everything waits, too,
   while a will of an earlier connection may come: the session accepts the connection when that is in the log.
   CONNACK without Clean Start is early too if the gateway claims whether there is a session (handshake.py). SUBACK and QoS 2 wait
   for a new one, and all but publications of QoS 0 and 1 for a resumed one: it has subscriptions, and it owes something. One that
   was left at this gateway owes nothing that is not known here (left_session.py), so only QoS 2 waits.
5. A packet of an accepted device becomes a record first, and is answered when Kafka has confirmed that (accepted.py). Kafka
   confirms many records at a time, so the answers to publications are collected (`settle`) and written together.
6. Packet ids, retries and the judgement of acknowledgements are the session's. Of them only what is on this wire is kept here.
7. After a protocol error nothing more is read. The connection closes when it has answered what it accepted before (ending.py).
8. A gateway that stops, or loses a partition, uses `close_gracefully`: it tells the engine first, and closes the socket when
   Kafka has confirmed this and all earlier records. So the end is in the log before the device can reconnect, and its packets are
   answered.
9. The engine hears of each end at most once, and of the message that the device may have died on (ending.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

from sinks.fast_path.offering import FastPathState
from sinks.host.command_order import BUILD_MISMATCH, CommandOrder, CommandStatus
from sinks.mqtt.access.grant import Grant, LoginRefused
from sinks.mqtt.codec.framing import FrameBuffer
from sinks.mqtt.codec.packets import ConnAck, Disconnect
from sinks.mqtt.connection.accepted import AcceptedDevice
from sinks.mqtt.connection.append_queue import Answer, Append, AppendQueue
from sinks.mqtt.connection.effects import (
    ANNOUNCE,
    LOOK_FOR_LATER,
    LOOK_UP,
    TAKE_OVER,
    Effects,
    LogIn,
    Register,
    Registration,
    Request,
)
from sinks.mqtt.connection.ending import TAKEN_OVER, Ending
from sinks.mqtt.connection.handing_on import HandingOn
from sinks.mqtt.connection.handshake import V5, ConnectionRefused, Handshake, check_first_bytes, read_connect
from sinks.mqtt.connection.left_session import LeftSession
from sinks.mqtt.connection.output import DeviceOutput
from sinks.mqtt.connection.phases import AWAITING_ACCEPT, DEVICE_FAILED, OPEN, OVERDUE, VIOLATION, CloseReason, Deadlines, Phase
from sinks.mqtt.limits.adaptive_rate import AdaptiveRateLimiter
from sinks.mqtt.limits.buffered import Buffered
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.packet_rates import PacketRates
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import AcceptConnection, CloseConnection, GatewayCommand, OfferPublish
from state.errors import ProtocolViolation
from state.events import Claim, ClientDisconnected
from state.model import ClientId, PacketId, ReasonCode

_BLOCKED_BYTES: Final = 4_096
"""While the device does not take what was written, this much of it is received, so that silence can be told from speech."""
OTHER_CONFIGURATION: Final = "configuration"
"""The cause by which a connection ends whose CONNACK has said something else than the engine."""
_PEER_CLOSED: Final = CloseReason("the client closed the socket", "socket")
_LEFT_OTHERWISE: Final = CloseReason("the session is not as the client has left it here", "engine", ReasonCode.SERVER_BUSY)
_LATER_KNOWN: Final = CloseReason("a later connection of this client may be known", "engine", ReasonCode.SERVER_BUSY)
_NO_APPENDS: Final[list[Append]] = []


@dataclass(slots=True, eq=False)
class WireConnection:
    """See the module. Every call with `now_ms` returns what the host must do next; all times are of one monotonic clock.

    Args:
        counters: the gateway's.
        total: what all connections have told Kafka; limiter: what each may send; buffered: what all hold for their devices;
            None = there is no other connection.
    """

    settings: GatewaySettings
    counters: GatewayCounters
    now_ms: InitVar[int]
    total: InitVar[Unconfirmed | None] = None
    limiter: InitVar[AdaptiveRateLimiter | None] = None
    buffered: Buffered | None = None
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
    _output: DeviceOutput = field(default_factory=DeviceOutput)
    _order: CommandOrder = field(default_factory=CommandOrder)
    _handshake: Handshake = field(init=False)
    _deadlines: Deadlines = field(init=False)
    _ending: Ending = field(init=False)
    _handing_on: HandingOn = field(init=False)
    left: LeftSession | None = None
    """Left by the client for its next connection here, once the connection is over."""
    _device: AcceptedDevice | None = None
    """None in every phase but CONNECTED, and ANSWERED if the device is served at once."""

    def __post_init__(self, now_ms: int, total: Unconfirmed | None, limiter: AdaptiveRateLimiter | None) -> None:
        settings, limits = self.settings, self.settings.device_limits
        self._frames = FrameBuffer(min(limits.max_connect_bytes, settings.max_packet_size_bytes))
        self._rates = PacketRates(limits, self.counters, now_ms, limiter)
        self._records = AppendQueue(settings, Unconfirmed(limits) if total is None else total)
        self._handing_on = HandingOn(self._records)
        self._handshake = Handshake(settings, now_ms + settings.connect_timeout_ms)
        self._deadlines = Deadlines(settings.stalled_write_timeout_ms)
        self._ending = Ending(self._records, self._output, self.counters)

    @property
    def is_closed(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def is_blocked(self) -> bool:
        """Returns True if the device takes less than is written; then report its progress by `bytes_taken`."""
        return self._deadlines.taken_ms is not None

    @property
    def _is_filled_while_blocked(self) -> bool:
        return self._deadlines.taken_ms is not None and self._frames.size_bytes >= _BLOCKED_BYTES

    def is_low_rate(self, now_ms: int) -> bool:
        """The device is connected and sends little, so others are slowed down for it. See AdaptiveRateLimiter."""
        return self._device is not None and self._rates.is_low_rate(now_ms)

    @property
    def fast_path(self) -> FastPathState:
        """Returns whether `offer` would accept a message now. Safe on any thread."""
        device = self._device
        if device is None and self._handshake.left is not None:
            return FastPathState.HOLDING
        if device is None or self._ending.pending is not None or self._ending.peer_gone:
            return FastPathState.CLOSED
        return device.fast_path.state

    @property
    def needs_session(self) -> bool:
        """Returns True if an offer waits for what the session does next."""
        device = self._device
        return device is None or device.fast_path.needs_session

    def _effects(self, requests: tuple[Request, ...] = ()) -> Effects:
        written, records, device, phase = self._output.packets, self._records, self._device, self.phase
        deadline_ms, write, held_bytes = self._handshake.deadline_ms, b"", self._frames.size_bytes
        if device is not None and records.may_write_list:
            device.write_list()
        if written and (self._handshake.is_answerable or phase is Phase.CLOSED):
            write = written[0] if len(written) == 1 else b"".join(written)
            written.clear()
        wants_data = not records.stops_reading
        if device is None:
            is_filled = held_bytes >= self._frames.max_packet_size_bytes
            wants_data = wants_data and (phase is Phase.AWAITING_CONNECT or not is_filled)
        else:
            paused_until_ms = self._rates.paused_until_ms
            next_ms = self._deadlines.next_ms(paused_until_ms)
            deadline_ms = next_ms if deadline_ms is None else min(next_ms, deadline_ms)
            if paused_until_ms is not None or (held_bytes >= _BLOCKED_BYTES and self._is_filled(held_bytes)):
                wants_data = False
            outbox = device.outbox
            held_bytes += outbox.held_bytes + outbox.ahead_bytes + device.fast_path.held.size_bytes
        appends = records.take_new() if records.new else _NO_APPENDS
        return Effects(write, appends, requests, wants_data, deadline_ms, phase is Phase.CLOSED, held_bytes)

    def _is_filled(self, held_bytes: int) -> bool:
        """Returns True if enough of an accepted device waits here."""
        if self._deadlines.taken_ms is not None:
            return True
        return self.phase is Phase.ANSWERED and held_bytes >= self._frames.max_packet_size_bytes

    # --- CONNECT: 1. read it, 2. register, 3. wait for the turn, 4. log in, 5. tell the engine, 6. CONNACK ----------------------

    def receive(self, data: bytes, now_ms: int) -> Effects:
        """Bytes of the device."""
        if self.phase is Phase.AWAITING_CONNECT:
            return self._read_connect(data, now_ms)
        if self.phase is not Phase.CLOSED and self._ending.pending is None:
            self._deadlines.last_received_ms = now_ms
            self._frames.feed(data)
            if self._device is not None:
                self._work_off(now_ms)
                self._take_offers(now_ms)
            elif self.phase is Phase.ANSWERED:
                self._read_disconnect()
        return self._effects()

    def _read_disconnect(self) -> None:
        """Carries out a DISCONNECT that is the first packet after CONNACK: the client may connect again at once, and expect what
        it has said of its session. Everything else waits for the session."""
        if not self._frames.is_disconnect_next:
            return
        try:
            packet = self._frames.next_packet()
            disconnect = None if packet is None else self._output.codec.decode(*packet)
            if isinstance(disconnect, Disconnect):
                self._on_disconnect(disconnect)
        except ProtocolViolation as violation:
            self.counters.protocol_errors[violation.reason_code] += 1
            self._end(CloseReason(violation.reason, VIOLATION, violation.reason_code))

    def _read_connect(self, data: bytes, now_ms: int) -> Effects:
        frames, handshake, output = self._frames, self._handshake, self._output
        try:
            if not frames.size_bytes:
                check_first_bytes(data)
            frames.feed(data)
            packet = frames.next_packet()
            if packet is None:
                return self._effects()
            output.codec, handshake.connect = read_connect(*packet, self.settings, self._rates.parts)
        except (ConnectionRefused, ProtocolViolation) as refusal:
            if isinstance(refusal, ConnectionRefused):
                self.counters.connections_refused[refusal.reason_code] += 1
                output.packets.append(refusal.answer)
            else:
                self.counters.protocol_errors[refusal.reason_code] += 1
            self.refused_because = refusal.reason
            self._close()
            return self._effects()
        self.phase = Phase.QUEUED
        handshake.read_ms, output.max_packet_size_bytes = now_ms, handshake.connect.maximum_packet_size_bytes
        request = Register(handshake.connect.client_id)
        return Effects(
            b"", _NO_APPENDS, (request,), wants_data=True, deadline_ms=handshake.deadline_ms, close=False, held_bytes=0
        )

    def registered(self, request: Register, registration: Registration | None, turn: Turn, now_ms: int) -> Effects:
        """Handles the answer to Register.

        Args:
            registration: None = the connection cannot be held here now.
            turn: The turn of a first request.
        """
        refusal = request.refusal
        if registration is None:
            if refusal is None:
                self._end(CloseReason("nobody is taken in now", "", ReasonCode.SERVER_UNAVAILABLE))
            else:
                self._close_for_engine(refusal)
            return self._effects()
        self._handshake.registration = registration
        self.connection_id, self.client_id, self.partition, *_ = registration
        self.key = self.client_id.encode()  # [MQTT-3.1.3-2]: by it the engine finds the session
        if refusal is not None:
            self._order = CommandOrder()
            self._handshake.claim, self._handshake.expired = Claim.NONE, None  # the session knows a later connection
            self._handshake.earlier_wills_settled, self._handshake.left = False, None
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
        return self._effects((LogIn(self._handshake.connect, self.client_id),))

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
        self._handshake.grant = login
        if login.valid_ms is not None:
            self._deadlines.login_ends_ms = now_ms + login.valid_ms
        self._handshake.deadline_ms = now_ms + patience_ms
        if self._handshake.looks_up:
            self.phase = Phase.LOOKING_UP
            return self._effects((LOOK_UP,))
        self.phase = Phase.AWAITING_ACCEPT
        return self._tell_connected()

    def looked_up(self, is_current: bool, now_ms: int) -> Effects:
        """Handles the answer to LookUp.

        Args:
            is_current: True if the tables have all that was in the log when LookUp was requested.
        """
        self._expire(now_ms)
        if self.phase is not Phase.LOOKING_UP:
            return self._effects()
        self._handshake.looked_up(is_current, now_ms)
        self.phase = Phase.AWAITING_ACCEPT
        return self._tell_connected()

    def _tell_connected(self) -> Effects:
        for record in self._handshake.new_records():
            self._records.add(record)
        return self._effects((ANNOUNCE,))

    def _say_accepted(self, answer: ConnAck, phase: Phase) -> bool:
        """CONNACK once [MQTT-3.2.0-2], and before everything else [MQTT-3.1.4-5] [MQTT-3.2.0-1]. False: it does not fit."""
        if not self._output.write_first_that_fits(answer):
            self._end(CloseReason("no room for CONNACK", VIOLATION, ReasonCode.PACKET_TOO_LARGE))
            return False
        self.phase = phase
        self.counters.connections_accepted += 1
        self.counters.connections_open += 1
        return True

    def _accept(self, accept: AcceptConnection, now_ms: int) -> None:
        handshake = self._handshake
        if not handshake.is_as_expected(accept, is_served=self._device is not None):
            self._end(CloseReason("the engine has another configuration", OTHER_CONFIGURATION, ReasonCode.SERVER_BUSY))
            return
        if handshake.expected is None and not self._say_accepted(handshake.connack(accept), Phase.CONNECTED):
            return
        self.phase = Phase.CONNECTED
        if self._device is not None and not accept.session_present:
            self._begin_fast_path(self._device)
        handshake.deadline_ms, handshake.accepted_expiry_s = None, accept.session_expiry_interval_s
        handshake.max_left, handshake.max_left_bytes = accept.max_left, accept.max_left_bytes
        self._handing_on.needs_look = handshake.has_marked and accept.session_expiry_interval_s > 0
        if (mark := handshake.mark_once_accepted()) is not None:
            self._records.add(mark)
        left = handshake.left
        is_known_list = left is not None and (accept.list_connection_id, accept.list_version) == left.list_id
        if self._device is None:
            handshake.left = left if accept.continues and is_known_list else None
            self._serve(accept, now_ms)
        else:
            if left is not None and not (self._device.fast_path.accepted(continues=accept.continues) and is_known_list):
                self._end(_LEFT_OTHERWISE)
                return
            if handshake.claim is Claim.RESUMED:
                self._device.resume(accept, handshake, self.settings)
            handshake.left = None
            self._records.release(self._output.packets)
            self._work_off(now_ms)

    def _serve(self, accept: AcceptConnection, now_ms: int) -> None:
        """Works off what the device sends.

        Args:
            accept: What the engine has said, or will say.
        """
        handshake, settings = self._handshake, self.settings
        self._device = AcceptedDevice(
            self._records, self._output, self.counters, settings, handshake, accept, self.is_blocked, now_ms, self.buffered
        )
        if handshake.left is not None:
            is_accepted = self.phase is Phase.CONNECTED
            self.counters.sessions_continued += not is_accepted
            self._device.fast_path.continue_session(handshake.left, is_accepted=is_accepted)
        elif not accept.session_present and not (self.phase is Phase.ANSWERED and handshake.claim):
            self._begin_fast_path(self._device)
        self._rates.parts.session_filters = accept.max_subscriptions
        self._frames.max_packet_size_bytes = settings.max_packet_size_bytes
        self._deadlines.begin(handshake.connect.keep_alive_s, settings.device_limits.max_keep_alive_s, now_ms)
        self._work_off(now_ms)

    def _begin_fast_path(self, device: AcceptedDevice) -> None:
        """Begins to send what is routed to a new session. One that was claimed to be new has to accept first."""
        read_to, session = self._handshake.registration.read_to, self.settings.session_of(self.client_id)
        may_begin = session.routing and session.fast_path and not session.max_send_rate
        if read_to is not None and may_begin and self.settings.fast_path.enabled:
            device.fast_path.begin(read_to)

    # --- from the engine and from routers ---------------------------------------------------------------------------------------

    def apply(self, commands: Iterable[GatewayCommand], code: str, now_ms: int) -> Effects:
        """Carries commands out, each once.

        Args:
            code: The build of their record.
        """
        requests: tuple[Request, ...] = ()
        for command in commands:
            status = self._order.status_of(command.sequence, code)
            if status is CommandStatus.NEW:
                self.counters.commands_applied += 1
                if self._device is None or isinstance(command, CloseConnection | AcceptConnection):
                    requests = self._open_or_close(command, now_ms) or requests
                else:
                    self._device.apply(command, now_ms)
                continue
            self.counters.commands_repeated += 1
            if status is CommandStatus.BUILD_MISMATCH and self.phase is not Phase.CLOSED:
                self.counters.closed_for_other_code += 1
                self._end(CloseReason(BUILD_MISMATCH, "other code", ReasonCode.SERVER_BUSY))
        self._take_offers(now_ms)
        return self._effects(requests)

    def _open_or_close(self, command: GatewayCommand, now_ms: int) -> tuple[Request, ...]:
        if isinstance(command, CloseConnection):
            is_prompt = self.phase is Phase.AWAITING_ACCEPT and self._handshake.was_prompt and self._ending.pending is None
            if command.newest_connection_id and is_prompt and not self._frames.is_disconnect_next:
                return (Register(self.client_id, command),)
            self._close_for_engine(command)
        elif isinstance(command, AcceptConnection) and self.phase in AWAITING_ACCEPT:
            self._accept(command, now_ms)
        return ()

    def _close_for_engine(self, command: CloseConnection) -> None:
        taken_over = command.reason_code == ReasonCode.SESSION_TAKEN_OVER
        self.was_taken_over |= taken_over and self.phase in OPEN
        if taken_over and self._oldest_unanswered() and not self._ending.is_told:
            self._tell_lost(TAKEN_OVER, 0)
        self._ending.is_told |= taken_over or command.newest_connection_id > 0 or self.phase not in OPEN
        self._end(CloseReason(command.reason, "engine", command.reason_code), words=command.reason)

    def taken_over(self, now_ms: int) -> Effects:
        """Ends the connection as the engine does: a later connection of the client, at this gateway, is in the log. One without
        CONNACK is left to the engine."""
        del now_ms
        if self.phase in OPEN:
            text, _, reason_code = TAKEN_OVER
            connection_id, partition = self.connection_id, self.partition
            self._close_for_engine(
                CloseConnection(
                    connection_id=connection_id, partition=partition, sequence=0, reason_code=reason_code, reason=text
                )
            )
        return self._effects()

    def offer(self, offers: Sequence[OfferPublish], under_pressure: bool, wall_ms: int, now_ms: int) -> Effects:
        """Handles messages that a router has read: each is sent if the session's grant covers it.

        Call it only while the lease holds.

        Args:
            offers: In their order; they name this connection.
            under_pressure: True if messages are better left to the session.
            wall_ms: Milliseconds since 1970.
        """
        device, handshake = self._device, self._handshake
        if device is None and handshake.left is not None:
            handshake.left.wall_ahead_ms = wall_ms - now_ms
            if not all(map(handshake.left.offer, offers)):
                handshake.left = None
        elif device is None or self._ending.pending is not None or self._ending.peer_gone:
            self.counters.offers_ignored += len(offers)
        else:
            for offer in offers:
                device.offer(offer, under_pressure, wall_ms, now_ms)
        return self._effects()

    @property
    def held_offers_bytes(self) -> int:
        return 0 if self._device is None else self._device.fast_path.held.size_bytes

    def forget_offers(self, now_ms: int) -> Effects:
        """Forgets the offers that are held: the session sends their messages."""
        del now_ms
        if self._device is not None:
            self._device.fast_path.held.clear()
        return self._effects()

    def _take_offers(self, now_ms: int) -> None:
        """Accepts offers that are held, if something has changed for them."""
        device, ending = self._device, self._ending
        if device is not None and device.fast_path.held.offers and ending.pending is None and not ending.peer_gone:
            device.take_offers(now_ms)

    # --- from Kafka -------------------------------------------------------------------------------------------------------------

    def settle(self, append: Append) -> bool:
        """Handles that Kafka has a record which nothing but its answer follows (`Append.is_last`).

        The next call writes the answer: `write_settled`, unless something else comes first.

        Returns:
            False if it is another one, or anything may follow, and nothing is done: then call `confirm`.
        """
        device, records = self._device, self._records
        if not append.is_last or device is None or records.stops_reading:
            return False
        if device.fast_path.held.offers or self._ending.pending is not None:
            return False
        records.settle(append, confirmed=True)
        if append.answer is not None:
            records.take_answers(self._output.packets)
        return True

    def delay_answer(self, append: Append) -> Answer | None:
        """Delays the answer to a publication that Kafka has just confirmed, until `answer_due`. Then call `settle` as ever.

        Returns:
            The answer; None = it is not delayed.
        """
        return None if self._device is None or self._ending.pending is not None else self._records.delay_answer(append)

    def answer_due(self, answer: Answer, now_ms: int) -> Effects:
        """Ends the delay of an answer."""
        records, was_reading = self._records, not self._records.stops_reading
        records.end_delay(answer)
        if self._device is not None:
            records.take_answers(self._output.packets)
            if not was_reading:
                self._resume(now_ms)
        self._end_if_settled()
        return self._effects()

    def write_settled(self, now_ms: int) -> Effects:
        """Writes the answers that `settle` has set free."""
        return self._effects()

    def confirm(self, append: Append, failure: ReasonCode, now_ms: int) -> Effects:
        """Kafka has the record (SUCCESS), or will never have it; then failure is what the device is told."""
        records, device, handshake = self._records, self._device, self._handshake
        was_reading, takes_over = not records.stops_reading, False
        if failure is ReasonCode.PACKET_TOO_LARGE and device is not None and device.refuse_publication(append):
            failure = ReasonCode.SUCCESS
        records.settle(append, confirmed=not failure)
        if append.hands_on is not None:
            if failure:
                records.give_up(append.hands_on)
            else:
                self._handing_on.accepted(append.hands_on)
        if failure:
            self._end(CloseReason("Kafka did not take a record", "append", failure))
            return self._effects()
        if append.is_farewell and append.then is not None:
            records.add(append.then)
        elif append is handshake.mark:
            handshake.mark = None
            if append.then is not None and self.phase is Phase.AWAITING_ACCEPT:
                handshake.engine_knows = True
                records.add(append.then)
        elif append is handshake.empty_list:
            handshake.empty_list = None
        elif append is handshake.record:
            handshake.confirmed(now_ms)
            if handshake.empty_list is not None:
                records.add(handshake.empty_list)  # not before: it would be above the list of a session that goes on
            if self.phase is Phase.AWAITING_ACCEPT and (expected := handshake.expect(now_ms)) is not None:
                # CONNECT is in the log, so every later one comes behind it; see the module, 4
                is_said = takes_over = self._say_accepted(handshake.connack(expected), Phase.ANSWERED)
                if is_said and handshake.serves_at_once:
                    records.held = [] if handshake.claim is Claim.NEW else None
                    self._serve(expected, now_ms)
                elif is_said:
                    self._read_disconnect()
        if device is not None:
            if append.then is not None and not self._ending.is_told:
                records.add(append.then)
            device.confirmed(append, now_ms)
            if not was_reading:
                self._resume(now_ms)
        self._end_if_settled()
        self._take_offers(now_ms)
        requests = self._look()
        return self._effects((*requests, TAKE_OVER) if takes_over else requests)

    def _look(self) -> tuple[Request, ...]:
        return (LOOK_FOR_LATER,) if self._handing_on.begin_look() else ()

    def looked_for_later(self, is_newest: bool, asked_ms: int, now_ms: int) -> Effects:
        """Handles the answer to LookForLater.

        Args:
            is_newest: True if it is known that no later connection of the client has CONNACK.
            asked_ms: When that was asked, in milliseconds since 1970 by the brokers.
        """
        self._handing_on.looked(self.connection_id, is_newest=is_newest, asked_ms=asked_ms)
        if not is_newest:
            self._end(_LATER_KNOWN, reconnect_grace_ms=self.settings.reconnect_grace_ms)
        self._end_if_settled()
        return self._effects(self._look())

    def _end_if_settled(self) -> None:
        if self._ending.pending is not None and (why := self._ending.settled()) is not None:
            self._end(why)

    def resume(self, now_ms: int) -> Effects:
        """Go on if there is room again: the records of other connections count too."""
        self._resume(now_ms)
        return self._effects()

    def _resume(self, now_ms: int) -> None:
        if self._device is not None and (not self._records.stops_reading or self._records.reads_subscriptions):
            self._deadlines.last_received_ms = now_ms  # until now we did not listen
            self._work_off(now_ms)
            self._take_offers(now_ms)

    # --- from the routing tables ------------------------------------------------------------------------------------------------

    def repeat_list(self, now_ms: int) -> Effects:
        """A list of this client stands behind a higher one in `inflight.subscriptions`. If that is ours, it is appended again."""
        device, registration = self._device, self._handshake.registration
        if device is not None and registration.tables.is_highest(registration.client_id, device.list_id):
            device.repeat_list()
        return self._effects()

    # --- from the device --------------------------------------------------------------------------------------------------------

    def peer_closed(self, now_ms: int) -> Effects:
        """No byte will come any more. What has come is still worked off, as far as Kafka keeps pace."""
        self._ending.peer_gone = True
        if self._device is not None:
            self._work_off(now_ms)
        elif self.phase is not Phase.ANSWERED:  # there, what it has said before counts
            self._end(_PEER_CLOSED)
        return self._effects()

    def writing_blocked(self, blocked: bool, now_ms: int) -> Effects:
        """The device takes less than we write (True), or has caught up (False). While it is blocked, it is not answered."""
        if self._is_filled_while_blocked:
            self._deadlines.last_received_ms = now_ms  # until now we did not listen
        self._deadlines.taken_ms = now_ms if blocked else None
        if self._device is not None:
            self._device.block(blocked, now_ms)
            self._work_off(now_ms)
            self._take_offers(now_ms)
        return self._effects()

    def bytes_taken(self, now_ms: int) -> Effects:
        """A blocked device has taken bytes since the last call: it is slow, but it has not stopped."""
        if self._deadlines.taken_ms is not None:
            self._deadlines.taken_ms = now_ms
        return self._effects()

    def _work_off(self, now_ms: int) -> None:
        """Work off the buffer, as far as Kafka and the rates allow."""
        frames, records, rates, ending = self._frames, self._records, self._rates, self._ending
        is_v5 = self._output.codec is V5
        try:
            while (device := self._device) is not None and ending.pending is None:
                if records.stops_reading and not (records.reads_subscriptions and frames.is_subscribing_next):
                    break
                if self._deadlines.taken_ms is not None and not ending.peer_gone:
                    return
                if self.phase is Phase.ANSWERED and self._next_waits_for_session:
                    return
                packet = None
                if frames.size_bytes:
                    if not rates.may_read(now_ms):
                        return
                    packet = frames.next_packet()
                if packet is None:
                    if ending.peer_gone:
                        self._end(_PEER_CLOSED)
                    return
                parts_bytes, excess = rates.parts.measure(*packet, is_v5=is_v5)
                answers = device.outbox.answers
                disconnect = device.read(*packet, excess, now_ms)
                rates.count(packet[0], parts_bytes, is_expected=device.outbox.answers != answers)
                if disconnect is not None:
                    self._on_disconnect(disconnect)
        except ProtocolViolation as violation:
            self.counters.protocol_errors[violation.reason_code] += 1
            ending.pending = CloseReason(violation.reason, VIOLATION, violation.reason_code)
            frames.clear()
        if ending.pending is not None and ending.pending.cause == VIOLATION and (why := ending.settled()) is not None:
            self._end(why)

    @property
    def _next_waits_for_session(self) -> bool:
        """Returns True if only a session that has accepted the connection can deal with the next packet."""
        handshake, frames = self._handshake, self._frames
        if handshake.claim is Claim.RESUMED and handshake.left is None:
            return frames.size_bytes > 0 and not frames.is_publication_next
        return frames.is_qos2_next and not handshake.is_session_of_connection

    def _on_disconnect(self, disconnect: Disconnect) -> None:
        if disconnect.session_expiry_interval_s and self._handshake.connect.session_expiry_interval_s == 0:
            raise ProtocolViolation("DISCONNECT sets a session expiry where CONNECT had none (MQTT 5, 3.14.2.2.2)")
        self._write_owed_list()
        self._ending.tell(
            ClientDisconnected(
                connection_id=self.connection_id,
                reason_code=disconnect.reason_code,
                session_expiry_interval_s=disconnect.session_expiry_interval_s,
                unanswered=self._oldest_unanswered() if disconnect.reason_code >= ReasonCode.UNSPECIFIED_ERROR else 0,
            ),
            self._ending_mark(disconnect.session_expiry_interval_s, is_withdrawn=disconnect.reason_code == ReasonCode.SUCCESS),
        )
        if disconnect.session_expiry_interval_s != 0:
            self._leave()
        self._close()

    # --- time -------------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Effects:
        """Time has passed."""
        if self._rates.resume(now_ms):
            self._resume(now_ms)
        is_paused = self._rates.paused_until_ms is not None or self._is_filled_while_blocked or self.phase is Phase.ANSWERED
        if self._ending.pending is not None or self._records.stops_reading or is_paused:
            self._deadlines.last_received_ms = now_ms  # we do not listen, so we cannot say that it is silent
        self._expire(now_ms)
        return self._effects()

    def _expire(self, now_ms: int) -> None:
        """End a connection whose time is over."""
        deadline_ms, why = self._handshake.deadline_ms, None
        if deadline_ms is not None and now_ms >= deadline_ms:
            why = OVERDUE[self.phase]
        elif self._device is not None:
            why = self._deadlines.overdue(now_ms)
        if why is not None:
            self._end(why)

    # --- the end ----------------------------------------------------------------------------------------------------------------

    def close(self, why: CloseReason, reconnect_grace_ms: int, now_ms: int) -> Effects:
        """Says goodbye to both sides and closes.

        Args:
            reconnect_grace_ms: See ConnectionLost.
        """
        self._end(why, reconnect_grace_ms=reconnect_grace_ms)
        return self._effects()

    def close_gracefully(self, why: CloseReason, reconnect_grace_ms: int, now_ms: int) -> Effects:
        """Close when Kafka has everything; see the module, 8. Go on with the connection as before until it is closed."""
        if not self._handshake.engine_knows:
            self._end(why)
        elif not self._ending.is_told and self.phase is not Phase.CLOSED:
            self._tell_lost(why, reconnect_grace_ms)
            self._ending.pending = self._ending.pending or why
            self._frames.clear()
        return self._effects()

    def _end(self, why: CloseReason, *, words: str = "", reconnect_grace_ms: int = 0) -> None:
        """Closes the connection: writes its last packet, and tells the engine of the end unless it knows.

        Args:
            words: The reason string for the device.
            reconnect_grace_ms: As in ConnectionLost.
        """
        if self.phase is Phase.CLOSED:
            return
        if why.cause not in DEVICE_FAILED:
            self._handing_on.stop()
        self._ending.write_last_packet(self.phase, why, words)
        if self._handshake.engine_knows and not self._ending.is_told:
            self._tell_lost(why, reconnect_grace_ms)
        if why is _PEER_CLOSED or why is OVERDUE[Phase.CONNECTED]:
            self._leave()
        self._close()

    def _leave(self) -> None:
        """Keeps what the next connection of the client can go on with, if the session is kept."""
        handshake, device = self._handshake, self._device
        if device is not None and self.phase is Phase.CONNECTED and handshake.accepted_expiry_s:
            self.left = device.leave(handshake.max_left, handshake.max_left_bytes)

    def _tell_lost(self, why: CloseReason, reconnect_grace_ms: int) -> None:
        # Of a claim that it refuses the session says how it is. A gateway whose lease has passed may be late by any time.
        is_silent = why.cause not in DEVICE_FAILED or (self.phase is Phase.ANSWERED and bool(self._handshake.claim))
        mark = None if is_silent else self._ending_mark(None)
        self._write_owed_list()
        self._ending.tell_lost(self.connection_id, why, reconnect_grace_ms, self._oldest_unanswered(), mark)

    def _write_owed_list(self) -> None:
        """Writes the newest list before the engine is told of the end."""
        if self._device is not None and self._records.owes_list:
            self._device.write_list()

    def _ending_mark(self, changed_expiry_s: int | None, *, is_withdrawn: bool = False) -> Append | None:
        """Says how long the session is kept from now on. A CONNECT without CONNACK may have none."""
        return self._handshake.ending_mark(changed_expiry_s, is_withdrawn=is_withdrawn) if self.phase in OPEN else None

    def _oldest_unanswered(self) -> PacketId:
        return 0 if self._device is None else self._device.oldest_unanswered()

    def _close(self) -> None:
        """Ends the connection: nothing is read or written any more [MQTT-3.1.4-6] [MQTT-3.14.4-1]. The host closes the socket
        [MQTT-3.14.4-2] [MQTT-4.13.2-1]."""
        self.counters.connections_open -= self.phase in OPEN
        self.phase = Phase.CLOSED
        self._device = self._handshake.left = None
        self._handshake.deadline_ms = None
        self._frames.clear()
        self._records.drop_answers()
