"""One device's connection, without sockets, Kafka or a clock: bytes, commands, confirmations and time come in by method calls.

Theory of operation
1. After every call the host takes `take_output()` (bytes for the device) and `take_appends()` (records for Kafka), closes the
   socket when `is_closed`, reads from it only while `wants_data`, and calls `tick` when `next_deadline_ms()` has come.
2. CONNECT is judged, registered with the host (so that the answer finds us), and told to the engine; everything else waits in the
   buffer until `AcceptConnection`.
3. What the device says becomes a record first; the answer goes out when Kafka has confirmed the record, in the order of the
   requests [MQTT-4.6.0-2]. Records are confirmed in any order (`AppendQueue`).
4. Packet ids, retries, the judgement of acknowledgements: all the session's. Kept here are only the window of what is on this
   wire (`Outbound`), the packet ids that await PUBREL (`Inbound`) and which topic filters exist (`SubscriptionJudge`).
5. However it ends, the engine hears of it once: `ClientDisconnected` or `ConnectionLost`; nothing after `CloseConnection`.
"""

from contextlib import suppress
from enum import Enum
from typing import Final, Protocol

from sinks.mqtt.appends import Append, AppendQueue
from sinks.mqtt.codec.framing import FrameBuffer
from sinks.mqtt.codec.packets import (
    PING_RESP,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ServerPacket,
    Subscribe,
    Unsubscribe,
)
from sinks.mqtt.handshake import V311, ConnectionRefused, connack, connected_event, read_connect
from sinks.mqtt.inbound import Inbound
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.outbound import Outbound
from sinks.mqtt.publish_rate import PublishRate
from sinks.mqtt.settings import GatewaySettings
from sinks.mqtt.subscribing import SubscriptionJudge
from state.commands import (
    AcceptConnection,
    CloseConnection,
    DropAwaitingRel,
    GatewayCommand,
    SendPublish,
    SendPubRel,
    WithdrawPublish,
)
from state.errors import ProtocolViolation
from state.events import (
    ClientDisconnected,
    ConnectionLost,
    GatewayEvent,
    PubAckReceived,
    PubCompReceived,
    PubRecReceived,
    PubRelReceived,
    Subscribed,
    Unsubscribed,
)
from state.model import ReasonCode
from state.records.events import encode_event

_EARLY_BYTES: Final = 65_536
"""Sent by a device before its CONNACK: beyond this it is not read any further until the engine has answered."""
_NO_CONNECT: Final = Connect(protocol_version=4, client_id="", clean_start=True)
_NO_INBOUND: Final = Inbound(
    client_id="",
    connection_id=0,
    is_v5=False,
    encode=V311.encode,
    publish_rate=PublishRate(0, 0),
    topic_alias_maximum=0,
    awaiting_rel=(),
    max_awaiting_rel=0,
)


class Phase(Enum):
    AWAITING_CONNECT = "awaiting CONNECT"
    AWAITING_ACCEPT = "awaiting AcceptConnection"
    CONNECTED = "connected"
    CLOSED = "closed"


class Registrar(Protocol):
    """The host's part in a CONNECT."""

    def register(self, connection: "Connection") -> tuple[int, int] | None:
        """A new connection id and the commands partition, None if there is none.

        From now on commands for that id reach the connection.
        """

    def new_client_id(self) -> str:
        """For a client that leaves the choice to the server."""


