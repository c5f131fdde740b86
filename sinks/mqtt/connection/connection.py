"""One device's connection, without sockets, Kafka or a clock: bytes, commands, confirmations and time come in by method calls.

Theory of operation
1. After every call the host takes `take_output()` (bytes for the device) and `take_appends()` (records for Kafka), closes the
   socket when `is_closed`, reads from it only while `wants_data`, and calls `tick` when `next_deadline_ms()` has come.
2. CONNECT is judged, registered with the host (so that the answer finds us) and waits for its turn; when the host says what the
   login allows, at once or later by `logged_in`, it is told to the engine. Everything else waits in the buffer until
   `AcceptConnection`. If the engine knows a newer connection id, and Kafka had our CONNECT without delay, then it is a clock that
   is wrong and not the CONNECT that is late: it is registered again, above that id.
   With Clean Start nothing old is owed to the device, so CONNACK does not wait for the engine but for Kafka's confirmation of the
   CONNECT, which comes after the login: what it says is known from the configuration. What the device then sends waits for
   `AcceptConnection` all the same.
3. From then on packets and commands go to `ConnectedDevice`. Records are confirmed in any order, and answers leave in the order
   of the requests (`AppendQueue`).
4. A device that breaks the protocol is not listened to any more; what was accepted before is answered, and then the connection
   ends. Otherwise a device that overruns our Receive Maximum would send it all again, and never come to the end of it.
5. However it ends, the engine hears of it once: `ClientDisconnected` or `ConnectionLost`. Nothing after a `CloseConnection` that
   says that the client has another connection, or in place of CONNACK: nobody needs it then.
6. A gateway that stops, or gives a partition away, lets a connection go (`let_go`): the engine is told first, the device when
   Kafka has that and all that was said before. So the end is in the log before the device can be back, and what it has said is
   answered.
"""

from typing import Final, Protocol

from sinks.command_order import OTHER_CODE, CommandOrder, Order
from sinks.fast_path.offering import PathHere
from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefused
from sinks.mqtt.codec.framing import FrameBuffer
from sinks.mqtt.codec.packets import ConnAck, Connect
from sinks.mqtt.connection.appends import Append
from sinks.mqtt.connection.connected_device import ConnectedDevice
from sinks.mqtt.connection.deadlines import Deadlines
from sinks.mqtt.connection.handshake import (
    V5,
    V311,
    ConnectionRefused,
    Registration,
    connack,
    connected_event,
    expected_accept,
    read_connect,
)
from sinks.mqtt.connection.output import ConnectionOutput
from sinks.mqtt.connection.phases import AWAITING_ACCEPT, BEFORE_CONNACK, LOGIN_ENDED, OPEN, OVERDUE, Going, Phase
from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.fair_share import FairShare
from sinks.mqtt.limits.packet_rates import PacketRates
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import AcceptConnection, CloseConnection, GatewayCommand, OfferPublish
from state.errors import ProtocolViolation
from state.events import ConnectionLost
from state.model import ReasonCode

_PROMPT_MS: Final = 1_000
"""From reading a CONNECT to Kafka's confirmation of what was told of it. What the log had before that is not later."""
OTHER_CONFIGURATION: Final = "configuration"
"""The cause by which a connection ends whose CONNACK has said something else than the engine."""
_NO_CONNECT: Final = Connect(protocol_version=4, client_id="", clean_start=True)


class Registrar(Protocol):
    """The host's part in a CONNECT."""

    def await_turn(self, connection: "Connection") -> Turn:
        """CONNECT was read. LATER: `turn_has_come` will be called."""

    def register(self, connection: "Connection") -> Registration | None:
        """None if the connection cannot be held here now.

        From now on commands for that id reach the connection.
        """

    def log_in(self, connection: "Connection", connect: Connect) -> Grant | LoginRefused | None:
        """None: it takes a while, and `logged_in` will be called."""

    def admitted(self, connection: "Connection") -> None:
        """The login holds, and the engine is told of it. Also for one that was registered again."""

    def new_client_id(self) -> str:
        """For a client that leaves the choice to the server."""