class Connection:
    """See the module. All times are milliseconds of one monotonic clock."""

    def __init__(self, settings: GatewaySettings, registrar: Registrar, counters: GatewayCounters, now_ms: int) -> None:
        self.phase = Phase.AWAITING_CONNECT
        self.client_id = ""
        self.key = b""
        self.connection_id = 0
        self.partition = -1
        self._settings = settings
        self._registrar = registrar
        self._counters = counters
        self._frames = FrameBuffer(settings.max_packet_size_bytes)
        self._codec = V311  # until CONNECT says
        self._connect = _NO_CONNECT
        self._assigned_client_id: str | None = None
        self._output: list[bytes] = []
        self._queue = AppendQueue(settings)
        self._peer_gone = False
        self._outbound = Outbound(send_quota=1, encode=self._codec.encode, output=self._output, counters=counters)
        self._last_sequence = 0
        self._inbound = _NO_INBOUND
        self._subscriptions = SubscriptionJudge(None)
        self._deadline_ms: int | None = now_ms + settings.connect_timeout_ms
        self._last_received_ms = now_ms
        self._keep_alive_ms = 0
        self._blocked_since_ms: int | None = None

    # --- what the host takes ------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def wants_data(self) -> bool:
        """Whether to read from the socket. False is our back pressure on the device."""
        if self.phase is Phase.CONNECTED:
            return not self._queue.is_full and self._blocked_since_ms is None
        return self.phase is not Phase.AWAITING_ACCEPT or len(self._frames) < _EARLY_BYTES

    @property
    def unconfirmed(self) -> int:
        """Records taken by the host and not yet confirmed."""
        return self._queue.unconfirmed

    def take_output(self) -> bytes:
        output = self._output
        if not output:
            return b""
        data = output[0] if len(output) == 1 else b"".join(output)
        output.clear()
        return data

    def take_appends(self) -> list[Append]:
        """Hand each to Kafka in this order, under `key`; then call `confirm` once for each."""
        return self._queue.take_new()

    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; calling it earlier does nothing. Ask again after every call."""
        if self.phase is not Phase.CONNECTED:
            return self._deadline_ms
        alive = self._last_received_ms + self._keep_alive_ms if self._keep_alive_ms else None
        if self._blocked_since_ms is None:
            return alive
        stalled = self._blocked_since_ms + (self._keep_alive_ms or self._settings.stalled_write_timeout_ms)
        return stalled if alive is None else min(alive, stalled)

    # --- what happens -------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> None:
        if self.phase is Phase.CLOSED:
            return
        self._last_received_ms = now_ms
        self._frames.feed(data)
        self._process(now_ms)

    def peer_closed(self, now_ms: int) -> None:
        """No byte will come any more. What has come is still worked off, as far as Kafka keeps pace."""
        self._peer_gone = True
        if self.phase is Phase.CONNECTED:
            self._process(now_ms)
        else:
            self._end("the client closed the socket", cause="socket")

    def confirm(self, append: Append, error: Exception | None, now_ms: int, *, too_large: bool = False) -> None:
        """Kafka has the record, or (error) will never have it."""
        was_full = self._queue.is_full
        self._queue.settle(append, confirmed=error is None)
        if error is not None:
            reason_code = ReasonCode.PACKET_TOO_LARGE if too_large else ReasonCode.SERVER_BUSY
            self._end("Kafka did not take a record", cause="append", reason_code=reason_code)
            return
        if self.phase is Phase.CONNECTED:
            self._queue.take_answers(self._output)
            if was_full and not self._queue.is_full:
                self._process(now_ms)

    def writing_blocked(self, blocked: bool, now_ms: int) -> None:
        """The device does not take what we write (True), or does again (False)."""
        self._blocked_since_ms = now_ms if blocked else None
        if self.phase is Phase.CONNECTED:
            self._outbound.block(blocked, now_ms)

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        if self._queue.is_full:  # we do not read from it, so we cannot say that it is silent
            self._last_received_ms = now_ms
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or now_ms < deadline_ms:
            return
        match self.phase:
            case Phase.AWAITING_CONNECT:
                self._end("no CONNECT in time", cause="connect timeout")
            case Phase.AWAITING_ACCEPT:
                self._end("the engine did not answer in time", cause="accept timeout", reason_code=ReasonCode.SERVER_UNAVAILABLE)
            case Phase.CONNECTED:  # [MQTT-3.1.2-22]
                self._end("keep alive", cause="keep alive", reason_code=ReasonCode.KEEP_ALIVE_TIMEOUT)
            case Phase.CLOSED:
                pass

    def shut(self, reason: str, reason_code: ReasonCode) -> None:
        """The gateway stops, or loses the partition over which the engine speaks to this connection."""
        self._end(reason, cause="gateway", reason_code=reason_code)

    # --- from the engine ----------------------------------------------------------------------------------------------------

    def apply(self, command: GatewayCommand, now_ms: int) -> None:
        """Carry a command out, once."""
        if command.sequence <= self._last_sequence:
            self._counters.commands_repeated += 1
            return
        self._last_sequence = command.sequence
        self._counters.commands_applied += 1
        match command:
            case SendPublish() if self.phase is Phase.CONNECTED:
                self._outbound.send(command, now_ms)
            case SendPubRel() if self.phase is Phase.CONNECTED:
                self._outbound.release(command.packet_id)
                self._write(PubRel(packet_id=command.packet_id, reason_code=command.reason_code))
            case DropAwaitingRel() if self.phase is Phase.CONNECTED:
                self._inbound.forget(command.packet_ids)
            case WithdrawPublish() if self.phase is Phase.CONNECTED:
                self._outbound.withdraw(command.packet_ids, now_ms)
            case AcceptConnection() if self.phase is Phase.AWAITING_ACCEPT:
                self._accept(command, now_ms)
            case CloseConnection():
                self._end(
                    command.reason, cause="engine", reason_code=command.reason_code, tell_engine=False, tell_device=command.reason
                )
            case _:
                pass

    def _accept(self, accept: AcceptConnection, now_ms: int) -> None:
        answer = self._codec.encode(connack(self._connect, accept, self._settings, assigned_client_id=self._assigned_client_id))
        if not self._fits(answer):
            self._end("no room for CONNACK", cause="protocol error", reason_code=ReasonCode.PACKET_TOO_LARGE)
            return
        self.phase = Phase.CONNECTED
        self._outbound = Outbound(
            send_quota=accept.send_quota,
            encode=self._codec.encode,
            output=self._output,
            counters=self._counters,
            is_blocked=self._blocked_since_ms is not None,
        )
        self._inbound = Inbound(
            client_id=self.client_id,
            connection_id=self.connection_id,
            is_v5=self._connect.protocol_version >= 5,
            encode=self._codec.encode,
            publish_rate=PublishRate(self._settings.max_publish_rate, now_ms),
            topic_alias_maximum=self._settings.topic_alias_maximum,
            awaiting_rel=accept.awaiting_rel,
            max_awaiting_rel=accept.max_awaiting_rel,
        )
        self._subscriptions = SubscriptionJudge(accept.topic_filters)
        self._keep_alive_ms = self._connect.keep_alive_s * 1_500
        self._last_received_ms = now_ms
        self._counters.connections_accepted += 1
        self._counters.connections_open += 1
        # Once [MQTT-3.2.0-2], and before everything else [MQTT-3.1.4-5] [MQTT-3.2.0-1].
        self._output.append(answer)
        self._process(now_ms)

    # --- from the device ----------------------------------------------------------------------------------------------------

    def _process(self, now_ms: int) -> None:
        """Work off the buffer, as far as the phase and Kafka allow."""
        frames = self._frames
        try:
            while self.phase is Phase.CONNECTED and not self._queue.is_full:
                packet = frames.next_packet()
                if packet is None:
                    if self._peer_gone:
                        self._end("the client closed the socket", cause="socket")
                    return
                self._handle(*packet, now_ms=now_ms)
            if self.phase is Phase.AWAITING_CONNECT:
                packet = frames.next_packet()
                if packet is not None:
                    self._open(*packet, now_ms=now_ms)
        except ConnectionRefused as refusal:
            self._refuse(refusal)
        except ProtocolViolation as violation:
            self._counters.protocol_errors[violation.reason_code] += 1
            self._end(violation.reason, cause="protocol error", reason_code=violation.reason_code)

    def _open(self, packet: bytes, body_start: int, *, now_ms: int) -> None:
        """1. judge, 2. register, 3. tell the engine; 4. CONNACK is `_accept`."""
        self._codec, connect = read_connect(packet, body_start, self._settings)
        if not connect.client_id:
            self._assigned_client_id = self._registrar.new_client_id()  # [MQTT-3.1.3-6]
        self.client_id = self._assigned_client_id or connect.client_id
        self.key = self.client_id.encode()  # [MQTT-3.1.3-2]: by it the engine finds the session
        registered = self._registrar.register(self)
        if registered is None:
            raise ConnectionRefused("no commands partition", reason_code=ReasonCode.SERVER_UNAVAILABLE, codec=self._codec)
        self.connection_id, self.partition = registered
        self._connect = connect
        self.phase = Phase.AWAITING_ACCEPT
        self._deadline_ms = now_ms + self._settings.accept_timeout_ms
        self._tell(connected_event(connect, connection_id=self.connection_id, partition=self.partition))

    def _handle(self, packet: bytes, body_start: int, *, now_ms: int) -> None:
        decoded = self._codec.decode(packet, body_start)
        self._counters.packets_received[type(decoded).__name__] += 1
        connection_id = self.connection_id
        match decoded:
            case PubAck(packet_id=packet_id, reason_code=reason_code, reason=reason):
                self._outbound.acknowledged(packet_id, now_ms)
                self._tell(
                    PubAckReceived(connection_id=connection_id, packet_id=packet_id, reason_code=reason_code, reason=reason)
                )
            case Publish():
                self._on_publish(decoded, now_ms)
            case PubRec(packet_id=packet_id, reason_code=reason_code, reason=reason):
                answers = self._outbound.received(packet_id, reason_code, now_ms)
                self._tell(
                    PubRecReceived(
                        connection_id=connection_id,
                        packet_id=packet_id,
                        reason_code=reason_code,
                        pubrel_sent=answers,
                        reason=reason,
                    ),
                    PubRel(packet_id=packet_id) if answers else None,
                )
            case PubComp(packet_id=packet_id, reason_code=reason_code):
                self._outbound.completed(packet_id, now_ms)
                self._tell(PubCompReceived(connection_id=connection_id, packet_id=packet_id, reason_code=reason_code))
            case PubRel(packet_id=packet_id, reason_code=reason_code):
                known = self._inbound.release(packet_id)
                self._tell(
                    PubRelReceived(connection_id=connection_id, packet_id=packet_id, reason_code=reason_code),
                    PubComp(packet_id=packet_id, reason_code=ReasonCode.SUCCESS if known else ReasonCode.PACKET_ID_NOT_FOUND),
                )
            case PingReq():
                self._write(PING_RESP)  # [MQTT-3.12.4-1]
            case Subscribe():
                self._on_subscribe(decoded)
            case Unsubscribe():
                self._on_unsubscribe(decoded)
            case Disconnect():
                self._on_disconnect(decoded)
            case Connect():
                raise ProtocolViolation("a second CONNECT [MQTT-3.1.0-2]")

    def _on_publish(self, publish: Publish, now_ms: int) -> None:
        taken = self._inbound.take(publish, self._queue.unanswered_qos1, now_ms)
        if isinstance(taken, Append):
            self._queue.add(taken)
        else:
            self._counters.publishes_refused += 1
            self._answer_in_order(taken)

    def _on_subscribe(self, subscribe: Subscribe) -> None:
        answer, granted = self._subscriptions.subscribe(subscribe)
        if granted:  # [MQTT-3.8.4-1]
            self._tell(Subscribed(connection_id=self.connection_id, subscriptions=granted), answer)
        else:
            self._answer_in_order(answer)

    def _on_unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        answer, topic_filters = self._subscriptions.unsubscribe(unsubscribe)
        if topic_filters:  # [MQTT-3.10.4-4]
            self._tell(Unsubscribed(connection_id=self.connection_id, topic_filters=topic_filters), answer)
        else:
            self._answer_in_order(answer)

    def _on_disconnect(self, disconnect: Disconnect) -> None:
        if disconnect.session_expiry_interval_s and self._connect.session_expiry_interval_s == 0:
            raise ProtocolViolation("DISCONNECT sets a session expiry where CONNECT had none (MQTT 5, 3.14.2.2.2)")
        event = ClientDisconnected(
            connection_id=self.connection_id,
            reason_code=disconnect.reason_code,
            session_expiry_interval_s=disconnect.session_expiry_interval_s,
        )
        self._queue.add(_farewell(event))
        self._close()

    # --- endings and outputs ------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: ConnectionRefused) -> None:
        self._counters.connections_refused[refusal.reason_code] += 1
        self._output.append(refusal.answer)
        self._close()

    def _end(
        self,
        reason: str,
        *,
        cause: str,
        reason_code: int = ReasonCode.SUCCESS,
        tell_engine: bool = True,
        tell_device: str = "",
    ) -> None:
        """Say goodbye to both sides and close. reason_code: SUCCESS = nobody is there to hear it. tell_device: in words."""
        if self.phase is Phase.CLOSED:
            return
        if self.phase is Phase.AWAITING_ACCEPT:  # no DISCONNECT before CONNACK [MQTT-3.14.0-1]
            self._counters.connections_refused[reason_code] += 1
            if reason_code:
                self._say(ConnAck(reason_code=reason_code), ConnAck(reason_code=ReasonCode.SERVER_UNAVAILABLE))
        elif self.phase is Phase.CONNECTED:
            self._counters.connections_lost[cause] += 1
            if reason_code:
                self._say(
                    Disconnect(reason_code=reason_code, reason=tell_device),
                    Disconnect(reason_code=reason_code),
                    Disconnect(reason_code=ReasonCode.UNSPECIFIED_ERROR),
                )
        if self.connection_id and tell_engine:
            self._queue.add(_farewell(ConnectionLost(connection_id=self.connection_id, reason=reason)))
        self._close()

    def _say(self, *packets: ConnAck | Disconnect) -> None:
        """The first one that can carry its reason code and is not too large for the client [MQTT-3.14.2-3]."""
        for packet in packets:
            with suppress(ValueError):
                data = self._codec.encode(packet)
                if self._fits(data):
                    self._output.append(data)
                    return

    def _close(self) -> None:
        """Nothing is read or written any more [MQTT-3.1.4-6] [MQTT-3.14.4-1]; the host closes the socket [MQTT-3.14.4-2]
        [MQTT-4.13.2-1]."""
        self._counters.connections_open -= self.phase is Phase.CONNECTED
        self.phase = Phase.CLOSED
        self._deadline_ms = None
        self._frames.clear()

    def _fits(self, data: bytes) -> bool:
        """Whether the client takes a packet of this size [MQTT-3.1.2-24]."""
        limit_bytes = self._connect.maximum_packet_size_bytes
        return limit_bytes is None or len(data) <= limit_bytes

    def _answer(self, packet: ServerPacket) -> bytes:
        """Raises ProtocolViolation for one that does not fit: it is owed, so the client cannot be left without it."""
        data = self._codec.encode(packet)
        if not self._fits(data):
            raise ProtocolViolation(
                f"an answer of {len(data)} bytes is larger than the client's Maximum Packet Size",
                reason_code=ReasonCode.PACKET_TOO_LARGE,
            )
        return data

    def _write(self, packet: ServerPacket) -> None:
        self._output.append(self._codec.encode(packet))

    def _tell(self, event: GatewayEvent, answer: ServerPacket | None = None) -> None:
        """An event for the engine, and what to answer when it is in the log."""
        self._queue.add(Append(encode_event(event), None if answer is None else self._answer(answer)))

    def _answer_in_order(self, answer: ServerPacket) -> None:
        """An answer that needs no record."""
        self._queue.add_answer(self._answer(answer))
        self._queue.take_answers(self._output)


def _farewell(event: ClientDisconnected | ConnectionLost) -> Append:
    append = Append(encode_event(event))
    append.is_farewell = True
    return append