class Connection:
    """See the module. All times are milliseconds of one monotonic clock. total: what all connections have told Kafka, fair:
    what each may send; None = there is no other."""

    __slots__ = (
        "_answer",
        "_assigned_client_id",
        "_codec",
        "_connect",
        "_connect_append",
        "_connect_read_ms",
        "_counters",
        "_deadlines",
        "_device",
        "_frames",
        "_going",
        "_grant",
        "_is_late",
        "_knows_settings",
        "_lease_id",
        "_order",
        "_output",
        "_packets",
        "_peer_gone",
        "_rates",
        "_records",
        "_registrar",
        "_settings",
        "_violation",
        "_was_prompt",
        "client_id",
        "connection_id",
        "key",
        "partition",
        "phase",
    )

    def __init__(
        self,
        settings: GatewaySettings,
        registrar: Registrar,
        counters: GatewayCounters,
        now_ms: int,
        total: Unconfirmed | None = None,
        fair: FairShare | None = None,
    ) -> None:
        self.phase = Phase.AWAITING_CONNECT
        self.client_id = ""
        self.key = b""
        self.connection_id = 0
        self.partition = -1
        self._settings = settings
        self._registrar = registrar
        self._counters = counters
        self._frames = FrameBuffer(min(settings.device_limits.max_connect_bytes, settings.max_packet_size_bytes))
        self._rates = PacketRates(settings.device_limits, counters, now_ms, fair)
        self._codec = V311  # until CONNECT says
        self._connect = _NO_CONNECT
        self._grant = EVERYTHING
        self._lease_id = ""
        self._assigned_client_id: str | None = None
        self._answer: ConnAck | None = None
        """The CONNACK that was sent in the phase ANSWERED."""
        self._output = ConnectionOutput(settings, total)
        self._packets = self._output.packets
        self._records = self._output.records
        self._deadlines = Deadlines(settings, now_ms)
        self._device: ConnectedDevice | None = None
        """There in the phase CONNECTED, and in no other."""
        self._violation: ProtocolViolation | None = None
        """The connection ends with it as soon as everything before it is answered; what the device sends now is dropped."""
        self._going: Going | None = None
        """What the device is told when Kafka has everything; what it sends now is dropped."""
        self._peer_gone = False
        self._order = CommandOrder()
        self._connect_read_ms = 0
        self._is_late = False
        self._connect_append: Append | None = None
        self._was_prompt = False
        self._knows_settings = False

    # --- what the host takes ------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def wants_data(self) -> bool:
        """Whether to read from the socket. False is our back pressure on the device."""
        if self._device is not None or self._records.is_full:
            return self._has_room and self._deadlines.blocked_since_ms is None
        return self.phase is Phase.AWAITING_CONNECT or len(self._frames) < self._frames.max_packet_size_bytes

    @property
    def _has_room(self) -> bool:
        return not self._records.is_full and self._rates.paused_until_ms is None

    @property
    def _listens(self) -> bool:
        """What the device sends counts."""
        return self._violation is None and self._going is None

    @property
    def held_bytes(self) -> int:
        """Received, and no whole packet yet or not worked off; and messages that wait for the device. See Buffered."""
        return len(self._frames) + (0 if self._device is None else self._device.held_bytes)

    def is_modest(self, now_ms: int) -> bool:
        """It is connected, and others are slowed down for it. See FairShare."""
        return self._device is not None and self._rates.is_modest(now_ms)

    def take_output(self) -> bytes:
        return self._output.take()

    def take_appends(self) -> list[Append]:
        """Hand each to Kafka in this order, under `key`; then call `confirm` once for each."""
        return self._records.take_new()

    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; calling it earlier does nothing. Ask again after every call."""
        deadlines = self._deadlines
        return deadlines.handshake_ms if self._device is None else deadlines.connected_ms(self._rates.paused_until_ms)

    # --- what happens -------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> None:
        if self.phase is Phase.CLOSED or not self._listens:
            return
        self._deadlines.last_received_ms = now_ms
        self._frames.feed(data)
        self._process(now_ms)

    def peer_closed(self, now_ms: int) -> None:
        """No byte will come any more. What has come is still worked off, as far as Kafka keeps pace."""
        self._peer_gone = True
        if self._device is not None:
            self._process(now_ms)
        elif self.phase is not Phase.ANSWERED:  # there, what it has said before counts
            self._end("the client closed the socket", cause="socket")

    def confirm(self, append: Append, error: Exception | None, now_ms: int, *, too_large: bool = False) -> None:
        """Kafka has the record, or (error) will never have it."""
        records = self._records
        was_full = records.is_full
        records.settle(append, confirmed=error is None)
        if error is not None:
            reason_code = ReasonCode.PACKET_TOO_LARGE if too_large else ReasonCode.SERVER_BUSY
            self._end("Kafka did not take a record", cause="append", reason_code=reason_code)
            return
        if append is self._connect_append:
            self._was_prompt = not self._is_late and now_ms - self._connect_read_ms <= _PROMPT_MS
            self._answer_clean_start()
        if self._device is not None:
            if append.fast_send is not None:
                self._device.confirmed(append.fast_send, now_ms)
            records.take_answers(self._packets)
            if self._violation is not None:
                self._end_when_answered(self._violation)
            elif was_full:
                self.resume(now_ms)
        if self._going is not None and not records.unconfirmed:
            self._end(self._going.reason, cause="gateway", reason_code=self._going.reason_code)

    def resume(self, now_ms: int) -> None:
        """There may be room for more: Kafka has confirmed records, of this connection or of others, or time has passed."""
        if self._device is not None and not self._records.is_full:
            self._deadlines.last_received_ms = now_ms  # until now we did not listen
            self._process(now_ms)

    def writing_blocked(self, blocked: bool, now_ms: int) -> None:
        """The device does not take what we write (True), or does again (False)."""
        self._deadlines.blocked_since_ms = now_ms if blocked else None
        if self._device is not None:
            self._device.block(blocked, now_ms)

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        if self._rates.resume(now_ms):
            self.resume(now_ms)
        if not self._has_room or not self._listens:  # we do not listen, so we cannot say that it is silent
            self._deadlines.last_received_ms = now_ms
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or now_ms < deadline_ms:
            return
        overdue = OVERDUE.get(self.phase)  # [MQTT-3.1.2-22]
        if self._device is not None and now_ms >= (self._deadlines.login_ends_ms or now_ms + 1):
            overdue = LOGIN_ENDED
        if overdue is not None:
            self._end(overdue.reason, cause=overdue.cause, reason_code=overdue.reason_code)

    def shut(self, reason: str, reason_code: ReasonCode, *, at_once: bool = False, reconnect_grace_ms: int = 0) -> None:
        """The gateway stops, or loses its lease or the partition over which the engine speaks to this connection.

        at_once: what is not written yet is not written any more. reconnect_grace_ms: see ConnectionLost.
        """
        if at_once and not self.is_closed and self._output.drop_packets():
            self._output.refuse(reason_code)  # no DISCONNECT before CONNACK [MQTT-3.14.0-1]
            reason_code = ReasonCode.SUCCESS
        self._end(reason, cause="gateway", reason_code=reason_code, reconnect_grace_ms=reconnect_grace_ms)

    def let_go(self, reason: str, reason_code: ReasonCode, *, reconnect_grace_ms: int) -> None:
        """See the module, 6. The caller goes on with the connection as before until it `is_closed`."""
        if self._connect_append is None:  # the engine has never heard of it
            self.shut(reason, reason_code)
        elif self._going is None and not self.is_closed:
            self._tell_lost(reason, reconnect_grace_ms)
            self._going = Going(reason, reason_code)
            self._frames.clear()

    @property
    def fast_path(self) -> PathHere:
        """What `offer` would do. On any thread."""
        device = self._offered_to
        return PathHere.CLOSED if device is None else device.fast_path

    @property
    def _offered_to(self) -> ConnectedDevice | None:
        return self._device if self._listens and not self._peer_gone else None

    def offer(self, offer: OfferPublish, now_ms: int, wall_ms: int, *, under_pressure: bool) -> None:
        """A message that a router has read: it is sent if the session's grant covers it. Call it only while the lease holds.

        wall_ms: since 1970. under_pressure: messages are better left to the session.
        """
        device = self._offered_to
        if device is None:
            self._counters.offers_ignored += 1
            return
        device.offer(offer, now_ms, wall_ms, under_pressure=under_pressure)

    def apply(self, command: GatewayCommand, now_ms: int, code: str) -> None:
        """Carry a command of the engine out, once. code: of its record."""
        order = self._order.take(command.sequence, code)
        if order is not Order.NEW:
            self._counters.commands_repeated += 1
            if order is Order.OTHER_CODE and not self.is_closed:
                self._counters.closed_for_other_code += 1
                self._end(OTHER_CODE, cause="other code", reason_code=ReasonCode.SERVER_BUSY)
            return
        self._counters.commands_applied += 1
        device = self._device
        if isinstance(command, CloseConnection):
            if command.newest_connection_id and self._register_again():
                return
            has_another = command.reason_code == ReasonCode.SESSION_TAKEN_OVER or command.newest_connection_id > 0
            self._end(
                command.reason,
                cause="engine",
                reason_code=command.reason_code,
                tell_engine=self.phase in OPEN and not has_another,
                tell_device=command.reason,
            )
        elif device is not None:
            device.apply(command, now_ms)
        elif isinstance(command, AcceptConnection) and self.phase in AWAITING_ACCEPT:
            self._accept(command, now_ms)

    # --- from CONNECT to the end ----------------------------------------------------------------------------------------------

    def _process(self, now_ms: int) -> None:
        """Work off the buffer, as far as the phase and Kafka allow."""
        frames, records = self._frames, self._records
        try:
            while (device := self._device) is not None and not records.is_full and self._listens:
                if len(frames) and not self._rates.may_read(now_ms):
                    return
                packet = frames.next_packet()
                if packet is None:
                    if self._peer_gone:
                        self._end("the client closed the socket", cause="socket")
                    return
                self._rates.read(*packet, is_v5=self._codec is V5)
                answers = device.answers
                if not device.handle(*packet, now_ms):
                    self._close()
                elif device.answers != answers:
                    self._rates.give_back(packet[0])
            if self.phase is Phase.AWAITING_CONNECT:
                packet = frames.next_packet()
                if packet is not None:
                    self._open(*packet, now_ms=now_ms)
        except ConnectionRefused as refusal:
            self._refuse(refusal)
        except ProtocolViolation as violation:
            self._counters.protocol_errors[violation.reason_code] += 1
            self._violation = violation.with_traceback(None)  # else it would hold us, by this frame
            frames.clear()
        if self._violation is not None:
            self._end_when_answered(self._violation)

    def _end_when_answered(self, violation: ProtocolViolation) -> None:
        if self._peer_gone or not self._records.owes_answers:
            self._end(violation.reason, cause="protocol error", reason_code=violation.reason_code)

    def _open(self, packet: bytes, body_start: int, *, now_ms: int) -> None:
        """1. judge, 2. register, 3. wait for the turn, 4. log in, 5. `logged_in` tells the engine; 6. CONNACK is `_accept`."""
        self._codec, connect = read_connect(packet, body_start, self._settings, self._rates.parts)
        if not connect.client_id:
            self._assigned_client_id = self._registrar.new_client_id()  # [MQTT-3.1.3-6]
        self.client_id = self._assigned_client_id or connect.client_id
        self.key = self.client_id.encode()  # [MQTT-3.1.3-2]: by it the engine finds the session
        self._connect = connect
        self._output.client_said(self._codec, connect.maximum_packet_size_bytes)
        self._connect_read_ms = now_ms
        if not self._register():
            raise ConnectionRefused("nobody is taken in now", reason_code=ReasonCode.SERVER_UNAVAILABLE, codec=self._codec)
        self.phase = Phase.QUEUED
        turn = self._registrar.await_turn(self)
        if turn is Turn.NEVER:
            raise ConnectionRefused("too many CONNECTs wait", reason_code=ReasonCode.SERVER_BUSY, codec=self._codec)
        if turn is Turn.NOW:
            self.turn_has_come(now_ms)

    def turn_has_come(self, now_ms: int) -> None:
        """Of a CONNECT that waited. Nothing happens if the connection has ended meanwhile, or its time is over."""
        self.tick(now_ms)
        if self.phase is not Phase.QUEUED:
            return
        self.phase = Phase.AUTHENTICATING
        login = self._registrar.log_in(self, self._connect)
        if login is not None:
            self.logged_in(login, now_ms)

    def logged_in(self, login: Grant | LoginRefused, now_ms: int) -> None:
        """What the host has found out. Nothing happens if the connection has ended meanwhile, or its time is over."""
        self.tick(now_ms)
        if self.phase is not Phase.AUTHENTICATING:
            return
        if isinstance(login, LoginRefused):  # [MQTT-3.1.4-2]
            self._refuse(ConnectionRefused(str(login.refusal), reason_code=login.reason_code, codec=self._codec))
            return
        self._grant = login
        if login.valid_ms is not None:
            self._deadlines.login_ends_ms = now_ms + login.valid_ms
        self._tell_connected()
        self.phase = Phase.AWAITING_ACCEPT
        self._deadlines.connect_received(now_ms)

    def _register(self) -> bool:
        """False: the connection cannot be held here now."""
        registered = self._registrar.register(self)
        if registered is None:
            return False
        self.connection_id, self.partition, self._lease_id, self._knows_settings, self._is_late = registered
        self._order = CommandOrder()
        return True

    def _tell_connected(self) -> None:
        self._registrar.admitted(self)
        self._was_prompt = False
        self._connect_append = self._output.tell(
            connected_event(
                self._connect,
                connection_id=self.connection_id,
                partition=self.partition,
                lease_id=self._lease_id,
                has_fast_path=self._settings.fast_path.enabled,
                username=self._grant.username,
            )
        )

    def _register_again(self) -> bool:
        """With an id above the one that the engine has told; see the module, 2."""
        if self.phase is Phase.AWAITING_ACCEPT and self._was_prompt and self._listens and self._register():
            self._tell_connected()
            return True
        return False

    def _answer_clean_start(self) -> None:
        """CONNECT is in the log: every later one comes behind it. See the module, 2."""
        if self.phase is not Phase.AWAITING_ACCEPT or not self._connect.clean_start or not self._knows_settings:
            return
        expected = expected_accept(self._connect, self._settings.session_of(self.client_id), connection_id=self.connection_id)
        self._answer = connack(self._connect, expected, self._settings, assigned_client_id=self._assigned_client_id)
        self._say_accepted(self._answer, Phase.ANSWERED)

    def _say_accepted(self, answer: ConnAck, phase: Phase) -> bool:
        """CONNACK once [MQTT-3.2.0-2], and before everything else [MQTT-3.1.4-5] [MQTT-3.2.0-1]. False: it does not fit."""
        if not self._output.write_if_it_fits(answer):
            self._end("no room for CONNACK", cause="protocol error", reason_code=ReasonCode.PACKET_TOO_LARGE)
            return False
        self.phase = phase
        self._counters.connections_accepted += 1
        self._counters.connections_open += 1
        return True

    def _accept(self, accept: AcceptConnection, now_ms: int) -> None:
        answer = connack(self._connect, accept, self._settings, assigned_client_id=self._assigned_client_id)
        if self._answer is not None and answer != self._answer:
            self._end("the engine has another configuration", cause=OTHER_CONFIGURATION, reason_code=ReasonCode.SERVER_BUSY)
            return
        if self._answer is None and not self._say_accepted(answer, Phase.CONNECTED):
            return
        self.phase = Phase.CONNECTED
        self._device = ConnectedDevice(
            self._connect,
            accept,
            client_id=self.client_id,
            codec=self._codec,
            grant=self._grant,
            output=self._output,
            counters=self._counters,
            settings=self._settings,
            is_blocked=self._deadlines.blocked_since_ms is not None,
            now_ms=now_ms,
        )
        self._frames.max_packet_size_bytes = self._settings.max_packet_size_bytes
        self._deadlines.accepted(self._connect.keep_alive_s, now_ms)
        self._process(now_ms)

    def _refuse(self, refusal: ConnectionRefused) -> None:
        self._counters.connections_refused[refusal.reason_code] += 1
        self._packets.append(refusal.answer)
        self._close()

    def _end(
        self,
        reason: str,
        *,
        cause: str,
        reason_code: int = ReasonCode.SUCCESS,
        tell_engine: bool = True,
        tell_device: str = "",
        reconnect_grace_ms: int = 0,
    ) -> None:
        """Say goodbye to both sides and close. reason_code: SUCCESS = nobody is there to hear it. tell_device: in words.
        reconnect_grace_ms: see ConnectionLost."""
        if self.phase is Phase.CLOSED:
            return
        if self.phase in BEFORE_CONNACK:  # no DISCONNECT before CONNACK [MQTT-3.14.0-1]
            self._counters.connections_refused[reason_code] += 1
            if reason_code:
                self._output.refuse(reason_code)
        elif self.phase in OPEN:
            self._counters.connections_lost[cause] += 1
            if reason_code:
                self._output.say_goodbye(reason_code, tell_device)
        if self._connect_append is not None and self._going is None and tell_engine:
            self._tell_lost(reason, reconnect_grace_ms)
        self._close()

    def _tell_lost(self, reason: str, reconnect_grace_ms: int) -> None:
        self._output.tell_end(
            ConnectionLost(connection_id=self.connection_id, reason=reason, reconnect_grace_ms=reconnect_grace_ms)
        )

    def _close(self) -> None:
        """Nothing is read or written any more [MQTT-3.1.4-6] [MQTT-3.14.4-1]; the host closes the socket [MQTT-3.14.4-2]
        [MQTT-4.13.2-1]."""
        self._counters.connections_open -= self.phase in OPEN
        self.phase = Phase.CLOSED
        self._device = None
        self._deadlines.handshake_ms = None
        self._frames.clear()
        self._records.drop_answers()
        del self._registrar  # it holds us: without this, only the garbage collector would find what is closed
